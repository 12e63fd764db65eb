"""The intake: takes requests while there are free slots, a micro-batch at a time."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import structlog

from shared.errors import BrokerUnavailable
from shared.lanes import Lane
from shared.lease import Assignment, Fetched, Lease, Room
from shared.sections import WorkerSettings
from worker.quotas import Quotas
from worker.table import Table

POLL_S = 1.0
"""A bell is a message and can be lost; this bounds how long that goes unnoticed."""
RETRY_S = 0.2
BETWEEN_STEPS_S = 0.02
"""The engine waits this long for a fetch between two steps; what comes later waits for a whole step."""

log = structlog.get_logger()


class Intake:
    """Waits for a bell, a freed slot or the poll, then fetches by lane quotas.

    A worker that hears a bell waits the lane's window for company, unless a full batch has rung already. What rings
    for a lane that is not preemptible while a step runs is fetched when that step ends: so of several workers the
    one takes it that can start it first. If requests wait that preemptible ones keep out of their slots, some of
    those give way. With `batching` dynamic or static a batch runs to its end before the next is taken; a static one
    also waits `batch_wait_ms` to be full.
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
        give_way: Callable[[int, Mapping[str, int]], None] = lambda _count, _most: None,
        takes_work: Callable[[], bool] = lambda: True,
    ) -> None:
        """`give_way` frees so many slots that preemptible lanes hold, of each so many at most, for what was accepted.

        `takes_work` says whether the engine gets on; while it does not, nothing is taken for it.
        """
        self._lease = lease
        self._table = table
        self._lanes = dict(lanes)
        self._settings = settings
        self._slots = slots
        self._accept = accept
        self._give_way = give_way
        self._takes_work = takes_work
        self.quotas = Quotas(lanes, slots=slots)
        self._rung: Counter[str] = Counter()
        self._waiting: Mapping[str, int] = {}
        self._oldest: dict[str, float] = {}  # by lane, on the loop's clock, as of the last fetch
        self._relieved: dict[str, float] = {}  # by lane, when it last got a slot because it starved
        self._rang_in_step = False
        self._fetched = asyncio.Event()
        self._fetched.set()
        self._freed = False
        self._look = asyncio.Event()
        self._closed = False
        self._taking = asyncio.Lock()  # room is counted, requests come in: nobody else may take in between

    def ring(self, lane: str) -> None:
        """A request entered the lane."""
        if lane in self._lanes:
            self._rung[lane] += 1
            if len(self._table) and not self._lanes[lane].preemptible:
                self._rang_in_step = True
            else:
                self._look.set()

    def step_ended(self) -> None:
        """Fetch what rang during the step."""
        if self._rang_in_step:
            if self._settings.batching == "continuous":  # else nothing can be taken before the batch is over
                self._fetched.clear()
            self._look.set()

    async def between_steps(self) -> None:
        """Until that is here, or a moment has passed, whatever the broker does."""
        if not self._fetched.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BETWEEN_STEPS_S):
                    await self._fetched.wait()
            self._fetched.set()

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
            free = self._slots - self._table.used().total()
            if free <= 0 or self._closed or not self._may_take():
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
            if self._may_take():
                self._rung.clear()
            if self._closed:
                async with self._taking:  # what a claim in flight brings must not be lost
                    return
            try:
                async with self._taking:
                    await self._fetch()
                self._fetched.set()
            except BrokerUnavailable as error:
                log.warning("intake.broker_away", error=error.message)
                await asyncio.sleep(RETRY_S)
                self._look.set()

    async def _window(self) -> None:
        """Wait for company; not between two steps, where the engine waits."""
        waits, self._rang_in_step = self._rang_in_step, False
        if not self._rung or (waits and self._settings.batching == "continuous"):
            return
        window_ms = min(self._lanes[lane].window_ms for lane in self._rung)
        if self._settings.batching == "static":
            window_ms = self._settings.batch_wait_ms
        until = asyncio.get_running_loop().time() + window_ms / 1000
        while (
            not self._closed
            and not self._engine_waits()
            and self._rung.total() + sum(self._waiting.values()) < self._slots
            and (left := until - asyncio.get_running_loop().time()) > 0
        ):
            self._look.clear()
            try:
                async with asyncio.timeout(left):
                    await self._look.wait()
            except TimeoutError:
                return

    def _engine_waits(self) -> bool:
        """Something rang while the step ran that has just ended, and the next one waits for it."""
        waits = not self._fetched.is_set()
        self._rang_in_step = self._rang_in_step and not waits
        return waits

    async def _fetch(self) -> None:
        self._freed = False
        # Whatever rang is among what waits, until a fetch says more.
        fetched, self._waiting = None, dict.fromkeys(self._lanes, 1)
        if not self._may_take():
            return
        used = self._table.used()
        starving = self._starving()
        if rooms := self.quotas.rooms(used, starving):
            fetched = await self._take(rooms, self._slots - used.total())
            now = asyncio.get_running_loop().time()
            self._relieved |= {one.lane: now for one in fetched.assignments if one.lane in starving}
        used = self._table.used()
        rooms, spare = self.quotas.reclaim(used, self._all_that_may_wait(fetched))
        if rooms:
            fetched = await self._take(rooms, sum(room.cap for room in rooms))
            self._give_way(len(fetched.assignments), spare)
        if fetched and (fetched.again or (self._freed and any(fetched.waiting.values()))):
            self._look.set()

    async def _take(self, rooms: Sequence[Room], total: int) -> Fetched:
        fetched = await self._lease.fetch(rooms, total)
        self._waiting = fetched.waiting
        now = asyncio.get_running_loop().time()
        self._oldest = {lane: now - age / 1000 for lane, age in fetched.head_age_ms.items() if age}
        if fetched.assignments:
            self._accept(fetched.assignments)
        self.quotas.settle(self._table.used(), fetched.waiting)
        return fetched

    def _all_that_may_wait(self, fetched: Fetched | None) -> dict[str, int]:
        """Requests in each lane, by the last fetch; without one, any number."""
        return fetched.waiting if fetched else dict.fromkeys(self._lanes, self._slots)

    def _may_take(self) -> bool:
        """A batch that is not continuous runs to its end before the next one is taken; so does one before a suspect."""
        is_open = self._settings.batching == "continuous" or not len(self._table)
        return is_open and self._takes_work() and not self._table.has_suspect

    def _starving(self) -> set[str]:
        """Lanes whose oldest request has waited too long. A lane is relieved once in that time, however many wait."""
        now = asyncio.get_running_loop().time()
        return {
            lane
            for lane, since in self._oldest.items()
            if now - max(since, self._relieved.get(lane, since)) > self._lanes[lane].starvation_s
        }
