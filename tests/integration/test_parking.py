"""Bulk gives way: paused, handed back with its tokens, and finished exactly, here or elsewhere."""

import asyncio

import openai
import pytest

from tests.support.fleet import gather, stream_text
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

SLOTS = 8


def words(number, count=60):
    return " ".join(f"w{number}-{place}" for place in range(count))


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_burst_gets_slots_at_once_and_parked_bulk_is_finished_exactly(fleet, workers):
    """Each slot is bulk's; interactive needs more than its reserve; nothing is lost, nothing is said twice."""
    env = {"WORKER__SLOTS": str(SLOTS), "WORKER__ECHO__STEP_MS": "20"}
    started = [await fleet.worker(**env) for _ in range(workers)]
    gateway = await fleet.gateway()
    total = SLOTS * workers
    async with gateway.client(timeout=120) as client:
        seen = [[] for _ in range(total + 4)]
        bulk = [
            asyncio.create_task(stream_text(client, "echo", words(n), seen[n], service_tier="flex"))
            for n in range(total + 4)
        ]
        await wait_until(lambda: sum(bool(one) for one in seen) >= total - workers, "bulk to fill the slots")
        said_before = [len(one) for one in seen]
        burst = await gather(*(stream_text(client, "echo", words(100 + n, 5)) for n in range(total - 2)))
        unfinished = sum(not one.done() for one in bulk)
        texts = await asyncio.gather(*bulk)

    assert burst == [words(100 + n, 5) for n in range(total - 2)]
    assert unfinished > 0, "the burst did not wait for bulk to end"
    assert texts == [words(n) for n in range(total + 4)]
    gave_way = [name for one in started for event in one.events("requests.gave_way") for name in event["requests"]]
    resumed = [event["request"] for one in started for event in one.events("request.resumed")]
    assert gave_way and set(gave_way) <= set(resumed)
    assert sum(said_before) > 0


async def test_a_pool_of_its_own_serves_the_long_lane(fleet):
    """Prompts that are too long for interactive go to the lane that only one worker serves."""
    lanes = {
        "EXTRA_LANES": "long",
        "LANES__INTERACTIVE__MAX_PROMPT_TOKENS": "50",
        "LANES__INTERACTIVE__OVERFLOW": "long",
    }
    short = await fleet.worker(**lanes, WORKER__LANES="interactive,bulk")
    gateway = await fleet.gateway(**lanes)
    async with gateway.client(timeout=60) as client:
        assert not await _serves(client)
        long = await fleet.worker(**lanes, WORKER__LANES="long")
        await wait_until(lambda: _serves(client), "the pool to be known")
        raw = await client.completions.with_raw_response.create(model="echo", prompt="x " * 400, max_tokens=2)
        other = await client.completions.with_raw_response.create(model="echo", prompt="x y", max_tokens=2)

    assert (raw.headers["x-busway-lane"], other.headers["x-busway-lane"]) == ("long", "interactive")
    assert short.status is None and long.status is None


async def _serves(client):
    try:
        await client.completions.create(model="echo", prompt="x " * 400, max_tokens=1)
    except openai.InternalServerError as error:
        assert "lane long" in str(error)
        return False
    return True
