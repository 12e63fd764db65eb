"""Answers: one followed request as an ASGI response, a stream of events or one JSON body.

Both watch the client while they wait: one that leaves takes its unfinished request with it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.admission import Admitted
from gateway.context import Trace, trace_of
from gateway.follower import Follower
from gateway.metrics import Meters
from gateway.openai import sse
from gateway.openai.dialects import Answered, Choice, Dialect
from gateway.openai.errors import Problem
from gateway.relay import Relay
from shared.broker import EXPIRED
from shared.wire import Outcome

STALL_S = 60.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Pace:
    """What an event stream does while there is nothing to say."""

    header_hold_s: float
    keepalive_s: float


class Body(Protocol):
    """What makes an answer's bytes when all of it is there."""

    def body(self, answered: Sequence[Answered]) -> bytes: ...


class Answer(Response):
    """What both kinds of answer share: the follower's end, the client's end, the clocks between."""

    media_type = "application/json"

    def __init__(self, admitted: Admitted, relay: Relay, meters: Meters) -> None:
        self._admitted = admitted
        self._followers = admitted.followers
        self._reader = admitted.reader
        self._relay = relay
        self._meters = meters
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """One of each kind: a stream beats as long as it lives."""
        self.background = None
        headers = {"x-busway-lane": admitted.lane}
        self.status_code = 200
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace = trace_of(scope)
        self._abort = trace.abort
        listener = asyncio.get_running_loop().create_task(self._listen(receive))
        self._after("deadline", self._admitted.deadline_s, self._end_by_deadline)
        self._after("queue", self._admitted.queue_timeout_s, self._end_if_queued)
        try:
            await self._write(scope, receive, send)
        finally:
            for timer in self._timers.values():
                timer.cancel()
            listener.cancel()
            reason = "disconnect" if self._failure is None else "sibling"
            for follower in self._followers:
                self._relay.release(follower, reason)
            self._note(trace)

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError

    async def _listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._reader.leave()

    @property
    def _failure(self) -> Outcome | None:
        """How the first choice that did not go well ended: then the whole answer does not."""
        for follower in self._followers:
            if follower.outcome is not None and follower.outcome.state != "done":
                return follower.outcome
        return None

    @property
    def _is_whole(self) -> bool:
        return all(follower.outcome is not None for follower in self._followers)

    @property
    def _tokens(self) -> int:
        return sum(follower.tokens for follower in self._followers)

    def _end_by_deadline(self) -> None:
        for follower in self._followers:
            self._relay.give_up(follower, EXPIRED, "deadline")

    def _end_if_queued(self) -> None:
        for follower in self._followers:
            self._relay.give_up_if_queued(follower)

    def _after(self, kind: str, delay_s: float, act: Callable[[], None]) -> None:
        self._timers[kind] = asyncio.get_running_loop().call_later(delay_s, act)

    async def _refuse(self, failure: Outcome, scope: Scope, receive: Receive, send: Send) -> None:
        """No header has been sent: the failure gets a status of its own."""
        response = Problem.of_outcome(failure).response()
        response.headers.update(self.headers)
        response.headers["content-type"] = "application/json"
        response.headers["content-length"] = str(len(response.body))
        await response(scope, receive, send)

    def _note(self, trace: Trace) -> None:
        """The end, for the log and the metrics."""
        meters, firsts = self._meters, [one.first_token_at for one in self._followers if one.first_token_at is not None]
        outcome = self._failure or (self._followers[0].outcome if self._is_whole else None)
        meters.whole.observe(time.monotonic() - trace.started)
        meters.generation_tokens.inc(self._tokens)
        if firsts:
            first_token_s = min(firsts) - trace.started
            meters.first_token.observe(first_token_s)
            trace.fields["first_token_ms"] = round(first_token_s * 1000, 1)
        if outcome is None:
            trace.outcome = "cancelled"
        elif outcome.state == "done":
            trace.outcome = outcome.reason or "stop"
        else:
            trace.outcome = Problem.of_outcome(outcome).code
        if outcome is not None and outcome.queued_ms is not None:
            meters.queue_wait.observe(outcome.queued_ms / 1000)
            trace.fields["queue_ms"] = outcome.queued_ms
        usages = [one.outcome.usage for one in self._followers if one.outcome is not None and one.outcome.usage]
        if usages:
            trace.fields["prompt_tokens"] = sum(usage.prompt_tokens for usage in usages)
            meters.prompt_tokens.inc(trace.fields["prompt_tokens"])
        trace.fields.update(tokens=self._tokens, attempts=max(one.attempt for one in self._followers))
        if len(self._followers) > 1:
            trace.fields["parts"] = len(self._followers)
        if self._admitted.ahead is not None:
            trace.fields["ahead"] = self._admitted.ahead


class JsonAnswer(Answer):
    """The whole answer, when it is whole. Its status is always the true one, so no byte is sent before."""

    def __init__(self, admitted: Admitted, writer: Body, relay: Relay, meters: Meters) -> None:
        super().__init__(admitted, relay, meters)
        self._writer = writer

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        while not (self._failure or self._is_whole or self._reader.gone):
            await self._reader.changed()
        if self._failure is not None:
            await self._refuse(self._failure, scope, receive, send)
            return
        answered = [(one.read(), one.outcome, one.tokens) for one in self._followers if one.outcome is not None]
        if len(answered) < len(self._followers):
            return
        body = self._writer.body(answered)
        self.headers["content-length"] = str(len(body))
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body})


class Running:
    """One choice of a stream: what has been said of it."""

    def __init__(self, follower: Follower, choice: Choice) -> None:
        self._follower = follower
        self._choice = choice
        self._last_at: float | None = None
        self._is_closed = False

    def events(self, now: float, meters: Meters) -> bytes:
        """What is new; with the end of the choice, its last event."""
        outcome, frames = self._follower.outcome, self._follower.read()
        ends = outcome is not None and outcome.state == "done" and not self._is_closed
        if not (frames or ends):
            return b""
        opening = self._choice.opening if self._last_at is None else b""
        if frames and self._last_at is not None:
            gap_s = (now - self._last_at) / len(frames)
            for _ in frames:
                meters.between.observe(gap_s)
        self._last_at = now
        events = opening + (self._choice.text(frames) if frames else b"")
        if ends and outcome is not None:
            self._is_closed = True
            events += self._choice.finish(outcome)
        return events


class EventStream(Answer):
    """The answer as it is made. Its status waits a moment for the first token, so that early failures have one."""

    media_type = "text/event-stream"

    def __init__(self, admitted: Admitted, dialect: Dialect, relay: Relay, meters: Meters, pace: Pace) -> None:
        super().__init__(admitted, relay, meters)
        self._dialect = dialect
        self._pace = pace
        self._hold_is_over = pace.header_hold_s == 0
        self._ping_is_due = False
        self._last_sent: float | None = None
        self._choices = [
            Running(follower, choice) for follower, choice in zip(self._followers, dialect.choices, strict=True)
        ]
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
        events = [said for choice in self._choices if (said := choice.events(now, self._meters))]
        self._reader.was_read()
        return events[0] if len(events) == 1 else b"".join(events)

    def _last_events(self, failure: Outcome | None) -> bytes:
        if failure is not None:
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
