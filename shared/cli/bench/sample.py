"""What one request went through, and how its answer is read."""

import json
from array import array
from dataclasses import dataclass, field
from typing import Any

import msgspec

from shared.cli.bench.response import ProtocolError, Response
from shared.cli.sse import Events

MAX_EVENT = 1 << 20
MAX_ERROR = 1 << 16
DETAIL = 200


@dataclass(slots=True)
class Sample:
    """One request. Times are seconds since the run's start; None is what has not happened."""

    lane: str
    due: float
    """When it arrived by plan: all latencies count from here."""
    sent: float | None = None
    events: "array[float]" = field(default_factory=lambda: array("d"))
    """When each event with text came. An event is mostly one token; a server may put several into one."""
    ended: float | None = None
    error: str | None = None
    """Its kind, if it failed."""
    detail: str = ""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    """As the server counts them; None if it does not say."""

    @property
    def is_whole(self) -> bool:
        return self.ended is not None and self.error is None

    @property
    def tokens(self) -> int:
        """Tokens that came: the server's count, else events."""
        return len(self.events) if self.output_tokens is None else self.output_tokens

    def fail(self, kind: str, detail: str) -> None:
        """The first failure counts."""
        if self.error is None:
            self.error, self.detail = kind, detail[:DETAIL]


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None

    @property
    def has_text(self) -> bool:
        if self.text:
            return True
        delta = self.delta
        return delta is not None and bool(delta.content or delta.reasoning or delta.reasoning_content)


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Answer:
    """Reads one response into its sample."""

    def __init__(self, sample: Sample, origin: float) -> None:
        self._sample = sample
        self._origin = origin
        self._events = Events()
        self._refusal = b""
        self._is_done = False

    def take(self, response: Response, body: bytes, now: float) -> None:
        """More of it. ProtocolError if it is no stream of chunks."""
        if response.status != 200:
            self._refusal = (self._refusal + body)[:MAX_ERROR]
            return
        for event in self._events.feed(body):
            self._read(event, now - self._origin)
        if self._events.held > MAX_EVENT:
            raise ProtocolError("an event without an end")

    def close(self, status: int, now: float) -> None:
        """The response has ended."""
        if status != 200:
            self._sample.fail(f"http_{status}", _message(self._refusal))
        elif not self._is_done:
            self._sample.fail("broken", "the stream ended without [DONE]")
        elif self._sample.ended is None:
            self._sample.ended = now - self._origin

    def _read(self, event: bytes, at: float) -> None:
        sample = self._sample
        if event == b"[DONE]":
            self._is_done, sample.ended = True, at
            return
        try:
            chunk = _decode(event)
        except msgspec.MsgspecError as error:
            raise ProtocolError(f"an event that is no chunk: {error}") from error
        if chunk.error is not None:
            sample.fail("error_event", _message(event))
        if any(choice.has_text for choice in chunk.choices):
            sample.events.append(at)
        if chunk.usage is not None:
            sample.prompt_tokens = chunk.usage.prompt_tokens
            sample.output_tokens = chunk.usage.completion_tokens


def _message(body: bytes) -> str:
    """An error's message if there is one, else the start of the body."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:DETAIL].decode(errors="replace")
