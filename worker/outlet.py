"""The outlet: one report a step, while the engine already runs the next."""

import asyncio
from collections.abc import Callable

import structlog

from shared.errors import BrokerUnavailable
from shared.lease import Lease, Reported
from worker.table import Report

RETRY_S = 0.2

log = structlog.get_logger()


class Outlet:
    """Sends reports in order. At most one waits: when the broker is slow or away, the engine waits too.

    Repeating a report is harmless, so it is repeated until the broker answers.
    """

    def __init__(self, lease: Lease, *, on_reply: Callable[[Report, Reported], None]) -> None:
        """`on_reply` hears what the broker said to each report."""
        self._lease = lease
        self._on_reply = on_reply
        self._queue: asyncio.Queue[Report] = asyncio.Queue(maxsize=1)
        self.refused = 0
        """Writes that the broker turned away because another attempt owns the request."""

    async def put(self, report: Report) -> None:
        """Hand over one turn's report."""
        if report.emissions or report.endings or report.parked:
            await self._queue.put(report)

    async def flushed(self) -> None:
        """Until everything handed over has been sent."""
        await self._queue.join()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            report = await self._queue.get()
            await self._send(report)
            self._queue.task_done()

    async def _send(self, report: Report) -> None:
        away = False
        while True:
            try:
                reply = await self._lease.report(report.emissions, report.endings)
                for assignment in report.parked:
                    await self._lease.park(assignment)
            except BrokerUnavailable as error:
                if not away:
                    log.warning("outlet.broker_away", error=error.message)
                away = True
                await asyncio.sleep(RETRY_S)
                continue
            if away:
                log.info("outlet.broker_back")
            if reply.refused:
                self.refused += len(reply.refused)
                log.warning("outlet.refused", requests=[one.id for one in reply.refused])
            self._on_reply(report, reply)
            return
