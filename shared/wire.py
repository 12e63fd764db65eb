"""Messages on the wire: frozen, versioned, unknown fields ignored.

A new field is additive and has a default, so an older reader still understands the message; a new
meaning is a new message. `tests/contract/golden/` freezes the encoded form of each.
"""

from typing import Any, Literal, TypeVar

import msgspec

from shared.errors import WireError

VERSION = 1
"""The newest version that is read here. A message without `v` is of version 1; a writer of a later one names it."""

MAX_CHARS_PER_TOKEN = 32
"""A prompt with more characters for each token of the context is too long by definition, and refused uncut."""

M = TypeVar("M", bound="Message")

State = Literal["queued", "running", "parked", "done", "failed", "cancelled", "expired"]
TERMINAL: frozenset[str] = frozenset({"done", "failed", "cancelled", "expired"})


class Message(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Base of all messages. Fields that hold their default are left out of the encoded form."""


class Sampling(Message, frozen=True):
    """How tokens are chosen. `seed` is always set by the gateway, so any attempt repeats the same draw."""

    seed: int
    max_tokens: int | None = None
    """Tokens to produce at most; None: as many as the context holds."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 switches it off."""
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


class GenerateRequest(Message, frozen=True):
    """What a worker needs to answer. Exactly one of `messages` (chat) and `prompt` (completion) is set."""

    sampling: Sampling
    messages: tuple[dict[str, Any], ...] | None = None
    """Chat messages as OpenAI writes them, content flattened to text."""
    prompt: str | tuple[int, ...] | None = None
    chat_template_kwargs: dict[str, Any] = {}
    v: int = 1


class Usage(Message, frozen=True):
    """Tokens of one request, each counted once over all its attempts."""

    prompt_tokens: int
    completion_tokens: int


class ErrorInfo(Message, frozen=True):
    """Why a request failed; `code` is a row in the gateway's table of statuses."""

    code: str
    message: str
    param: str | None = None


class Outcome(Message, frozen=True):
    """How a request ended. `reason` and `usage` come with `done`; `error` with every other state."""

    state: Literal["done", "failed", "cancelled", "expired"]
    reason: Literal["stop", "length"] | None = None
    usage: Usage | None = None
    error: ErrorInfo | None = None
    queued_ms: int | None = None
    """Time it waited before its first attempt; None if no worker took it."""


class Piece(Message, frozen=True):
    """What one step added to one request: token ids, and the text that they released (may be empty)."""

    ids: tuple[int, ...] = ()
    text: str = ""


class Frame(Message, frozen=True):
    """A piece (or, with `end`, the outcome) as it travels on a gateway's channel.

    `at` is the number of tokens before this frame. A reader that holds `at` tokens takes the frame;
    one that holds more has seen it; one that holds fewer fills the gap from the log.
    """

    id: str
    attempt: int
    at: int
    ids: tuple[int, ...] = ()
    text: str = ""
    end: Outcome | None = None


class Frames(Message, frozen=True):
    """One publication on a gateway's channel: the frames of one engine step for that gateway."""

    frames: tuple[Frame, ...]
    v: int = 1


class Control(Message, frozen=True):
    """To one worker, on its control channel: stop this request."""

    id: str
    kind: Literal["cancel"] = "cancel"
    v: int = 1


_encoder = msgspec.json.Encoder()
_decoders: dict[type, msgspec.json.Decoder[Any]] = {}


def encode(message: Message) -> bytes:
    """The message as JSON."""
    return _encoder.encode(message)


def encode_members(piece: Piece) -> bytes:
    """A piece as JSON members without braces: what the log stores and `emit.lua` splices into a frame."""
    return _encoder.encode(piece)[1:-1]


def decode_members(members: bytes, kind: type[M]) -> M:
    """The inverse of `encode_members`."""
    return decode(b"{" + members + b"}", kind)


def decode(raw: bytes | str, kind: type[M]) -> M:
    """JSON to a message of that kind; WireError if it is not one or its version is newer than ours."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        message: M = decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise WireError(f"not a {kind.__name__}: {error}") from error
    if getattr(message, "v", VERSION) > VERSION:
        raise WireError(f"a {kind.__name__} of version {message.v}, but this process reads up to {VERSION}")  # type: ignore[attr-defined]
    return message
