"""A fleet that is behind says so at once, with what it measured."""

import asyncio

import pytest

from tests.fault.drills import Seen, caller, stream, words
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture
async def busy(fleet):
    """One slot, and a queue before it whose pace is known: http, and the streams that make it."""
    await fleet.worker(WORKER__SLOTS="1", WORKER__ECHO__STEP_MS="10")
    gateway = await fleet.gateway(LANES__INTERACTIVE__MAX_QUEUED="40")
    seen = [Seen(words(number, 10)) for number in range(41)]
    async with caller(gateway) as http:
        tasks = [asyncio.create_task(stream(http, one)) for one in seen]
        # A pace seen for less than a second refuses nobody; ten requests at 10 steps each take as long.
        await wait_until(lambda: sum(one.finishes for one in seen) >= 12, "the lane's pace to be known")
        yield gateway, http
        await asyncio.gather(*tasks)
    assert [one.text for one in seen if not one.is_exact] == [], "nobody paid for it"


def ask(text: str = "hello") -> dict:
    return {"model": "echo", "messages": [{"role": "user", "content": text}]}


async def test_a_deadline_that_the_pace_cannot_meet_is_refused_on_arrival(busy):
    gateway, http = busy

    refused = await http.post("/v1/chat/completions", json=ask(), headers={"x-busway-deadline-ms": "50"})

    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "deadline_unreachable")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert await gateway.metric("busway_deadline_refused_total") == 1


async def test_who_has_time_enters_and_is_told_when_it_will_start(busy):
    _, http = busy

    taken = await http.post("/v1/chat/completions", json=ask(), headers={"x-busway-deadline-ms": "60000"})

    assert taken.status_code == 200
    assert int(taken.headers["x-busway-queue-position"]) > 0
    assert int(taken.headers["x-busway-queue-estimated-ms"]) > 0
