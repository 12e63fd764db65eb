"""Bytes of server-sent events: one `data:` line of JSON each, comments for silence, `[DONE]`.

Never a `retry:` or `event:` line, and an `id:` line only for who asked: some clients break on each of them.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

DONE = b"data: [DONE]\n\n"
QUEUED = b": queued\n\n"
PING = b": ping\n\n"

_encode = msgspec.json.Encoder().encode

# JSON allows these raw, but clients that split lines as Unicode does would cut an event at them.
_LINE_ENDS = tuple((char.encode(), f"\\u{ord(char):04x}".encode()) for char in "\u0085\u2028\u2029")


def encode(value: Any) -> bytes:
    """JSON without any character that some reader takes for the end of a line."""
    raw = _encode(value)
    if not raw.isascii():
        for char, escape in _LINE_ENDS:
            raw = raw.replace(char, escape)
    return raw


def event_id(positions: Sequence[int]) -> bytes:
    """The line before an event: tokens of each choice that have been told once it is read."""
    return b"id: " + ",".join(map(str, positions)).encode() + b"\n"


def event(value: Any) -> bytes:
    """One event."""
    return b"data: " + encode(value) + b"\n\n"
