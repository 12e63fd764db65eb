"""Answers: one followed request as an ASGI response, a stream of events or one JSON body.

Both watch the client while they wait: one that leaves takes its unfinished request with it.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.admission import Admitted
from gateway.context import Trace, trace_of
from gateway.metrics import Meters
from gateway.openai import sse
from gateway.openai.dialects import Dialect
from gateway.openai.errors import Problem
from gateway.relay import Relay
from shared.broker import EXPIRED

STALL_S = 60.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Pace:
    """What an event stream does while there is nothing to say."""

    header_hold_s: float
    keepalive_s: float


class Answer(Response):
    """What both kinds of answer share: the follower's end, the client's end, the clocks between."""

    media_type = "application/json"

    def __init__(self, admitted: Admitted, dialect: Dialect, relay: Relay, meters: Meters) -> None:
        self._admitted = admitted
        self._follower = admitted.follower
        self._dialect = dialect
        self._relay = relay
        self._meters = meters
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """One of each kind: a stream beats as long as it lives."""
        self.background = None
        headers = {"x-busway-lane": admitted.follower.lane}
        self.status_code = 200
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace, follower = trace_of(scope), self._follower
        self._abort = trace.abort
        listener = asyncio.get_running_loop().create_task(self._listen(receive))
        self._after("deadline", self._admitted.deadline_s, lambda: self._relay.give_up(follower, EXPIRED, "deadline"))
        self._after("queue", self._admitted.queue_timeout_s, lambda: self._relay.give_up_if_queued(follower))
        try:
            await self._write(scope, receive, send)
        finally:
            for timer in self._timers.values():
                timer.cancel()
            listener.cancel()
            self._relay.release(follower)
            self._note(trace)

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError

    async def _listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._follower.leave()

    def _after(self, kind: str, delay_s: float, act: Callable[[], None]) -> None:
        self._timers[kind] = asyncio.get_running_loop().call_later(delay_s, act)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """No header has been sent: the failure gets a status of its own."""
        assert self._follower.outcome is not None, "refused without an outcome"
        response = Problem.of_outcome(self._follower.outcome).response()
        response.headers.update(self.headers)
        response.headers["content-type"] = "application/json"
        response.headers["content-length"] = str(len(response.body))
        await response(scope, receive, send)

    def _note(self, trace: Trace) -> None:
        """The end, for the log and the metrics."""
        follower, outcome, meters = self._follower, self._follower.outcome, self._meters
        meters.whole.observe(time.monotonic() - trace.started)
        meters.generation_tokens.inc(follower.tokens)
        if follower.first_token_at is not None:
            first_token_s = follower.first_token_at - trace.started
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
        if outcome is not None and outcome.usage is not None:
            meters.prompt_tokens.inc(outcome.usage.prompt_tokens)
            trace.fields["prompt_tokens"] = outcome.usage.prompt_tokens
        trace.fields.update(tokens=follower.tokens, attempts=follower.attempt)
        if self._admitted.ahead is not None:
            trace.fields["ahead"] = self._admitted.ahead


class JsonAnswer(Answer):
    """The whole answer, when it is whole. Its status is always the true one, so no byte is sent before."""

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        follower = self._follower
        while follower.outcome is None and not follower.gone:
            await follower.changed()
        if follower.outcome is None:
            return
        if follower.outcome.state != "done":
            await self._refuse(scope, receive, send)
            return
        body = self._dialect.body("".join(follower.read()), follower.outcome, follower.tokens)
        self.headers["content-length"] = str(len(body))
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body})


class EventStream(Answer):
    """The answer as it is made. Its status waits a moment for the first token, so that early failures have one."""

    media_type = "text/event-stream"

    def __init__(self, admitted: Admitted, dialect: Dialect, relay: Relay, meters: Meters, pace: Pace) -> None:
        super().__init__(admitted, dialect, relay, meters)
        self._pace = pace
        self._hold_is_over = pace.header_hold_s == 0
        self._ping_is_due = False
        self._last_sent: float | None = None
        self._last_text: float | None = None
        self._follower.on_stall = self._cut
        self.headers["content-type"] = "text/event-stream; charset=utf-8"
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        follower = self._follower
        self._after("hold", self._pace.header_hold_s, self._end_hold)
        while not follower.gone:
            pieces, outcome = follower.read(), follower.outcome
            if self._last_sent is None:
                if outcome is not None and outcome.state != "done":
                    await self._refuse(scope, receive, send)
                    return
                if not (pieces or outcome or self._hold_is_over):
                    await follower.changed()
                    continue
                await self._begin(send)
            events = self._events(pieces) if pieces else b""
            if outcome is not None:
                events += self._last_events(outcome.state == "done")
                await self._send(send, events, more=False)
                return
            if events:
                await self._send(send, events)
            elif self._ping_is_due:
                self._ping_is_due = False
                await self._send(send, sse.PING)
            else:
                await follower.changed()

    def _events(self, pieces: list[str]) -> bytes:
        now = time.monotonic()
        if self._last_text is None:
            events = self._dialect.opening + self._dialect.text(pieces)
        else:
            gap_s = (now - self._last_text) / len(pieces)
            for _ in pieces:
                self._meters.between.observe(gap_s)
            events = self._dialect.text(pieces)
        self._last_text = now
        return events

    def _last_events(self, is_done: bool) -> bytes:
        follower = self._follower
        assert follower.outcome is not None, "ended without an outcome"
        if not is_done:
            return Problem.of_outcome(follower.outcome).event(follower.id)
        opening = self._dialect.opening if self._last_text is None else b""
        return opening + self._dialect.closing(follower.outcome, follower.tokens)

    async def _begin(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._last_sent = time.monotonic()
        self._after("beat", self._pace.keepalive_s, self._beat)
        if self._hold_is_over and self._follower.tokens == 0 and self._follower.outcome is None:
            await self._send(send, sse.QUEUED)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        """Returns when the connection has room again; until then the follower knows that its reader is stuck."""
        self._last_sent = time.monotonic()
        self._follower.writing = True
        await send({"type": "http.response.body", "body": body, "more_body": more})
        self._follower.writing = False

    def _end_hold(self) -> None:
        self._hold_is_over = True
        self._follower.wake()

    def _beat(self) -> None:
        """Once in a keep-alive time: is the stream silent, or its client deaf?"""
        assert self._last_sent is not None, "beats begin with the headers"
        silent_s = time.monotonic() - self._last_sent
        if self._follower.writing and silent_s > STALL_S:
            self._cut()
            return
        if silent_s >= self._pace.keepalive_s:
            self._ping_is_due = True
            self._follower.wake()
            silent_s = 0.0
        self._after("beat", self._pace.keepalive_s - silent_s, self._beat)

    def _cut(self) -> None:
        """The client does not read: what is buffered for it must not grow, nor its request run on."""
        if not self._follower.gone:
            log.warning("client.stalled", tokens=self._follower.tokens)
            self._follower.gone = True
            self._relay.count_dropped()
            if self._abort is not None:
                self._abort()
