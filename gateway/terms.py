"""Terms: what a client's headers ask for beside the body."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.openai import sse
from shared.errors import InvalidRequest

DEADLINE_HEADER = "x-busway-deadline-ms"
DETACH_HEADER = "x-busway-detach"
KEY_HEADER = "idempotency-key"
READ_TIMEOUT_HEADER = "x-stainless-read-timeout"
MAX_DEADLINE_MS = 2**53
EVENT_STREAM = "text/event-stream"
RETELLING = frozenset({"stream", "stream_options"})
"""Fields that change how an answer is told, not the answer."""

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Terms:
    """What the headers of one request ask for."""

    deadline_ms: int
    detached: bool = False
    """The request shall run to its end, whoever leaves."""
    key: str = ""
    """The client's own name for the request; the same name again is the same request."""
    with_ids: bool = False
    """Events of a stream carry ids. Some clients break on them, so only who asks for an event stream gets them."""

    def request_id(self, tenant: str) -> str | None:
        """The id of the request that this key names, for this tenant; None without a key."""
        return hashlib.sha256(f"{tenant}\n{self.key}".encode()).hexdigest()[:32] if self.key else None

    @classmethod
    def of(cls, headers: Mapping[str, str], *, stream: bool) -> "Terms":
        """InvalidRequest if one of them cannot be meant."""
        key = headers.get(KEY_HEADER, "")
        if KEY_HEADER in headers and not _KEY.fullmatch(key):
            raise InvalidRequest(
                "Idempotency-Key: 1 to 255 printable ASCII characters, none of them a space.", param="Idempotency-Key"
            )
        detach = headers.get(DETACH_HEADER, "false").lower()
        if detach not in _BOOLEANS:
            raise InvalidRequest(f"{DETACH_HEADER} must be true or false.", param=DETACH_HEADER)
        accepted = {part.partition(";")[0].strip() for part in headers.get("accept", "").lower().split(",")}
        return cls(asked_deadline_ms(headers, stream=stream), _BOOLEANS[detach], key, EVENT_STREAM in accepted)


def fingerprint(endpoint: str, fields: Mapping[str, Any]) -> str:
    """Tells one request's content from another's: two with the same get the same answer."""
    told = {name: fields[name] for name in sorted(fields) if name not in RETELLING}
    return hashlib.sha256(endpoint.encode() + sse.encode(told)).hexdigest()


def asked_deadline_ms(headers: Mapping[str, str], *, stream: bool) -> int:
    """The client's own deadline; InvalidRequest if it is not a positive number.

    A client that waits in silence for a whole answer gives up at its read timeout and asks again. The end
    must reach it before. A stream is never silent for long, so there the timeout says nothing.
    """
    deadline_ms = MAX_DEADLINE_MS
    if DEADLINE_HEADER in headers:
        text = headers[DEADLINE_HEADER]
        if not (text.isascii() and text.isdigit() and 0 < len(text) < 16 and int(text) > 0):
            raise InvalidRequest(f"{DEADLINE_HEADER} must be a positive number of milliseconds.", param=DEADLINE_HEADER)
        deadline_ms = int(text)
    if not stream:
        timeout_s = _seconds(headers.get(READ_TIMEOUT_HEADER, ""))
        if timeout_s is not None:
            deadline_ms = min(deadline_ms, max(1, int(1000 * (timeout_s - min(1.0, timeout_s / 10)))))
    return deadline_ms


def _seconds(text: str) -> float | None:
    """A client may also say `None` or `not_given` there."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 < seconds < 1e9 else None
