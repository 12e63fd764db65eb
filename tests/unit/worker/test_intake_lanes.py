"""Between two steps, in batches, and when bulk gives way."""

import asyncio

import pytest

from shared.lanes import Lane
from shared.sections import WorkerSettings
from tests.support.waiting import wait_until
from tests.unit.worker.queues import SLOTS, Queue, assignment, between_steps, bulk_of, holding_one, intake

pytestmark = pytest.mark.usefixtures("no_poll")


async def test_what_rings_while_a_step_runs_is_fetched_when_it_ends():
    """Another worker may be able to start it first."""
    queue = Queue()
    async with intake(queue) as (running, table):
        await holding_one(queue, running, table)

        queue.waiting = [assignment(2)]
        running.ring("interactive")
        await asyncio.sleep(0.02)
        assert len(queue.fetches) == 1

        await between_steps(running)
        assert len(table) == 2


async def test_a_broker_that_does_not_answer_holds_no_step_up():
    queue = Queue()
    async with intake(queue) as (running, table):
        await holding_one(queue, running, table)
        queue.reply.clear()
        queue.waiting = [assignment(2)]
        running.ring("interactive")

        await between_steps(running)

        assert len(table) == 1
        queue.reply.set()
        await wait_until(lambda: len(table) == 2, "the fetch to come through")


async def test_bulk_gives_way_to_those_who_wait_and_no_more_than_they_need():
    queue, gave_way = Queue(), []
    lanes = {"interactive": Lane(weight=8), "bulk": Lane(preemptible=True)}
    async with intake(queue, lanes=lanes, give_way=lambda *how: gave_way.append(how)) as (running, table):
        for number in range(SLOTS):
            table.take(bulk_of(number))
        table.settle([], table.take_orders())
        queue.waiting = [assignment(8), assignment(9)]
        running.ring("interactive")

        await between_steps(running)
        await wait_until(lambda: gave_way, "somebody to give way")

    assert gave_way == [(2, {"bulk": SLOTS - 1})]
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
