"""The answer as a stream of server-sent events."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from starlette.types import Receive, Scope, Send

from gateway.admission import Admitted
from gateway.answer import Answer
from gateway.follower import Follower
from gateway.metrics import Meters
from gateway.openai import sse
from gateway.openai.dialects import Choice, Dialect
from gateway.openai.errors import Problem
from gateway.relay import Relay
from shared.wire import Outcome

STALL_S = 60.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Pace:
    """What an event stream does while there is nothing to say."""

    header_hold_s: float
    keepalive_s: float
    grace_s: float = 0.0
    """A client that lost its connection may come back within this time."""


class Running:
    """One choice of a stream: what has been said of it."""

    def __init__(self, follower: Follower, choice: Choice) -> None:
        self._follower = follower
        self._choice = choice
        self._opening = choice.opening if follower.tokens == 0 else b""  # who has read some of it has seen that
        self._last_at: float | None = None
        self._is_closed = False
        self.position = follower.tokens
        """Tokens that have been told."""

    def events(self, now: float, meters: Meters, stamp: Callable[[], bytes] | None) -> bytes:
        """What is new; with the end of the choice, its last event. `stamp` gives the id of an event, if it has one."""
        outcome, frames = self._follower.outcome, self._follower.read()
        ends = outcome is not None and outcome.state == "done" and not self._is_closed
        if not (frames or ends):
            return b""
        if frames and self._last_at is not None:
            gap_s = (now - self._last_at) / len(frames)
            for _ in frames:
                meters.between.observe(gap_s)
        self._last_at = now
        events, self._opening = self._opening, b""
        if stamp is None:
            events += self._choice.text(frames) if frames else b""
        else:
            for frame in frames:
                self.position = frame.at + len(frame.ids)
                events += stamp() + self._choice.text([frame])
        if ends and outcome is not None:
            self._is_closed = True
            if stamp is not None:
                self.position = self._follower.tokens
                events += stamp()
            events += self._choice.finish(outcome)
        return events


class EventStream(Answer):
    """The answer as it is made. Its status waits a moment for the first token, so that early failures have one."""

    media_type = "text/event-stream"

    def __init__(
        self,
        admitted: Admitted,
        dialect: Dialect,
        relay: Relay,
        meters: Meters,
        pace: Pace,
        *,
        with_ids: bool = False,
    ) -> None:
        """`with_ids`: each event says how many tokens of each choice have been told: where to go on after it."""
        super().__init__(admitted, relay, meters, pace.grace_s)
        self._dialect = dialect
        self._pace = pace
        self._hold_is_over = pace.header_hold_s == 0
        self._ping_is_due = False
        self._last_sent: float | None = None
        self._choices = [
            Running(follower, choice) for follower, choice in zip(self._followers, dialect.choices, strict=True)
        ]
        self._stamp = self._id if with_ids else None
        self._reader.on_stall = self._cut
        self.headers["content-type"] = "text/event-stream; charset=utf-8"
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        reader = self._reader
        self._after("hold", self._pace.header_hold_s, self._end_hold)
        while not reader.gone:
            failure = self._failure
            if failure is not None and self._last_sent is None:
                await self._refuse(failure, scope, receive, send)
                return
            # Before the events are taken: what comes later wakes the reader again.
            is_over = failure is not None or self._is_whole
            events = self._events()
            if self._last_sent is None:
                if not (events or is_over or self._hold_is_over):
                    await reader.changed()
                    continue
                await self._begin(send)
            if is_over:
                await self._send(send, events + self._last_events(failure), more=False)
                return
            if events:
                await self._send(send, events)
            elif self._ping_is_due:
                self._ping_is_due = False
                await self._send(send, sse.PING)
            else:
                await reader.changed()

    def _events(self) -> bytes:
        """What all choices have to say since the last time."""
        now = time.monotonic()
        events = [said for choice in self._choices if (said := choice.events(now, self._meters, self._stamp))]
        self._reader.was_read()
        return events[0] if len(events) == 1 else b"".join(events)

    def _id(self) -> bytes:
        return sse.event_id([choice.position for choice in self._choices])

    def _last_events(self, failure: Outcome | None) -> bytes:
        if failure is not None:
            self._release()
            return Problem.of_outcome(failure).event(self._admitted.id)
        ends = [(one.outcome, one.tokens) for one in self._followers if one.outcome is not None]
        return self._dialect.closing(ends)

    async def _begin(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._last_sent = time.monotonic()
        self._after("beat", self._pace.keepalive_s, self._beat)
        if self._hold_is_over and self._tokens == 0 and not self._is_whole:
            await self._send(send, sse.QUEUED)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        """Returns when the connection has room again; until then the reader counts as stuck."""
        self._last_sent = time.monotonic()
        self._reader.writing = True
        await send({"type": "http.response.body", "body": body, "more_body": more})
        self._reader.writing = False

    def _end_hold(self) -> None:
        self._hold_is_over = True
        self._reader.wake()

    def _beat(self) -> None:
        """Once in a keep-alive time: is the stream silent, or its client deaf?"""
        assert self._last_sent is not None, "beats begin with the headers"
        silent_s = time.monotonic() - self._last_sent
        if self._reader.writing and silent_s > STALL_S:
            self._cut()
            return
        if silent_s >= self._pace.keepalive_s:
            self._ping_is_due = True
            self._reader.wake()
            silent_s = 0.0
        self._after("beat", self._pace.keepalive_s - silent_s, self._beat)

    def _cut(self) -> None:
        """The client does not read: what is buffered for it must not grow, nor its request run on."""
        if not self._reader.gone:
            log.warning("client.stalled", tokens=self._tokens)
            self._reader.gone = True
            self._relay.count_dropped()
            if self._abort is not None:
                self._abort()
