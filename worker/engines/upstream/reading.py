"""Reading: what an OpenAI server says, as deltas and as reasons why it says nothing. Pure but for the stream itself."""

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.errors import InvalidRequest
from shared.wire import TokenLogprob, Usage

MAX_EVENT_BYTES = 4 * 2**20
DONE = "[DONE]"
RETRY_AFTER_S, LONGEST_RETRY_AFTER_S = 1.0, 300.0
# Codes that mean the same there and here; any other becomes `invalid_request`.
CODES = {
    "invalid_value",
    "unsupported_value",
    "unsupported_parameter",
    "missing_required_parameter",
    "context_length_exceeded",
    "model_not_found",
}
OVERLOADED = {429, 503}
NOT_THE_CALLERS = {401, 403, 407, 408}
SURROGATE = re.compile("[\ud800-\udfff]")


class AwayError(Exception):
    """The upstream cannot answer now. Another one may, or this one later."""

    def __init__(self, message: str, *, pause_s: float = 0.0, may_be_the_request: bool = True) -> None:
        """`may_be_the_request`: it might be what the request does to the upstream."""
        super().__init__(message)
        self.pause_s = pause_s
        self.may_be_the_request = may_be_the_request


@dataclass(frozen=True, slots=True)
class Delta:
    """One event of a stream."""

    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    reason: str | None = None
    usage: Usage | None = None


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[str]:
    """The data of each server-sent event. Lines end at LF alone: other breaks of Unicode are text."""
    rest = b""
    parts: list[str] = []
    async for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for raw in whole:
            line = raw.removesuffix(b"\r").decode(errors="replace")
            if line.startswith("data:"):
                parts.append(line.removeprefix("data:").removeprefix(" "))
            elif not line and parts:
                yield "\n".join(parts)
                parts = []
        if len(rest) + sum(map(len, parts)) > MAX_EVENT_BYTES:
            raise AwayError("the upstream sends an event without end")


def delta(data: str) -> Delta:
    """One event; InvalidRequest or AwayError if it is an error, or no event of a stream at all."""
    try:
        given = json.loads(data)
        if error := given.get("error"):
            raise _failure(error)
        choices = given.get("choices") or [{}]
        choice = choices[0]
        content = choice.get("text") if "text" in choice else (choice.get("delta") or {}).get("content")
        return Delta(
            text=SURROGATE.sub("\ufffd", content or ""),
            logprobs=_logprobs(choice.get("logprobs") or {}),
            reason=choice.get("finish_reason"),
            usage=_usage(given.get("usage")),
        )
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise AwayError(f"the upstream sends what is no event of an answer: {type(error).__name__}") from error


def failure(status: int, headers: Mapping[str, str], raw: bytes) -> InvalidRequest | AwayError:
    """What an answer with this status, not 200, means: the caller's fault, or nobody's here."""
    if status in OVERLOADED:
        message = f"the upstream is busy: {status}"
        return AwayError(message, pause_s=_retry_after(headers.get("retry-after")), may_be_the_request=False)
    if not 400 <= status < 500 or status in NOT_THE_CALLERS:
        return AwayError(f"the upstream answers {status}")
    try:
        given = json.loads(raw)
        error = given.get("error", given) if isinstance(given, dict) else {}
    except ValueError:
        error = {}
    return _refusal(error if isinstance(error, dict) else {"message": error}, status)


def _failure(error: Any) -> InvalidRequest | AwayError:
    """An error in the middle of a stream, where there is no status."""
    told = error if isinstance(error, dict) else {"message": error}
    code = told.get("code")
    status = code if isinstance(code, int) else 400 if told.get("type") == "invalid_request_error" else 500
    if 400 <= status < 500 and status not in OVERLOADED | NOT_THE_CALLERS:
        return _refusal(told, status)
    return AwayError(f"the upstream breaks off: {told.get('code') or told.get('type')}")


def _refusal(error: Mapping[str, Any], status: int) -> InvalidRequest:
    message = str(error.get("message") or error.get("detail") or f"The upstream refuses the request: {status}.")
    code, param = error.get("code"), error.get("param")
    if "maximum context length" in message:
        code = "context_length_exceeded"
    known = code if code in CODES else "request_too_large" if status == 413 else "invalid_request"
    return InvalidRequest(message, param=param if isinstance(param, str) else None, code=known)


def _retry_after(value: str | None) -> float:
    """Seconds; a date, which the header may be as well, counts as none."""
    try:
        seconds = float(value or RETRY_AFTER_S)
    except ValueError:
        seconds = RETRY_AFTER_S
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER_S) if seconds == seconds else RETRY_AFTER_S  # noqa: PLR0124 - NaN


def _usage(usage: Mapping[str, Any] | None) -> Usage | None:
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=int(usage["prompt_tokens"]),
        completion_tokens=int(usage.get("completion_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
    )


def _logprobs(told: Mapping[str, Any]) -> tuple[TokenLogprob, ...]:
    """Of chat (`content`), or of completions (parallel lists)."""
    if content := told.get("content"):
        return tuple(_entry(one) for one in content)
    tokens: Sequence[str] = told.get("tokens") or ()
    chances = told.get("token_logprobs") or (None,) * len(tokens)
    tops = told.get("top_logprobs") or ({},) * len(tokens)
    return tuple(
        TokenLogprob(
            raw=_raw(token),
            logprob=chance,
            top=tuple((_raw(text), float(value)) for text, value in sorted((top or {}).items(), key=lambda kv: -kv[1])),
        )
        for token, chance, top in zip(tokens, chances, tops, strict=True)
    )


def _entry(one: Mapping[str, Any]) -> TokenLogprob:
    top = tuple(
        (_raw(other["token"], other.get("bytes")), float(other["logprob"])) for other in one["top_logprobs"] or ()
    )
    return TokenLogprob(raw=_raw(one["token"], one.get("bytes")), logprob=one["logprob"], top=top)


def _raw(token: str, given: Sequence[int] | None = None) -> bytes:
    return bytes(given) if given is not None else token.encode(errors="replace")
