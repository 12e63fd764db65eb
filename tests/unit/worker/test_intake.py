"""When a worker fetches, and how much, against a lease that only remembers what it was asked."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from shared.errors import BrokerUnavailable
from shared.lanes import Lane
from shared.lease import Assignment, Fetched
from shared.settings import WorkerSettings
from shared.wire import GenerateRequest, Sampling
from tests.support.waiting import wait_until
from worker.intake import Intake
from worker.table import Table

SLOTS = 4


def assignment(number):
    request = GenerateRequest(sampling=Sampling(seed=1), prompt="hi")
    return Assignment("interactive", f"1-{number}", f"r{number}", 1, request, "", 60_000, 0, 0, ())


class Queue:
    """Stands in for the lease: hands out what was put in."""

    def __init__(self):
        self.waiting = []
        self.orphans = []
        self.fetches = []
        self.taken = []
        self.again = False
        self.away = 0
        self.reply = asyncio.Event()
        self.reply.set()

    async def fetch(self, rooms, total):
        self.fetches.append(total)
        if self.away:
            self.away -= 1
            raise BrokerUnavailable("away")
        taken, self.waiting = self.waiting[:total], self.waiting[total:]
        self.taken.append(len(taken))
        await asyncio.sleep(0)
        await self.reply.wait()
        return Fetched(taken, {"interactive": len(self.waiting), "bulk": 0}, {"interactive": 0, "bulk": 0}, self.again)

    async def claim(self, lanes, total, *, lease_ms, max_deaths):
        taken, self.orphans = self.orphans[:total], self.orphans[total:]
        return taken


@pytest.fixture(autouse=True)
def poll(monkeypatch):
    """No poll comes to the rescue, except where a test is about it."""
    monkeypatch.setattr("worker.intake.POLL_S", 3600)


@asynccontextmanager
async def intake(queue, window_ms=0.0, *, lanes=None, settings=None, **more):
    table = Table()
    lanes = lanes or {"interactive": Lane(weight=8, window_ms=window_ms), "bulk": Lane()}

    def accept(assignments):
        for one in assignments:
            table.take(one)

    running = Intake(queue, table, lanes, settings or WorkerSettings(), slots=SLOTS, accept=accept, **more)
    task = asyncio.create_task(running.run())
    yield running, table
    running.close()
    await task


async def between_steps(running):
    running.step_ended()
    await running.between_steps()


async def test_a_bell_fetches_at_once_without_waiting_for_the_poll():
    queue = Queue()
    async with intake(queue) as (running, table):
        queue.waiting = [assignment(1)]
        running.ring("interactive")

        await wait_until(lambda: len(table) == 1, "the request")


async def test_a_lost_bell_is_made_up_for_by_the_poll(monkeypatch):
    monkeypatch.setattr("worker.intake.POLL_S", 0.05)
    queue = Queue()
    async with intake(queue) as (_, table):
        queue.waiting = [assignment(1)]

        await wait_until(lambda: len(table) == 1, "the poll to find it")


async def test_it_never_takes_more_than_its_free_slots():
    queue = Queue()
    async with intake(queue) as (running, table):
        queue.waiting = [assignment(n) for n in range(10)]
        running.ring("interactive")
        await wait_until(lambda: len(table) == SLOTS, "a full table")

        running.ring("interactive")
        await running.claim()

        assert len(table) == SLOTS
        assert len(queue.waiting) == 10 - SLOTS


async def test_a_freed_slot_is_filled_from_what_was_left_waiting():
    queue = Queue()
    async with intake(queue) as (running, table):
        queue.waiting = [assignment(n) for n in range(SLOTS + 1)]
        running.ring("interactive")
        await wait_until(lambda: len(table) == SLOTS, "a full table")

        table.release(table.assignments()[:1], "lost")
        table.settle([], table.take_orders())
        running.slot_freed()

        await wait_until(lambda: not queue.waiting, "the last one to be taken")


async def test_a_slot_that_is_freed_while_a_fetch_is_under_way_is_not_forgotten():
    queue = Queue()
    async with intake(queue) as (running, table):
        queue.waiting = [assignment(n) for n in range(SLOTS)]
        running.ring("interactive")
        await wait_until(lambda: len(table) == SLOTS, "a full table")
        table.release(table.assignments()[:1], "lost")
        table.settle([], table.take_orders())
        queue.waiting = [assignment(n) for n in range(10, 12)]
        queue.reply.clear()
        running.ring("interactive")
        await between_steps(running)
        await wait_until(lambda: len(queue.fetches) == 2, "the fetch to be under way")

        table.release(table.assignments()[:1], "lost")
        table.settle([], table.take_orders())
        running.slot_freed()
        queue.reply.set()

        await wait_until(lambda: not queue.waiting, "the last one to be taken")


async def test_a_row_of_dead_entries_is_gone_through_at_once():
    queue = Queue()
    queue.again = True
    async with intake(queue) as (running, table):
        running.ring("interactive")
        await wait_until(lambda: len(queue.fetches) > 3, "more looks without another bell")

        queue.waiting = [assignment(1)]

        await wait_until(lambda: len(table) == 1, "the living one behind them")
        queue.again = False


async def test_nothing_is_taken_for_an_engine_that_hangs():
    queue = Queue()
    async with intake(queue, takes_work=lambda: False) as (running, table):
        queue.waiting, queue.orphans = [assignment(1)], [assignment(2)]
        running.ring("interactive")
        await asyncio.sleep(0.05)
        await running.claim()

        assert (queue.fetches, len(table)) == ([], 0)


async def test_an_idle_worker_waits_its_window_for_company():
    queue = Queue()
    async with intake(queue, window_ms=300) as (running, table):
        queue.waiting = [assignment(1)]
        running.ring("interactive")
        await asyncio.sleep(0)
        queue.waiting.append(assignment(2))
        running.ring("interactive")

        await wait_until(lambda: len(table) == 2, "both")
        assert queue.taken == [2]  # one fetch, after the window, found both


async def test_a_full_batch_ends_the_window_early():
    queue = Queue()
    async with intake(queue, window_ms=1000) as (running, table):
        queue.waiting = [assignment(n) for n in range(SLOTS)]
        for _ in range(SLOTS):
            running.ring("interactive")

        await wait_until(lambda: len(table) == SLOTS, "the batch")


async def test_a_broker_that_is_away_is_asked_again():
    queue = Queue()
    queue.away = 2
    async with intake(queue) as (running, table):
        queue.waiting = [assignment(1)]
        running.ring("interactive")

        await wait_until(lambda: len(table) == 1, "the broker to be back")


async def test_a_claim_takes_over_what_there_is_room_for():
    queue = Queue()
    async with intake(queue) as (running, table):
        queue.orphans = [assignment(n) for n in range(SLOTS + 2)]

        await running.claim()

        assert len(table) == SLOTS
        assert len(queue.orphans) == 2


async def test_once_closed_it_takes_nothing_more():
    queue = Queue()
    async with intake(queue) as (running, table):
        running.close()
        queue.waiting, queue.orphans = [assignment(1)], [assignment(2)]

        running.ring("interactive")
        await running.claim()

    assert len(table) == 0


@pytest.mark.parametrize("lane", ["long", ""])
async def test_the_bell_of_a_lane_it_does_not_serve_is_not_heard(lane):
    queue = Queue()
    async with intake(queue) as (running, _):
        running.ring(lane)
        await asyncio.sleep(0.05)

        assert queue.fetches == []


async def test_what_rings_while_a_step_runs_is_fetched_when_it_ends():
    """Another worker may be able to start it first."""
    queue = Queue()
    async with intake(queue) as (running, table):
        queue.waiting = [assignment(1)]
        running.ring("interactive")
        await wait_until(lambda: len(table) == 1, "the first one to be taken")

        queue.waiting = [assignment(2)]
        running.ring("interactive")
        await asyncio.sleep(0.02)
        assert len(queue.fetches) == 1

        await between_steps(running)
        assert len(table) == 2


async def test_a_broker_that_does_not_answer_holds_no_step_up():
    queue = Queue()
    async with intake(queue) as (running, table):
        queue.waiting = [assignment(1)]
        running.ring("interactive")
        await wait_until(lambda: len(table) == 1, "the first one to be taken")
        queue.reply.clear()
        queue.waiting = [assignment(2)]
        running.ring("interactive")

        await between_steps(running)

        assert len(table) == 1
        queue.reply.set()
        await wait_until(lambda: len(table) == 2, "the fetch to come through")


def bulk_of(number):
    return replace(assignment(number), lane="bulk")


async def test_bulk_gives_way_to_those_who_wait_and_no_more_than_they_need():
    queue, gave_way = Queue(), []
    lanes = {"interactive": Lane(weight=8), "bulk": Lane(preemptible=True)}
    async with intake(queue, lanes=lanes, give_way=gave_way.append) as (running, table):
        for number in range(SLOTS):
            table.take(bulk_of(number))
        table.settle([], table.take_orders())
        queue.waiting = [assignment(8), assignment(9)]
        running.ring("interactive")

        await between_steps(running)
        await wait_until(lambda: gave_way, "somebody to give way")

    assert gave_way == [2]
    assert table.used() == {"bulk": SLOTS, "interactive": 2}


@pytest.mark.parametrize("batching", ["dynamic", "static"])
async def test_a_batch_runs_to_its_end_before_the_next_is_taken(batching):
    queue, policy = Queue(), WorkerSettings(batching=batching, batch_wait_ms=10)
    async with intake(queue, settings=policy) as (running, table):
        queue.waiting = [assignment(1), assignment(2)]
        running.ring("interactive")
        await wait_until(lambda: len(table) == 2, "a batch")
        queue.waiting = [assignment(3)]
        running.ring("interactive")
        await between_steps(running)
        running.slot_freed()
        await asyncio.sleep(0.03)
        assert len(table) == 2

        table.release(table.assignments(), "lost")
        table.settle([], table.take_orders())
        running.slot_freed()
        await wait_until(lambda: len(table) == 1, "the next batch")


async def test_a_static_batch_waits_to_be_full():
    queue = Queue()
    async with intake(queue, settings=WorkerSettings(batching="static", batch_wait_ms=60_000)) as (running, table):
        for number in range(SLOTS):
            queue.waiting.append(assignment(number))
            running.ring("interactive")
            await asyncio.sleep(0.01)
            assert len(table) == (SLOTS if number == SLOTS - 1 else 0)
