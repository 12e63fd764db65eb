"""Reports in order, repeated until the broker answers."""

import asyncio
from contextlib import asynccontextmanager

from shared.errors import BrokerUnavailable
from shared.lease import Assignment, Emission, Reported
from shared.wire import Piece
from worker.outlet import Outlet
from worker.table import Report

HELD = Assignment("interactive", "1-1", "a", 1, None, 60_000, 0, 0, 0, ())
NOTHING = Reported()


class Lease:
    """Stands in for the real one: away for a while, then remembers what it was told."""

    def __init__(self, *, away=0, reply=NOTHING):
        self.away = away
        self.reply = reply
        self.told = []
        self.parked = []

    async def report(self, emissions, endings):
        await asyncio.sleep(0)
        if self.away:
            self.away -= 1
            raise BrokerUnavailable("away")
        self.told += [emission.at for emission in emissions]
        return self.reply

    async def park(self, held):
        self.parked.append(held)
        return True


@asynccontextmanager
async def outlet(lease):
    running = Outlet(lease, on_reply=lambda report, reply: running.heard.append((report, reply)))
    running.heard = []
    task = asyncio.create_task(running.run())
    yield running
    await running.flushed()
    task.cancel()


def piece(at):
    return Report(emissions=[Emission(HELD, at, Piece(ids=(1,), text="x"))])


async def test_reports_are_sent_in_order_over_an_outage():
    lease = Lease(away=2)
    async with outlet(lease) as running:
        for at in range(5):
            await running.put(piece(at))

    assert lease.told == [0, 1, 2, 3, 4]
    assert running.refused == 0


async def test_each_reply_is_heard_with_the_report_that_it_answers():
    reply = Reported(unwatched=(HELD,))
    async with outlet(Lease(away=1, reply=reply)) as running:
        await running.put(piece(0))
        await running.put(piece(1))

    assert running.heard == [(piece(0), reply), (piece(1), reply)]


async def test_what_is_refused_is_counted():
    async with outlet(Lease(reply=Reported(refused=(HELD,)))) as running:
        await running.put(piece(0))

    assert [reply.refused for _, reply in running.heard] == [(HELD,)]
    assert running.refused == 1


async def test_a_hand_over_comes_after_the_pieces_of_its_turn():
    lease = Lease()
    async with outlet(lease) as running:
        await running.put(Report(emissions=piece(3).emissions, parked=[HELD]))

    assert (lease.told, lease.parked) == ([3], [HELD])


async def test_a_turn_with_nothing_to_say_costs_no_round_trip():
    lease = Lease(away=10**6)
    async with outlet(lease) as running:
        await running.put(Report())

    assert lease.away == 10**6
