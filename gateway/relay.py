"""The relay: hears this process's channel and hands every frame to who follows its request."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from gateway.errands import Errands
from gateway.follower import LOST, Follower, Verdict
from gateway.metrics import Metrics
from shared import ids, keys, wire
from shared.broker import CANCELLED, EXPIRED, Broker, Record
from shared.connection import Redis
from shared.errors import BrokerUnavailable, WireError
from shared.subscriber import Subscriber

SIBLING = "sibling"
"""Why a part is taken back whose request has been refused or has failed."""
SWEEP_S = 1.0
QUIET_SWEEPS = 5
PROBES_PER_SWEEP = 100
PROBES_AT_ONCE = 8
CANCEL_RETRIES_S = (0.2, 1.0, 5.0)
CLOSE_S = 2.0
RESTART_S = 0.5

ABSENT = wire.Outcome(
    state="failed",
    error=wire.ErrorInfo(code="no_workers", message="No worker serves the model any more; send the request again."),
)

log = structlog.get_logger()


class Relay:
    """All followers of one process, one subscription for them, and the means to make good what it missed."""

    def __init__(self, broker: Broker, listener: Redis, metrics: Metrics) -> None:
        self.channel = keys.gateway_channel(ids.boot_id())
        self._broker = broker
        self._metrics = metrics
        self._followers: dict[str, list[Follower]] = {}
        self._last_to_leave: dict[str, Follower] = {}
        """Of requests that nobody follows and that have not been taken back yet."""
        self._errands = Errands()
        self._probes = asyncio.Semaphore(PROBES_AT_ONCE)
        self._subscriber = Subscriber(
            listener, [self.channel], on_message=self._hear, on_resubscribed=self._on_resubscribed
        )
        self._losses = 0
        """Times at which something may have been missed."""

    @property
    def listening(self) -> bool:
        """The channel has been subscribed; before that no request may be accepted."""
        return self._subscriber.ready.is_set()

    async def until_listening(self, within_s: float) -> None:
        """Returns once it listens, or when the time is up: Redis need not be there."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._subscriber.ready.wait()

    def count_dropped(self) -> None:
        self._metrics.dropped.inc()

    @property
    def followers(self) -> int:
        return sum(map(len, self._followers.values()))

    def _all(self) -> list[Follower]:
        return [follower for some in self._followers.values() for follower in some]

    def loops(self) -> list[Coroutine[Any, Any, None]]:
        """What must run all the time."""
        return [self._again(self._subscriber.run), self._again(self._sweep)]

    async def close(self) -> None:
        """Let errands end: cancels that are on their way."""
        await self._errands.close(CLOSE_S)

    def follow(self, follower: Follower) -> int:
        """Route frames to it from now on; must come before the request enters a lane. Returns what `accept` needs."""
        self._followers.setdefault(follower.id, []).append(follower)
        self._metrics.in_flight.labels(follower.lane).inc()
        return self._losses

    def accept(self, follower: Follower, losses: int) -> None:
        """The broker has taken the request."""
        follower.accepted = True
        if follower.outcome is not None:  # given up in the meantime, with a cancel that may have come too early
            self._errands.send("cancel", self._cancel(follower, CANCELLED))
        if losses != self._losses:
            self._repair(follower)

    async def join(self, follower: Follower) -> bool:
        """Follow a request that is there already, from what the follower has on. False if nothing is known of it."""
        self.follow(follower)
        try:
            found = await self._broker.watch(follower.model, follower.id, self.channel)
        except BaseException:
            self.release(follower)  # the channel may be on its list: only the reply is missing
            raise
        if not found:
            self._forget(follower)
            return False
        self.accept(follower, -1)
        return True

    def release(self, follower: Follower, reason: str = "disconnect", *, grace_s: float = 0.0) -> None:
        """Nobody reads it any more. What has not ended is cancelled, once, unless others read it or want it kept.

        Its client may come back within the grace, to this gateway or another. What a refused or failed sibling leaves
        behind is of no use to anybody, and is cancelled whoever wanted it kept.
        """
        if self._forget(follower) and follower.outcome is None and not self._is_followed(follower):
            self._last_to_leave[follower.id] = follower
            self._errands.send("leave", self._leave(follower, reason, grace_s))

    def drop(self, follower: Follower) -> None:
        """Forget one whose request was refused."""
        self._forget(follower)

    def give_up(self, follower: Follower, outcome: wire.Outcome, reason: str) -> None:
        """End it here and now, and take its request back unless somebody else wants it."""
        if follower.outcome is None:
            follower.end(outcome)
            if not self._is_followed(follower):
                self._send_cancel(follower, EXPIRED if outcome is EXPIRED else CANCELLED, reason)

    def give_up_model(self, model: str) -> None:
        """Nobody has served it for too long: what waits for it will not go on."""
        for follower in self._all():
            if follower.model == model:
                self.give_up(follower, ABSENT, "no_workers")

    def leave_all(self, outcome: wire.Outcome) -> None:
        """End all here. Those whose clients may return keep their requests, for another gateway to follow."""
        for follower in self._all():
            if follower.reader.may_return:
                follower.end(outcome)
            else:
                self.give_up(follower, outcome, "drain")

    def _is_followed(self, follower: Follower) -> bool:
        """Somebody else here still waits for the same request."""
        return any(one is not follower and one.outcome is None for one in self._followers.get(follower.id, ()))

    def _forget(self, follower: Follower) -> bool:
        """False if it was forgotten before."""
        some = self._followers.get(follower.id, [])
        if follower not in some:
            return False
        some.remove(follower)
        if not some:
            del self._followers[follower.id]
        self._metrics.in_flight.labels(follower.lane).dec()
        return True

    def give_up_if_queued(self, follower: Follower) -> None:
        """Its time in the queue is over: give it up unless a worker has taken it."""
        if follower.outcome is None and follower.tokens == 0:
            self._errands.send("queue-timeout", self._look_in_queue(follower))

    def _hear(self, _channel: str, body: bytes) -> None:
        try:
            frames = wire.decode(body, wire.Frames).frames
        except WireError as error:
            log.warning("frames.unreadable", error=str(error))
            return
        followers = self._followers
        for frame in frames:
            for follower in followers.get(frame.id, ()):
                verdict = follower.offer(frame)
                if verdict is not Verdict.TAKEN:
                    self._metrics.odd_frames[verdict].inc()
                    if verdict is Verdict.GAP:
                        self._repair(follower)

    def _on_resubscribed(self) -> None:
        self._losses += 1
        self._metrics.resubscribes.inc()
        log.info("relay.resubscribed", followers=self.followers)
        for follower in self._all():
            self._repair(follower)

    def _repair(self, follower: Follower) -> None:
        if follower.accepted and follower.outcome is None and not follower.repairing:
            follower.repairing = True
            self._errands.send("repair", self._catch_up(follower))

    async def _catch_up(self, follower: Follower) -> None:
        """Until the follower holds all that is known to exist, and nothing more may have been missed meanwhile."""
        try:
            while follower.outcome is None and follower in self._followers.get(follower.id, ()):
                async with self._probes:
                    losses = self._losses
                    wanted, after = follower.wanted, follower.tokens
                    record = await self._broker.record(follower.model, follower.id)
                    started = record is not None and record.attempt > 0
                    logged = await self._broker.replay(follower.model, follower.id, after) if started else []
                if not follower.catch_up(logged, record, wanted=wanted):
                    self._lose(follower, record)
                if follower.tokens > after:
                    self._metrics.gaps_filled.inc()
                if follower.tokens >= follower.wanted and losses == self._losses:
                    return
        except (BrokerUnavailable, WireError) as error:
            log.warning("repair.failed", request=follower.id, error=str(error))  # the sweep comes back to it
        finally:
            follower.repairing = False

    def _lose(self, follower: Follower, record: Record | None) -> None:
        """What it lacks is nowhere. If its request still runs, it must not run on for nobody."""
        if record is None or record.state in wire.TERMINAL:
            follower.end(LOST)
        else:
            log.warning("request.lost", request=follower.id, tokens=follower.tokens, wanted=follower.wanted)
            self.give_up(follower, LOST, "lost")

    async def _sweep(self) -> None:
        """Look after those that heard nothing for a while, the longest first, a bounded number each time."""
        while True:
            await asyncio.sleep(SWEEP_S)
            quiet = []
            for follower in self._all():
                follower.quiet += 1
                if follower.quiet >= QUIET_SWEEPS:
                    quiet.append(follower)
            quiet.sort(key=lambda follower: -follower.quiet)
            for follower in quiet[:PROBES_PER_SWEEP]:
                self._repair(follower)

    async def _look_in_queue(self, follower: Follower) -> None:
        try:
            record = await self._broker.record(follower.model, follower.id)
        except BrokerUnavailable:
            self.give_up(follower, EXPIRED, "queue_timeout")
            return
        if record is None:
            follower.end(LOST)
        elif record.state == "queued":
            self.give_up(follower, EXPIRED, "queue_timeout")

    def _send_cancel(self, follower: Follower, outcome: wire.Outcome, reason: str) -> None:
        self._metrics.cancels.labels(reason).inc()
        self._errands.send("cancel", self._cancel(follower, outcome))

    async def _leave(self, follower: Follower, reason: str, grace_s: float) -> None:
        if grace_s:
            await asyncio.sleep(grace_s)
        if self._last_to_leave.get(follower.id) is not follower:
            return  # its client came back and left again: that grace is not over
        del self._last_to_leave[follower.id]
        leaves = "" if reason == SIBLING else self.channel
        if await self._cancel(follower, CANCELLED, leaves=leaves) != "kept":
            self._metrics.cancels.labels(reason).inc()

    async def _cancel(self, follower: Follower, outcome: wire.Outcome, *, leaves: str | None = None) -> str:
        """Tried a few times; should Redis stay away, the request's own deadline ends it. Returns what was found.

        A request that Redis does not know may still be on its way there, unless its coming was confirmed.
        """
        found = "unknown"
        for pause_s in (*CANCEL_RETRIES_S, None):
            was_accepted = follower.accepted
            if self._is_followed(follower):
                return "kept"  # its client came back to us
            try:
                found = await self._broker.cancel(
                    follower.model,
                    follower.lane,
                    follower.id,
                    outcome,
                    leaves=self.channel if leaves is None else leaves,
                )
            except BrokerUnavailable as error:
                if pause_s is None:
                    log.warning("cancel.failed", request=follower.id, error=str(error))
            else:
                if found != "unknown" or was_accepted:
                    break
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        return found

    async def _again(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A defect in a callback must not end the relay for good: say so, start over, and look after everyone."""
        while True:
            try:
                await work()
            except Exception:
                log.exception("relay.failed")
                await asyncio.sleep(RESTART_S)
                self._on_resubscribed()
