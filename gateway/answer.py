"""Answers: one followed request as an ASGI response. What all of them share, and the one that is one JSON body.

They watch the client while they wait: one that leaves takes its unfinished request with it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.admission import Admitted
from gateway.context import Trace, trace_of
from gateway.metrics import Meters
from gateway.openai.dialects import Answered
from gateway.openai.errors import Problem
from gateway.relay import SIBLING, Relay
from shared.broker import EXPIRED, Queued
from shared.wire import Outcome


class Body(Protocol):
    """What makes an answer's bytes when all of it is there."""

    def body(self, answered: Sequence[Answered]) -> bytes: ...


class Answer(Response):
    """What both kinds of answer share: the follower's end, the client's end, the clocks between."""

    media_type = "application/json"

    def __init__(self, admitted: Admitted, relay: Relay, meters: Meters, grace_s: float = 0.0) -> None:
        """`grace_s`: a client that may return has so long to do so."""
        self._admitted = admitted
        self._grace_s = grace_s if admitted.reader.may_return else 0.0
        self._followers = admitted.followers
        self._reader = admitted.reader
        self._relay = relay
        self._meters = meters
        self._timers: dict[str, asyncio.TimerHandle] = {}
        """One of each kind: a stream beats as long as it lives."""
        self.background = None
        self.status_code = 200
        self.init_headers({"x-busway-lane": admitted.lane, **_queue_headers(admitted.queued)})

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
            self._release()
            self._note(trace)

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError

    async def _listen(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._reader.leave()

    def _release(self) -> None:
        failed = self._failure is not None
        for follower in self._followers:
            if failed:
                self._relay.release(follower, SIBLING)
            else:
                self._relay.release(follower, "disconnect", grace_s=self._grace_s)

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
        self._release()  # before the client takes its time to read
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
        if not self._admitted.is_retold:
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
        firsts_of_prompts = self._followers[:: self._admitted.meta.choices_per_prompt]
        usages = [one.outcome.usage for one in firsts_of_prompts if one.outcome is not None and one.outcome.usage]
        if usages:
            trace.fields["prompt_tokens"] = sum(usage.prompt_tokens for usage in usages)
            if not self._admitted.is_retold:
                meters.prompt_tokens.inc(trace.fields["prompt_tokens"])
        trace.fields.update(tokens=self._tokens, attempts=max(one.attempt for one in self._followers))
        if len(self._followers) > 1:
            trace.fields["parts"] = len(self._followers)
        if self._admitted.queued.ahead is not None:
            trace.fields["ahead"] = self._admitted.queued.ahead


def _queue_headers(queued: Queued) -> dict[str, str]:
    """Where the request stood when it came."""
    headers = {}
    if queued.ahead is not None:
        headers["x-busway-queue-position"] = str(queued.ahead)
    if queued.starts_in_ms is not None:
        headers["x-busway-queue-estimated-ms"] = str(queued.starts_in_ms)
    if queued.joined:
        headers["x-busway-joined"] = "true"
    return headers


class JsonAnswer(Answer):
    """The whole answer, when it is whole. Its status is always the true one, so no byte is sent before."""

    def __init__(self, admitted: Admitted, writer: Body, relay: Relay, meters: Meters, grace_s: float = 0.0) -> None:
        super().__init__(admitted, relay, meters, grace_s)
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
        if any(frame.logprobs or frame.prompt for frames, _, _ in answered for frame in frames):
            body = await asyncio.to_thread(self._writer.body, answered)  # long enough to make others wait
        else:
            body = self._writer.body(answered)
        self.headers["content-length"] = str(len(body))
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body})
