"""A client that lost its connection gets the rest of its answer, at any gateway; one that repeats a call joins it."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx
import pytest

from shared.connection import connect_subscriber
from shared.sections import RedisSettings
from tests.support.fleet import Fleet, Gateway, free_port
from tests.support.waiting import wait_until
from tests.unit.gateway.scripted import Stage, done, failed, scripted_worker

pytestmark = pytest.mark.integration

WORDS = [f"{number} " for number in range(12)]
TEXT = "".join(WORDS)
ASK = {"model": "m", "messages": [{"role": "user", "content": "count"}]}
EVENTS = {"accept": "text/event-stream"}


@pytest.fixture(scope="module")
def gateways(valkey, tmp_path_factory):
    """Two of them, with keys, so that what belongs to one tenant is nobody else's."""
    fleet = Fleet(valkey.url, tmp_path_factory.mktemp("gateways"))
    found = []
    for _ in range(2):
        port = free_port()
        env = {"GATEWAY__PORT": str(port), "GATEWAY__API_KEYS": "ours,theirs", "GATEWAY__DISCONNECT_GRACE_S": "1"}
        found.append(Gateway(fleet.start("gateway", **env), port))
    yield found
    fleet.stop()


@pytest.fixture
async def worker(gateways, redis, valkey):
    listener = connect_subscriber(RedisSettings(url=valkey.url))
    async with scripted_worker(redis, listener) as worker:
        for gateway in gateways:
            await wait_until(lambda gateway=gateway: is_ready(gateway), "the gateway to see the worker")
        yield worker
    await listener.aclose()


async def is_ready(gateway) -> bool:
    async with httpx.AsyncClient(base_url=gateway.url, headers={"authorization": "Bearer ours"}) as http:
        try:
            listed = (await http.get("/v1/models")).json().get("data", [])
            return bool(listed) and (await http.get("/ready")).status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture
async def here(gateways, worker) -> AsyncIterator[httpx.AsyncClient]:
    async with caller(gateways[0]) as http:
        yield http


@pytest.fixture
async def there(gateways, worker) -> AsyncIterator[httpx.AsyncClient]:
    async with caller(gateways[1]) as http:
        yield http


def caller(gateway, key="ours") -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=gateway.url, timeout=30, headers={"authorization": f"Bearer {key}"})


@dataclass
class Read:
    """What was read of a stream."""

    request_id: str = ""
    ids: list[str] = field(default_factory=list)
    chunks: list[dict] = field(default_factory=list)
    is_done: bool = False

    @property
    def text(self) -> str:
        deltas = [choice["delta"] for chunk in self.chunks for choice in chunk.get("choices", [])]
        return "".join(delta.get("content") or "" for delta in deltas)

    @property
    def finishes(self) -> list[str]:
        reasons = [choice["finish_reason"] for chunk in self.chunks for choice in chunk.get("choices", [])]
        return [reason for reason in reasons if reason]


async def read(response: httpx.Response, pieces: int | None = None) -> Read:
    """To the end of the stream, or until so many pieces of text have come."""
    assert response.status_code == 200, await response.aread()
    found = Read(response.headers["x-request-id"])
    if pieces == 0:
        return found
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            found.ids.append(line[4:])
        if line == "data: [DONE]":
            found.is_done = True
        elif line.startswith("data: "):
            found.chunks.append(json.loads(line[6:]))
            if pieces is not None and sum(bool(one) for one in texts(found)) == pieces:
                return found
    return found


def texts(found: Read) -> list[str]:
    return [choice["delta"].get("content") for chunk in found.chunks for choice in chunk.get("choices", [])]


class Counting:
    """Says the words, but stops before the one at `hold` until it may go on."""

    def __init__(self, hold: int | None = None) -> None:
        self.hold = hold
        self.may_go_on = asyncio.Event()

    async def __call__(self, stage: Stage) -> None:
        for number, word in enumerate(WORDS[stage.at :], stage.at):
            if number == self.hold:
                await self.may_go_on.wait()
            await stage.say(word)
        await stage.end(done(len(WORDS)))


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


async def in_flight(http: httpx.AsyncClient, count: int) -> bool:
    lines = (await http.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("busway_requests_in_flight{")) == count


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


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_request_is_nobody_elses(gateways, here, worker, method):
    worker.script = Counting()
    answer = await here.post("/v1/chat/completions", json=ASK)
    async with caller(gateways[0], key="theirs") as other:
        for path in (f"/v1/requests/{answer.headers['x-request-id']}", "/v1/requests/nobody-knows-it"):
            refused = await other.request(method, path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "request_not_found")


@pytest.mark.parametrize("state", ["queued", "running", "done"])
async def test_delete_ends_a_request_in_any_state_once(here, there, worker, state):
    worker.script = Counting(hold=None if state == "done" else 3)
    if state == "queued":
        await worker.pause()
    asking = asyncio.create_task(here.post("/v1/chat/completions", json=ASK, headers={"idempotency-key": state}))
    neighbour = asyncio.create_task(here.post("/v1/chat/completions", json=ASK))
    request_id = await named(there, state)
    await wait_until(lambda: has_state(there, request_id, state), f"it to be {state}")

    answers = [await there.delete(f"/v1/requests/{request_id}") for _ in range(3)]

    assert [one.status_code for one in answers] == [200] * 3
    worker.script.may_go_on.set() if state != "queued" else None
    worker.slots = 64
    answer = await asking
    assert answer.status_code == (200 if state == "done" else 499)
    assert len(worker.cancels) <= 1, "told to the worker once at most"
    if state == "queued":
        worker.script = Counting()
    assert (await neighbour).json()["choices"][0]["message"]["content"] == TEXT


async def named(http: httpx.AsyncClient, key: str) -> str:
    """The id of the request with this key, once it is there."""
    import hashlib

    tenant = hashlib.sha256(b"ours").hexdigest()[:16]
    request_id = hashlib.sha256(f"{tenant}\n{key}".encode()).hexdigest()[:32]
    await wait_until(lambda: is_known(http, request_id), "the request to be known")
    return request_id


async def is_known(http: httpx.AsyncClient, request_id: str) -> bool:
    return (await http.get(f"/v1/requests/{request_id}")).status_code == 200


async def has_state(http: httpx.AsyncClient, request_id: str, state: str) -> bool:
    return (await http.get(f"/v1/requests/{request_id}")).json()["state"] == state


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


async def test_a_queued_request_says_where_it_stands(here, worker):
    worker.script = script = Counting(hold=0)
    await worker.pause()
    asks = [asyncio.create_task(here.post("/v1/chat/completions", json=ASK)) for _ in range(2)]
    keyed = {"idempotency-key": "third"}
    await wait_until(lambda: in_flight(here, 2), "two to wait")
    asks.append(asyncio.create_task(here.post("/v1/chat/completions", json=ASK, headers=keyed)))
    request_id = await named(here, "third")

    told = (await here.get(f"/v1/requests/{request_id}")).json()

    assert (told["state"], told["position"], told["lane"]) == ("queued", 2, "interactive")
    assert told["blocked_by"] == "2 requests of lane interactive are before it"
    assert 0 < told["queue_timeout_in_ms"] <= told["deadline_in_ms"]
    script.may_go_on.set()
    worker.slots = 64
    answers = await asyncio.gather(*asks)
    assert [one.headers["x-busway-queue-position"] for one in answers] == ["0", "1", "2"]
