"""Answers in OpenAI's two dialects, chat and completion: as chunks of a stream or as one body.

What is constant within a stream is encoded once; a piece of text costs one encoding of the text.
"""

from dataclasses import dataclass
from typing import Any

from gateway.openai import sse
from shared.wire import Outcome


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands in every chunk of an answer."""

    request_id: str
    created: int
    model: str
    service_tier: str
    include_usage: bool = False


class Dialect:
    """One answer's bytes."""

    id_prefix: str
    chunk_object: str
    body_object: str
    opening: bytes = b""
    """The event before the first text."""

    def __init__(self, heading: Heading) -> None:
        self._heading = heading
        self._chunk = self._head(self.chunk_object)
        if heading.include_usage:
            self._chunk["usage"] = None

    def text(self, pieces: list[str]) -> bytes:
        """An event for each piece."""
        prefix, suffix, encode = self._prefix, self._suffix, sse.encode
        if len(pieces) == 1:
            return prefix + encode(pieces[0]) + suffix
        return b"".join([prefix + encode(piece) + suffix for piece in pieces])

    def closing(self, outcome: Outcome, tokens: int) -> bytes:
        """The end of a stream that went well: the reason, the usage if asked for, [DONE]."""
        events = sse.event({**self._chunk, "choices": [self._last_choice(outcome.reason or "stop")]})
        if self._heading.include_usage:
            events += sse.event({**self._chunk, "choices": [], "usage": usage(outcome, tokens)})
        return events + sse.DONE

    def body(self, text: str, outcome: Outcome, tokens: int) -> bytes:
        """The whole answer."""
        choice = self._whole_choice(text, outcome.reason or "stop")
        return sse.encode({**self._head(self.body_object), "choices": [choice], "usage": usage(outcome, tokens)})

    def _around(self, before: bytes, after: bytes) -> None:
        """Sets what stands around a piece of text in an event."""
        head = sse.encode(self._chunk)[:-1]
        self._prefix = b"data: " + head + b',"choices":[{"index":0,' + before
        self._suffix = after + b',"logprobs":null,"finish_reason":null}]}\n\n'

    def _head(self, kind: str) -> dict[str, Any]:
        heading = self._heading
        return {
            "id": self.id_prefix + heading.request_id,
            "object": kind,
            "created": heading.created,
            "model": heading.model,
        }

    def _last_choice(self, reason: str) -> dict[str, Any]:
        raise NotImplementedError

    def _whole_choice(self, text: str, reason: str) -> dict[str, Any]:
        raise NotImplementedError


class Chat(Dialect):
    id_prefix, chunk_object, body_object = "chatcmpl-", "chat.completion.chunk", "chat.completion"

    def __init__(self, heading: Heading) -> None:
        super().__init__(heading)
        self._around(b'"delta":{"content":', b"}")
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        self.opening = sse.event({**self._chunk, "choices": [first]})

    def _head(self, kind: str) -> dict[str, Any]:
        return {**super()._head(kind), "service_tier": self._heading.service_tier, "system_fingerprint": None}

    def _last_choice(self, reason: str) -> dict[str, Any]:
        return {"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}

    def _whole_choice(self, text: str, reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}


class Completion(Dialect):
    id_prefix, chunk_object, body_object = "cmpl-", "text_completion", "text_completion"

    def __init__(self, heading: Heading) -> None:
        super().__init__(heading)
        self._around(b'"text":', b"")

    def _last_choice(self, reason: str) -> dict[str, Any]:
        return {"index": 0, "text": "", "logprobs": None, "finish_reason": reason}

    def _whole_choice(self, text: str, reason: str) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}


def usage(outcome: Outcome, tokens: int) -> dict[str, Any]:
    """Tokens as OpenAI counts them; a worker that did not say leaves us our own count of the answer.

    No prompt is cached and no token is a hidden thought, but some clients read the details unasked.
    """
    prompt = outcome.usage.prompt_tokens if outcome.usage else 0
    answer = outcome.usage.completion_tokens if outcome.usage else tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }
