"""An intake and a lease that only remembers what it was asked."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

from shared.errors import BrokerUnavailable
from shared.lanes import Lane
from shared.lease import Assignment, Fetched
from shared.sections import WorkerSettings
from shared.wire import GenerateRequest, Sampling
from tests.support.waiting import wait_until
from worker.intake import Intake
from worker.table import Table

SLOTS = 4


def assignment(number):
    request = GenerateRequest(sampling=Sampling(seed=1), prompt="hi")
    return Assignment("interactive", f"1-{number}", f"r{number}", 1, request, 60_000, 0, 0, 0, ())


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


async def holding_one(queue, running, table):
    """A request is being worked on."""
    queue.waiting = [assignment(1)]
    running.ring("interactive")
    await wait_until(lambda: len(table) == 1, "the first one to be taken")


def bulk_of(number):
    return replace(assignment(number), lane="bulk")
