"""One worker's life: load, serve, drain, stop."""

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from shared import wire
from shared.broker import CANCELLED, EXPIRED
from shared.connection import Redis
from shared.errors import BrokerUnavailable
from shared.keys import control_channel
from shared.lanes import Lane
from shared.lease import Assignment, Lease, Reported
from shared.sections import WorkerSettings
from shared.subscriber import Subscriber
from shared.tasks import beside
from shared.version import VERSION
from worker.coalescer import Coalescer
from worker.engine import Engine
from worker.intake import Intake
from worker.loop import Loop
from worker.outlet import Outlet
from worker.table import Release, Report, Table
from worker.turn import turn

DEADLINE_CHECK_S = 0.1
BEATS_PER_LEASE = 5
CLAIMS_PER_LEASE = 4
CHECKS_PER_LEASE = 20
LAPSES_AT = 0.9
"""Of a lease: a worker that could not renew it for so long stops by itself, before others take over."""
RETRY_S = 0.2

log = structlog.get_logger()


class Service:
    """Turns what the lanes hold into what gateways and logs read, through one engine.

    The event loop owns the table; one thread owns the engine. A turn carries orders to the engine, runs
    a step and brings events back. An exception of the engine ends the process: what it held is taken
    over by others when the lease is up, and what brings workers down again and again is given up there.
    """

    def __init__(
        self, engine: Engine, lease: Lease, settings: WorkerSettings, lanes: dict[str, Lane], listener: Redis
    ) -> None:
        self._engine = engine
        self._lease = lease
        self._settings = settings
        self._lanes = lanes
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self._table = Table()
        self._coalescer = Coalescer()
        self._outlet = Outlet(lease, on_reply=self._hear_reply)
        self._intake = Intake(
            lease,
            self._table,
            lanes,
            settings,
            slots=engine.slots,
            accept=self._accept,
            give_way=self._give_way,
            takes_work=lambda: self._engine.is_ready and self._step_s() <= settings.lease_s / 2,
        )
        self._subscriber = Subscriber(
            listener,
            [lease.keys.bell, control_channel(lease.worker_id)],
            on_message=self._hear,
            on_resubscribed=self._intake.look,
        )
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._step_began: float | None = None
        self._stuck_since: float | None = None
        self._leased = asyncio.Event()
        self._leased.set()
        self._last_beat: float | None = None
        self._claims_from = 0.0
        self._steps = 0
        self._busy_s = 0.0
        self._parked = 0
        self._draining = False

    async def run(self) -> None:
        """Serve until stopped, then drain. Raises what the engine raises."""
        lease_s = self._settings.lease_s
        log.info("worker.started", model=self._engine.model, worker=self._lease.worker_id, slots=self._engine.slots)
        lasting = [
            self._subscriber.run(),
            self._drive(),
            self._outlet.run(),
            Loop("heartbeat", lease_s / BEATS_PER_LEASE, self._beat).run(),
            Loop("deadlines", DEADLINE_CHECK_S, self._check_deadlines).run(),
            Loop("lease", lease_s / CHECKS_PER_LEASE, self._check_lease).run(),
            Loop("claim", lease_s / CLAIMS_PER_LEASE, self._claim, jitter=0.3).run(),
        ]
        await beside(lasting, self._serve())
        await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.close)
        with contextlib.suppress(BrokerUnavailable):  # the row in the books has a time to live
            await self._lease.leave()
        log.info("worker.stopped", worker=self._lease.worker_id, steps=self._steps, tokens=self._table.tokens)

    def stop(self) -> None:
        """Take nothing more and drain; `run` then returns."""
        self._draining = True
        self._intake.close()

    async def _serve(self) -> None:
        await self._intake.run()
        await self._drain()

    async def _drain(self) -> None:
        """Finish what can be finished in time; hand over the rest with what it has produced."""
        log.info("worker.draining", running=len(self._table), drain_s=self._settings.drain_s)
        try:
            async with asyncio.timeout(self._settings.drain_s):
                await self._idle.wait()
        except TimeoutError:
            log.info("worker.handing_over", running=len(self._table))
            self._release(self._table.assignments(), "park")
            await self._idle.wait()
        await self._outlet.flushed()

    # The engine's side -----------------------------------------------------------------------------

    async def _drive(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not len(self._table) and not self._table.has_orders:
                self._idle.set()
                await self._work.wait()
                self._work.clear()
            await self._leased.wait()
            await self._begin_suspect()
            orders = self._table.take_orders()
            held = len(self._table)
            self._step_began = time.monotonic()
            events, not_added = await loop.run_in_executor(self._thread, turn, self._engine, orders)
            self._busy_s += self._step_s()
            self._step_began = None
            self._intake.step_ended()
            await asyncio.sleep(0)  # so that what it asks is on its way while the step is accounted for
            self._table.put_back(not_added)
            self._steps += 1
            report = self._coalescer.shape(self._table.settle(events, orders))
            self._intake.quotas.charge(self._engine.spent)
            if len(self._table) < held:
                self._intake.slot_freed()
            await self._outlet.put(report)
            await self._intake.between_steps()

    async def _begin_suspect(self) -> None:
        """When a suspect's turn has come, tell the broker before it runs: its worker may not live to tell."""
        due = self._table.suspect_due
        if due is None:
            return
        try:
            is_ours = await self._lease.begin(due)
        except BrokerUnavailable:
            await asyncio.sleep(RETRY_S)
            return
        if is_ours:
            self._table.begin_suspect()
        else:
            self._release([due], "lost")

    def _step_s(self) -> float:
        """How long the running step has been running; 0 if none is."""
        return 0.0 if self._step_began is None else time.monotonic() - self._step_began

    # The broker's side -----------------------------------------------------------------------------

    def _hear(self, channel: str, body: bytes) -> None:
        if channel == self._lease.keys.bell:
            self._intake.ring(body.decode())
            return
        try:
            control = wire.decode(body, wire.Control)
        except wire.WireError as error:
            log.warning("control.unreadable", error=error.message)
            return
        if control.kind == "cancel":
            how = EXPIRED if control.expired else CANCELLED
            self._release([one for one in self._table.assignments() if one.id == control.id], how)
        elif control.kind == "watch":
            self._coalescer.wake(control.id)
        elif not self._draining:
            log.info("worker.asked_to_drain")
            self.stop()

    def _hear_reply(self, report: Report, reply: Reported) -> None:
        unwatched = [one for one in reply.unwatched if self._table.holds(one)]  # no word of what is over by now
        self._coalescer.learn([one.held for one in report.emissions], unwatched)
        self._release(reply.refused, "lost")
        if reply.orphans:
            log.info("requests.orphaned", requests=[one.id for one in reply.orphans])
            self._release(reply.orphans, CANCELLED)

    def _accept(self, assignments: Sequence[Assignment]) -> None:
        for assignment in sorted(assignments, key=self._lease.is_suspect):  # what comes with a suspect runs before it
            if assignment.attempt > 1:
                log.info("request.resumed", request=assignment.id, attempt=assignment.attempt, lane=assignment.lane)
            is_suspect = self._lease.is_suspect(assignment)
            if is_suspect and self._table.has_suspect:
                self._table.hand_back(assignment)  # two of them would die together
                continue
            if is_suspect:
                log.warning("request.runs_alone", request=assignment.id, deaths=assignment.deaths)
                self._give_way(len(self._table), dict.fromkeys(self._lanes, len(self._table)))
            self._table.take(assignment, alone=is_suspect)
        self._wake()

    def _give_way(self, count: int, most: Mapping[str, int]) -> None:
        """Hand the least advanced requests back to their lanes, of each so many at most, tokens kept."""
        leaving = self._table.least_advanced(count, most)
        if leaving:
            self._parked += len(leaving)
            log.info("requests.gave_way", requests=[one.id for one in leaving])
        self._release(leaving, "park")

    def _release(self, assignments: Sequence[Assignment], how: Release) -> None:
        if assignments:
            self._table.release(assignments, how)
            self._wake()

    def _wake(self) -> None:
        self._idle.clear()
        self._work.set()

    async def _check_deadlines(self) -> None:
        self._release(self._table.late(time.monotonic()), EXPIRED)

    async def _beat(self) -> None:
        """Renew the lease, unless a step has been running for as long as the lease: then the engine hangs.

        One that is then seen to hang for as long again will not come back, and its thread cannot be ended but with the
        process. Where the whole process stood still, the engine gets on as soon as we do.
        """
        lease_s, now = self._settings.lease_s, time.monotonic()
        if self._step_s() > lease_s:
            log.error("engine.stuck", running=len(self._table), step_s=round(self._step_s(), 1))
            self._stuck_since = self._stuck_since or now
            if now - self._stuck_since > lease_s:
                os._exit(1)
            return
        self._stuck_since = None
        ttl_ms = int(lease_s * 1000)
        beat = await self._lease.beat(self._fields(), self._table.assignments(), list(self._lanes), ttl_ms=ttl_ms)
        if self._last_beat is None or now - self._last_beat > lease_s / 2:
            # The broker was away (or we were): everybody looks silent to it until they have had time to speak.
            self._claims_from = now + lease_s / 2
        self._last_beat = now
        if not self._leased.is_set():
            log.info("lease.renewed")
            self._leased.set()
        self._release(beat.lost, "lost")
        self._release(beat.cancelled, CANCELLED)

    async def _check_lease(self) -> None:
        """Whoever cannot renew its lease stops before others take over: what it produced would be refused."""
        lapsed = self._last_beat is not None and time.monotonic() - self._last_beat > LAPSES_AT * self._settings.lease_s
        if lapsed and self._leased.is_set() and len(self._table):
            log.warning("lease.lapsed", running=len(self._table))
            self._leased.clear()

    async def _claim(self) -> None:
        lease_s, now = self._settings.lease_s, time.monotonic()
        if self._last_beat is not None and now - self._last_beat <= lease_s / 2 and now >= self._claims_from:
            await self._intake.claim()

    def _fields(self) -> dict[str, str | int]:
        """What the fleet may know of this worker; counters only grow."""
        return {
            "engine": self._settings.engine,
            "slots": self._engine.slots,
            "free_slots": self._engine.slots - self._table.used().total(),
            "max_model_len": self._engine.max_model_len,
            "vocab_size": getattr(self._engine, "vocab_size", ""),
            "lanes": ",".join(self._lanes),
            "draining": int(self._draining),
            "steps": self._steps,
            "busy_ms": int(self._busy_s * 1000),
            "tokens": self._table.tokens,
            "refused": self._outlet.refused,
            "parked": self._parked,
            "version": VERSION,
        }
