"""A real worker process on the echo engine, seen from the queue."""

import asyncio
import signal

import pytest

from shared.lease import Lease
from tests.support.direct import Direct
from tests.support.fleet import gather
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

SENTENCE = "one two three four five six seven eight nine ten"


def long_text(words: int) -> str:
    return " ".join(f"w{n}" for n in range(words))


async def settled(direct):
    """Nothing waits, runs or is parked."""
    lease = Lease(direct.redis, model="echo", worker_id="nobody", keep_ms=1000, grace_ms=1000)
    for lane in ("interactive", "bulk"):
        await wait_until(lambda lane=lane: _empty(direct, lease.keys.stream(lane)), f"lane {lane} to be empty")


async def _empty(direct, stream):
    return await direct.redis.xlen(stream) == 0


async def test_requests_of_both_lanes_are_answered_in_full(valkey, fleet):
    await fleet.worker()
    async with Direct(valkey.url) as direct:
        asked = await gather(*(direct.ask(SENTENCE, lane=lane) for lane in ("interactive", "bulk") * 20))

        ends = await gather(*(direct.ended(request) for request in asked))

        assert {direct.text(request) for request in asked} == {SENTENCE}
        assert {(end.end.reason, end.end.usage.completion_tokens) for end in ends} == {("stop", 10)}
        await settled(direct)


async def test_a_running_request_is_cancelled_once_and_its_slot_is_free(valkey, fleet):
    await fleet.worker(WORKER__SLOTS="1", WORKER__ECHO__STEP_MS="20")
    async with Direct(valkey.url) as direct:
        endless = await direct.ask(SENTENCE, ignore_eos=True, max_tokens=1500)
        waits = await direct.ask(SENTENCE)
        await wait_until(lambda: direct.frames[endless], "the first token")

        assert await direct.broker.cancel("echo", "interactive", endless) == "running"
        end = await direct.ended(endless)
        await direct.ended(waits)

        assert end.end.state == "cancelled"
        assert direct.text(waits) == SENTENCE
        assert sum(frame.end is not None for frame in direct.frames[endless]) == 1


async def test_a_request_ends_at_its_deadline(valkey, fleet):
    await fleet.worker(WORKER__ECHO__STEP_MS="20")
    async with Direct(valkey.url) as direct:
        late = await direct.ask(SENTENCE, ignore_eos=True, max_tokens=1500, deadline_ms=500)

        end = await direct.ended(late)

        assert (end.end.state, end.end.error.code) == ("expired", "deadline_exceeded")
        await settled(direct)


async def test_sigterm_finishes_what_fits_and_exits_cleanly(valkey, fleet):
    worker = await fleet.worker(WORKER__ECHO__STEP_MS="10")
    async with Direct(valkey.url) as direct:
        asked = [await direct.ask(long_text(50)) for _ in range(5)]
        await wait_until(lambda: all(direct.frames[request] for request in asked), "all to stream")

        worker.signal(signal.SIGTERM)

        await gather(*(direct.ended(request) for request in asked))
        await wait_until(lambda: worker.status is not None, "the worker to exit")
        assert worker.status == 0
        assert {direct.text(request) for request in asked} == {long_text(50)}


async def test_sigterm_hands_over_what_does_not_fit_with_the_tokens_it_has(valkey, fleet):
    first = await fleet.worker(WORKER__ECHO__STEP_MS="20", WORKER__DRAIN_S="0.2")
    async with Direct(valkey.url) as direct:
        asked = [await direct.ask(long_text(150)) for _ in range(5)]
        await wait_until(lambda: all(direct.frames[request] for request in asked), "all to stream")
        await fleet.worker(WORKER__ECHO__STEP_MS="5")

        first.signal(signal.SIGTERM)

        ends = await gather(*(direct.ended(request) for request in asked))
        assert {direct.text(request) for request in asked} == {long_text(150)}
        assert {end.attempt for end in ends} == {2}
        records = [await direct.broker.record("echo", request) for request in asked]
        assert {record.deaths for record in records} == {0}


async def test_a_killed_worker_s_requests_go_on_from_their_last_token(valkey, fleet):
    first = await fleet.worker(WORKER__ECHO__STEP_MS="20")
    async with Direct(valkey.url) as direct:
        asked = [await direct.ask(long_text(100)) for _ in range(10)]
        await wait_until(lambda: all(direct.frames[request] for request in asked), "all to stream")
        await fleet.worker(WORKER__ECHO__STEP_MS="5")

        first.kill()

        ends = await gather(*(direct.ended(request) for request in asked))
        assert {direct.text(request) for request in asked} == {long_text(100)}
        assert {end.end.usage.completion_tokens for end in ends} == {100}
        await settled(direct)


async def test_a_zombie_writes_nothing(valkey, fleet):
    zombie = await fleet.worker(WORKER__ECHO__STEP_MS="20")
    async with Direct(valkey.url) as direct:
        asked = [await direct.ask(long_text(100)) for _ in range(5)]
        await wait_until(lambda: all(direct.frames[request] for request in asked), "all to stream")
        await fleet.worker(WORKER__ECHO__STEP_MS="20")

        zombie.signal(signal.SIGSTOP)
        await wait_until(lambda: _resumed(direct, asked), "the other worker to take over")
        zombie.signal(signal.SIGCONT)

        await gather(*(direct.ended(request) for request in asked))
        await wait_until(lambda: zombie.events("outlet.refused"), "the zombie to be refused")
        assert {direct.text(request) for request in asked} == {long_text(100)}


async def _resumed(direct, asked):
    records = [await direct.broker.record("echo", request) for request in asked]
    return all(record.attempt == 2 for record in records)


async def test_a_worker_survives_a_restart_of_the_broker(valkey, fleet):
    await fleet.worker(WORKER__ECHO__STEP_MS="20")
    async with Direct(valkey.url) as direct:
        request = await direct.ask(long_text(100))
        await wait_until(lambda: direct.frames[request], "the first token")

        valkey.kill()
        valkey.start()

        await wait_until(lambda: _done(direct, request), "the request to be done")
        frames = await direct.broker.replay("echo", request)
        assert "".join(frame.text for frame in frames) == long_text(100)


async def _done(direct, request):
    record = await direct.broker.record("echo", request)
    return record is not None and record.state == "done"


async def test_an_outage_longer_than_the_lease_is_held_against_nobody(valkey, fleet):
    """While the broker is away every worker looks silent; none may take from the others when it is back."""
    for _ in range(2):
        await fleet.worker(WORKER__ECHO__STEP_MS="30")
    async with Direct(valkey.url) as direct:
        asked = [await direct.ask(long_text(150)) for _ in range(6)]
        await wait_until(lambda: all(direct.frames[request] for request in asked), "all to stream")

        valkey.kill()
        await asyncio.sleep(3)  # the lease is 2 s
        valkey.start()

        for request in asked:
            await wait_until(lambda request=request: _done(direct, request), "the request to be done")
            record = await direct.broker.record("echo", request)
            assert (record.deaths, record.attempt) == (0, 1)
