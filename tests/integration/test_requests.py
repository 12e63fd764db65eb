"""A request is looked up, and ended, at any gateway, by whom it belongs to."""

import asyncio

import httpx
import pytest

from tests.support.resuming import ASK, TEXT, Counting, caller, in_flight, named
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


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


async def has_state(http: httpx.AsyncClient, request_id: str, state: str) -> bool:
    return (await http.get(f"/v1/requests/{request_id}")).json()["state"] == state


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
    assert told["blocked_by"] == "2 requests of lane interactive before it"
    assert 0 < told["queue_timeout_in_ms"] <= told["deadline_in_ms"]
    script.may_go_on.set()
    worker.slots = 64
    answers = await asyncio.gather(*asks)
    assert [one.headers["x-busway-queue-position"] for one in answers] == ["0", "1", "2"]
