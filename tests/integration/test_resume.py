"""A client that lost its connection gets the rest of its answer, at any gateway."""

import asyncio
import json

import httpx
import pytest

from tests.support.resuming import ASK, EVENTS, TEXT, WORDS, Counting, in_flight, read
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("seen", [0, 1, 6, 12])
async def test_a_client_that_drops_gets_the_rest_at_another_gateway(here, there, worker, seen):
    worker.script = script = Counting(hold=max(seen, 1))
    async with here.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}, headers=EVENTS) as answer:
        first = await read(answer, pieces=seen)
    assert first.ids[:seen] == [str(number + 1) for number in range(seen)]

    after = {"last-event-id": first.ids[-1]} if seen else {}
    async with there.stream("GET", f"/v1/requests/{first.request_id}/events", headers=after) as answer:
        script.may_go_on.set()
        second = await read(answer)

    assert first.text + second.text == TEXT
    assert second.is_done
    assert first.finishes + second.finishes == ["stop"]
    assert {chunk["id"] for chunk in first.chunks + second.chunks} == {f"chatcmpl-{first.request_id}"}
    assert {chunk["created"] for chunk in first.chunks + second.chunks} == {second.chunks[0]["created"]}
    assert worker.cancels == []
    assert worker.started == 1


@pytest.mark.parametrize("after", [0, 5, 12])
async def test_an_answer_is_told_again_after_its_end(here, there, worker, after):
    worker.script = Counting()
    async with here.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as answer:
        whole = await read(answer)

    url = f"/v1/requests/{whole.request_id}/events?starting_after={after}"
    async with there.stream("GET", url) as answer:
        again = await read(answer)

    assert (again.text, again.finishes, again.is_done) == ("".join(WORDS[after:]), ["stop"], True)
    assert whole.ids == [], "who did not ask for ids gets none"


async def test_a_whole_answer_can_be_streamed_afterwards(here, there, worker):
    worker.script = Counting()
    answer = await here.post("/v1/chat/completions", json=ASK)

    async with there.stream("GET", f"/v1/requests/{answer.headers['x-request-id']}/events") as stream:
        again = await read(stream)

    assert again.text == answer.json()["choices"][0]["message"]["content"] == TEXT


async def test_several_readers_follow_one_request(here, there, worker):
    worker.script = script = Counting(hold=3)
    async with here.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as first:
        request_id = first.headers["x-request-id"]
        url = f"/v1/requests/{request_id}/events"
        async with there.stream("GET", url) as second, here.stream("GET", url) as third:
            await wait_until(lambda: worker.stages, "the request to run")
            script.may_go_on.set()
            found = await asyncio.gather(read(first), read(second), read(third))

    assert [one.text for one in found] == [TEXT] * 3


async def test_one_reader_of_two_may_leave(here, there, worker):
    worker.script = script = Counting(hold=3)
    async with here.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as first:
        await read(first, pieces=2)
        url = f"/v1/requests/{first.headers['x-request-id']}/events"
        second = await there.send(there.build_request("GET", url), stream=True)
    await wait_until(lambda: in_flight(here, 0), "the first to be forgotten")
    state = await there.get(url.removesuffix("/events"))
    assert (state.json()["state"], state.json()["watched"]) == ("running", True)
    script.may_go_on.set()

    assert (await read(second)).text == TEXT
    assert worker.cancels == []


async def test_who_does_not_come_back_is_cancelled_after_the_grace(here, worker):
    worker.script = Counting(hold=3)
    async with here.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}) as answer:
        first = await read(answer, pieces=1)

    await wait_until(lambda: not worker.stages, "the request to be cancelled")

    assert worker.cancels == [first.request_id]
    state = (await here.get(f"/v1/requests/{first.request_id}")).json()
    assert (state["state"], state["error"]["code"]) == ("cancelled", "cancelled")
    async with here.stream("GET", f"/v1/requests/{first.request_id}/events?starting_after=1") as answer:
        rest = [line async for line in answer.aiter_lines() if line.startswith("data: {")]
    assert answer.status_code == 499 or json.loads(rest[-1][6:])["error"]["code"] == "cancelled"


async def test_a_detached_request_runs_to_its_end(here, there, worker):
    worker.script = script = Counting(hold=3)
    detached = {"x-busway-detach": "true"}
    async with here.stream("POST", "/v1/chat/completions", json={**ASK, "stream": True}, headers=detached) as answer:
        first = await read(answer, pieces=1)
    url = f"/v1/requests/{first.request_id}"
    await wait_until(lambda: is_unwatched(there, url), "the gateway to stop watching")
    script.may_go_on.set()
    await wait_until(lambda: not worker.stages, "the request to end")

    assert (await there.get(url)).json()["state"] == "done"
    async with there.stream("GET", f"{url}/events") as answer:
        assert (await read(answer)).text == TEXT
    assert worker.cancels == []


async def is_unwatched(http: httpx.AsyncClient, url: str) -> bool:
    state = (await http.get(url)).json()
    assert state["detached"]
    return not state["watched"]


async def test_choices_are_resumed_each_from_its_own_place(here, there, worker):
    worker.script = script = Counting(hold=4)
    body = {**ASK, "stream": True, "n": 2}
    async with here.stream("POST", "/v1/chat/completions", json=body, headers=EVENTS) as answer:
        first = await read(answer, pieces=5)
    script.may_go_on.set()
    async with there.stream(
        "GET", f"/v1/requests/{first.request_id}/events", headers={"last-event-id": first.ids[-1]}
    ) as answer:
        second = await read(answer)

    for index in range(2):
        choices = [one for chunk in first.chunks + second.chunks for one in chunk["choices"] if one["index"] == index]
        assert "".join(one["delta"].get("content") or "" for one in choices) == TEXT


@pytest.mark.parametrize("position", ["x", "-1", "13", "1,2", "9" * 30])
async def test_what_is_no_id_of_an_event_is_refused(here, worker, position):
    worker.script = Counting()
    answer = await here.post("/v1/chat/completions", json=ASK)
    url = f"/v1/requests/{answer.headers['x-request-id']}/events"

    refused = await here.get(url, params={"starting_after": position})

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "starting_after")
