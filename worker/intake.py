"""The intake: takes requests while there are free slots, a micro-batch at a time."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import structlog

from shared.errors import BrokerUnavailable
from shared.lanes import Lane
from shared.lease import Assignment, Lease
from shared.settings import WorkerSettings
from worker.quotas import Quotas
from worker.table import Table

POLL_S = 1.0
"""A bell is a message and can be lost; this bounds how long that goes unnoticed."""
RETRY_S = 0.2

log = structlog.get_logger()


class Intake:
    """Waits for a bell, a freed slot or the poll, then fetches by lane quotas.

    An idle worker that hears a bell waits the lane's window for company, unless a full batch has rung
    already. A busy one does not: its running step is the window.
    """

    def __init__(
        self,
        lease: Lease,
        table: Table,
        lanes: Mapping[str, Lane],
        settings: WorkerSettings,
        *,
        slots: int,
        accept: Callable[[Sequence[Assignment]], None],
        takes_work: Callable[[], bool] = lambda: True,
    ) -> None:
        """`takes_work` says whether the engine gets on; while it does not, nothing is taken for it."""
        self._lease = lease
        self._table = table
        self._lanes = dict(lanes)
        self._settings = settings
        self._slots = slots
        self._accept = accept
        self._takes_work = takes_work
        self._quotas = Quotas(lanes, slots=slots)
        self._rung: Counter[str] = Counter()
        self._waiting: Mapping[str, int] = {}
        self._oldest: dict[str, float] = {}  # by lane, on the loop's clock, as of the last fetch
        self._freed = False
        self._look = asyncio.Event()
        self._closed = False
        self._taking = asyncio.Lock()  # room is counted, requests come in: nobody else may take in between

    def ring(self, lane: str) -> None:
        """A request entered the lane."""
        if lane in self._lanes:
            self._rung[lane] += 1
            self._look.set()

    def look(self) -> None:
        """Look into all lanes soon: something may have been missed."""
        self._look.set()

    def slot_freed(self) -> None:
        """There is room again; worth a look if requests were left waiting."""
        self._freed = True
        if any(self._waiting.values()):
            self._look.set()

    def close(self) -> None:
        """Take nothing more; `run` returns once a fetch in flight is in."""
        self._closed = True
        self._look.set()

    async def claim(self) -> None:
        """Take over what silent workers hold, as far as there is room."""
        async with self._taking:
            free = self._slots - len(self._table)
            if free <= 0 or self._closed or not self._takes_work():
                return
            lease_ms, max_deaths = int(self._settings.lease_s * 1000), self._settings.max_deaths
            claimed = await self._lease.claim(list(self._lanes), free, lease_ms=lease_ms, max_deaths=max_deaths)
            if claimed:
                log.warning("requests.claimed", requests=[one.id for one in claimed])
                self._accept(claimed)

    async def run(self) -> None:
        """Until closed."""
        while True:
            try:
                async with asyncio.timeout(POLL_S):
                    await self._look.wait()
            except TimeoutError:
                pass  # the poll
            self._look.clear()
            await self._window()
            self._rung.clear()
            if self._closed:
                async with self._taking:  # what a claim in flight brings must not be lost
                    return
            try:
                async with self._taking:
                    await self._fetch()
            except BrokerUnavailable as error:
                log.warning("intake.broker_away", error=error.message)
                await asyncio.sleep(RETRY_S)
                self._look.set()

    async def _window(self) -> None:
        if len(self._table) or not self._rung:
            return
        window_ms = min(self._lanes[lane].window_ms for lane in self._rung)
        until = asyncio.get_running_loop().time() + window_ms / 1000
        while (
            not self._closed
            and self._rung.total() < self._slots
            and (left := until - asyncio.get_running_loop().time()) > 0
        ):
            self._look.clear()
            try:
                async with asyncio.timeout(left):
                    await self._look.wait()
            except TimeoutError:
                return

    async def _fetch(self) -> None:
        self._freed = False
        # Asked first: reckoning the rooms gives the lanes credit.
        rooms = self._quotas.rooms(self._table.used(), self._starving()) if self._takes_work() else []
        if not rooms:
            # Everything waits until a slot is free; whatever rang is among it.
            self._waiting = dict.fromkeys(self._lanes, 1)
            return
        fetched = await self._lease.fetch(rooms, self._slots - len(self._table))
        self._waiting = fetched.waiting
        now = asyncio.get_running_loop().time()
        self._oldest = {lane: now - age / 1000 for lane, age in fetched.head_age_ms.items() if age}
        self._quotas.settle(rooms, Counter(one.lane for one in fetched.assignments), fetched.waiting)
        if fetched.assignments:
            self._accept(fetched.assignments)
        if fetched.again or (self._freed and any(fetched.waiting.values())):
            self._look.set()

    def _starving(self) -> set[str]:
        """Lanes whose oldest request has waited too long."""
        now = asyncio.get_running_loop().time()
        return {lane for lane, since in self._oldest.items() if now - since > self._lanes[lane].starvation_s}
