"""When a worker fetches, and how much, against a lease that only remembers what it was asked."""

import asyncio

import pytest

from tests.support.waiting import wait_until
from tests.unit.worker.queues import SLOTS, Queue, assignment, between_steps, intake

pytestmark = pytest.mark.usefixtures("no_poll")


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
