"""Answers in OpenAI's dialects, chat and completion: as chunks of a stream or as one body.

What is constant within a stream is encoded once; a piece of text costs one encoding of the text.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gateway.openai import sse
from shared.wire import Frame, Outcome, TokenLogprob

Answered = tuple[Sequence[Frame], Outcome, int]
"""One choice when it is whole: what it consists of, how it ended, the tokens that we counted."""


@dataclass(frozen=True, slots=True)
class Heading:
    """What stands in every chunk of an answer."""

    request_id: str
    created: int
    model: str
    service_tier: str
    include_usage: bool = False
    choices_per_prompt: int = 1


class Choice:
    """The bytes of one choice of a streamed answer."""

    def __init__(self, chunk: dict[str, Any], index: int) -> None:
        self._chunk = chunk
        self._index = index
        self.opening = b""
        """The event before the first text."""

    def text(self, frames: Sequence[Frame]) -> bytes:
        """An event for each frame."""
        prefix, suffix, encode = self._prefix, self._suffix, sse.encode
        events = [
            prefix + encode(frame.text) + suffix if not (frame.logprobs or frame.prompt) else self._told(frame)
            for frame in frames
        ]
        return events[0] if len(events) == 1 else b"".join(events)

    def finish(self, outcome: Outcome) -> bytes:
        """The last event of the choice, and before it a prompt that has not been told."""
        told = b""
        if outcome.prompt is not None:
            told = self._told(Frame(id="", attempt=0, at=0, prompt=outcome.prompt))
        last = self._choice("", None, outcome.reason or "stop", is_last=True)
        return told + self._event(last)

    def whole(self, frames: Sequence[Frame], outcome: Outcome) -> dict[str, Any]:
        """The choice in a body."""
        raise NotImplementedError

    def _told(self, frame: Frame) -> bytes:
        prompt = frame.prompt
        text = (prompt.text if prompt else "") + frame.text
        tokens = (*(prompt.tokens if prompt else ()), *frame.logprobs)
        return self._event(self._choice(text, self._logprobs(tokens), None))

    def _event(self, choice: dict[str, Any]) -> bytes:
        return sse.event({**self._chunk, "choices": [choice]})

    def _around(self, before: bytes, after: bytes) -> None:
        """Sets what stands around a piece of text in an event."""
        head = sse.encode(self._chunk)[:-1]
        self._prefix = b"data: " + head + b',"choices":[{"index":%d,' % self._index + before
        self._suffix = after + b',"logprobs":null,"finish_reason":null}]}\n\n'

    def _choice(self, text: str, logprobs: Any, reason: str | None, *, is_last: bool = False) -> dict[str, Any]:
        raise NotImplementedError

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        raise NotImplementedError


class Dialect:
    """One answer's bytes, all of its choices."""

    id_prefix: str
    chunk_object: str
    body_object: str
    choice: type[Choice]

    def __init__(self, heading: Heading, count: int = 1) -> None:
        """`count` choices, those of a prompt in a row."""
        self._heading = heading
        self._chunk = self._head(self.chunk_object)
        if heading.include_usage:
            self._chunk["usage"] = None
        self.choices = [self.choice(self._chunk, index) for index in range(count)]

    def closing(self, ends: Sequence[tuple[Outcome, int]]) -> bytes:
        """The end of a stream that went well: the usage if asked for, [DONE]."""
        events = b""
        if self._heading.include_usage:
            events = sse.event({**self._chunk, "choices": [], "usage": self._usage(ends)})
        return events + sse.DONE

    def body(self, answered: Sequence[Answered]) -> bytes:
        """The whole answer."""
        choices = [
            choice.whole(frames, outcome) for choice, (frames, outcome, _) in zip(self.choices, answered, strict=True)
        ]
        usage = self._usage([(outcome, tokens) for _, outcome, tokens in answered])
        return sse.encode({**self._head(self.body_object), "choices": choices, "usage": usage})

    def _usage(self, ends: Sequence[tuple[Outcome, int]]) -> dict[str, Any]:
        return usage(ends, self._heading.choices_per_prompt)

    def _head(self, kind: str) -> dict[str, Any]:
        heading = self._heading
        return {
            "id": self.id_prefix + heading.request_id,
            "object": kind,
            "created": heading.created,
            "model": heading.model,
        }


class ChatChoice(Choice):
    def __init__(self, chunk: dict[str, Any], index: int) -> None:
        super().__init__(chunk, index)
        self._around(b'"delta":{"content":', b"}")
        first = {**self._choice("", None, None), "delta": {"role": "assistant", "content": ""}}
        self.opening = self._event(first)

    def whole(self, frames: Sequence[Frame], outcome: Outcome) -> dict[str, Any]:
        text = "".join(frame.text for frame in frames)
        message = {"role": "assistant", "content": text, "refusal": None}
        logprobs = self._logprobs([token for frame in frames for token in frame.logprobs])
        reason = outcome.reason or "stop"
        return {"index": self._index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def _choice(self, text: str, logprobs: Any, reason: str | None, *, is_last: bool = False) -> dict[str, Any]:
        delta = {} if is_last else {"content": text}
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not tokens:
            return None
        content = [
            {**_likely(one.raw, one.logprob), "top_logprobs": [_likely(raw, logprob) for raw, logprob in one.top]}
            for one in tokens
        ]
        return {"content": content, "refusal": None}


class Chat(Dialect):
    id_prefix, chunk_object, body_object, choice = "chatcmpl-", "chat.completion.chunk", "chat.completion", ChatChoice

    def _head(self, kind: str) -> dict[str, Any]:
        return {**super()._head(kind), "service_tier": self._heading.service_tier, "system_fingerprint": None}


class CompletionChoice(Choice):
    def __init__(self, chunk: dict[str, Any], index: int) -> None:
        super().__init__(chunk, index)
        self._around(b'"text":', b"")
        self._told_chars = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def whole(self, frames: Sequence[Frame], outcome: Outcome) -> dict[str, Any]:
        prompts = [frame.prompt for frame in frames if frame.prompt] + ([outcome.prompt] if outcome.prompt else [])
        text = "".join([prompt.text for prompt in prompts] + [frame.text for frame in frames])
        tokens = [token for part in prompts for token in part.tokens]
        tokens += [token for frame in frames for token in frame.logprobs]
        return self._choice(text, self._logprobs(tokens), outcome.reason or "stop")

    def _choice(self, text: str, logprobs: Any, reason: str | None, *, is_last: bool = False) -> dict[str, Any]:  # noqa: ARG002 - of chats
        return {"index": self._index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        """Lists side by side; an offset is where the token begins, or the character that it is a part of."""
        if not tokens:
            return None
        texts, offsets, tops = [], [], []
        for one in tokens:
            text = _spelt(one.raw)
            texts.append(text)
            offsets.append(self._told_chars)
            self._told_chars += len(self._decode(one.raw))
            top = {_spelt(raw): logprob for raw, logprob in reversed(one.top)}
            tops.append(None if one.logprob is None else {text: one.logprob, **top})
        logprobs = [one.logprob for one in tokens]
        return {"tokens": texts, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}


class Completion(Dialect):
    id_prefix, chunk_object, body_object, choice = "cmpl-", "text_completion", "text_completion", CompletionChoice


def usage(ends: Sequence[tuple[Outcome, int]], choices_per_prompt: int = 1) -> dict[str, Any]:
    """Tokens as OpenAI counts them: a prompt counts once, however many choices it has.

    A worker that did not say leaves us our own count of the answer. No token is a hidden thought, but some clients
    read the details unasked.
    """
    firsts = [outcome.usage for outcome, _ in ends[::choices_per_prompt] if outcome.usage]
    prompt = sum(one.prompt_tokens for one in firsts)
    answer = sum(outcome.usage.completion_tokens if outcome.usage else tokens for outcome, tokens in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in firsts)},
        "completion_tokens_details": {"reasoning_tokens": 0},
    }


def _text(raw: bytes) -> str:
    return raw.decode(errors="replace")


def _spelt(raw: bytes) -> str:
    """A token's text; of a part of a character its bytes, so that two of them never look alike."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _likely(raw: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": _text(raw), "logprob": logprob, "bytes": list(raw)}
