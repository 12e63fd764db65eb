"""The same key is the same request: it runs once, and whoever asks gets its answer."""

import asyncio

import pytest

from tests.support.resuming import ASK, TEXT, WORDS, Counting, caller, read
from tests.support.waiting import wait_until
from tests.unit.gateway.scripted import Stage, failed

pytestmark = pytest.mark.integration


async def test_a_key_joins_the_request_that_runs(here, there, worker):
    worker.script = script = Counting(hold=3)
    keyed = {"idempotency-key": "join-running"}
    first = asyncio.create_task(here.post("/v1/chat/completions", json=ASK, headers=keyed))
    await wait_until(lambda: worker.stages, "the request to run")
    async with there.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}, headers=keyed) as answer:
        assert answer.headers["x-busway-joined"] == "true"
        script.may_go_on.set()
        second = await read(answer)
    whole = await first

    assert second.text == whole.json()["choices"][0]["message"]["content"] == TEXT
    assert second.request_id == whole.headers["x-request-id"]
    assert worker.started == 1


async def test_a_key_brings_the_finished_answer(here, there, worker):
    worker.script = Counting()
    keyed = {"idempotency-key": "join-finished"}
    answers = [await http.post("/v1/chat/completions", json=ASK, headers=keyed) for http in (here, there, here)]

    assert [one.json() for one in answers] == [answers[0].json()] * 3
    assert worker.started == 1


async def test_a_key_with_another_body_is_refused(here, there, worker):
    worker.script = Counting()
    keyed = {"idempotency-key": "another-body"}
    await here.post("/v1/chat/completions", json=ASK, headers=keyed)

    refused = await there.post("/v1/chat/completions", json={**ASK, "max_tokens": 7}, headers=keyed)

    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert worker.started == 1


async def test_a_key_of_somebody_else_is_another_key(gateways, here, worker):
    worker.script = Counting()
    keyed = {"idempotency-key": "the-same-words"}
    ours = await here.post("/v1/chat/completions", json=ASK, headers=keyed)
    async with caller(gateways[0], key="theirs") as other:
        theirs = await other.post("/v1/chat/completions", json=ASK, headers=keyed)

    assert ours.headers["x-request-id"] != theirs.headers["x-request-id"]
    assert worker.started == 2


async def test_a_failed_request_runs_again_with_its_key_from_where_it_stopped(here, worker):
    async def fails(stage: Stage):
        await stage.say(*WORDS[:4])
        await stage.end(failed("internal_error"))

    worker.script = fails
    keyed = {"idempotency-key": "again"}
    first = await here.post("/v1/chat/completions", json=ASK, headers=keyed)
    worker.script = Counting()
    second = await here.post("/v1/chat/completions", json=ASK, headers=keyed)

    assert first.status_code == 500
    assert second.json()["choices"][0]["message"]["content"] == TEXT
    assert worker.started == 2


@pytest.mark.parametrize("key", ["", "a b", "ä", "x" * 256])
async def test_a_key_that_cannot_be_meant_is_refused(here, key):
    refused = await here.post("/v1/chat/completions", json=ASK, headers={"idempotency-key": key.encode("latin-1")})

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Idempotency-Key")
