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
    min_p: float = 0.0
    """Tokens less likely than this share of the likeliest one's probability are never chosen."""
    frequency_penalty: float = 0.0
    """Taken off a token's logit for each time that the answer has it; may be negative."""
    presence_penalty: float = 0.0
    """Taken off a token's logit once if the answer has it."""
    repetition_penalty: float = 1.0
    """Divides (or, below zero, multiplies) the logit of a token that prompt or answer has."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit) pairs."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    """Before so many, neither an end token nor one of `stop_token_ids` is chosen."""
    ignore_eos: bool = False
    logprobs: int | None = None
    """So many of the likeliest tokens are told beside each chosen one; 0: its own only; None: nothing is told."""


class Guide(Message, frozen=True):
    """What the answer's text must match."""

    kind: Literal["json_schema", "regex", "grammar"]
    text: str
    """The JSON schema, the regular expression, or the grammar (Lark)."""


class GenerateRequest(Message, frozen=True):
    """What a worker needs to answer. Exactly one of `messages`, `prompt` and `inputs` is set."""

    sampling: Sampling
    messages: tuple[dict[str, Any], ...] | None = None
    """Chat messages as OpenAI writes them, content flattened to text."""
    prompt: str | tuple[int, ...] | None = None
    """To be completed."""
    inputs: tuple[str | tuple[int, ...], ...] | None = None
    """To be embedded."""
    first_input: int = 0
    """The place of the first of them among all that the client sent."""
    dimensions: int | None = None
    """Of the embeddings, if fewer than the model's."""
    chat_template_kwargs: dict[str, Any] = {}
    guide: Guide | None = None
    echo: bool = False
    """The prompt is told before the answer; with `sampling.logprobs`, so are its tokens."""
    v: int = 1

    @property
    def source(self) -> str:
        """The client's field that the prompt comes from."""
        if self.inputs is not None:
            return "input"
        return "messages" if self.messages is not None else "prompt"


class Meta(Message, frozen=True):
    """How a request was asked for: what any gateway needs to tell its answer again. Kept with its first part."""

    endpoint: Literal["chat.completions", "completions", "embeddings"]
    created: int
    """Unix time in seconds."""
    tier: str
    include_usage: bool = False
    parts: int = 1
    """The request's parts, each queued by itself."""
    choices_per_prompt: int = 1
    base64: bool = False
    """How embeddings are told."""
    v: int = 1


class Usage(Message, frozen=True):
    """Tokens of one request, each counted once over all its attempts."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Of the prompt: those whose keys and values were there already."""


class TokenLogprob(Message, frozen=True):
    """One token of a text, and how likely it was."""

    raw: bytes
    """Its bytes; a character may spread over several tokens."""
    logprob: float | None = None
    """Natural logarithm of its probability as the model has it, at temperature 1; None: the first of a text."""
    top: tuple[tuple[bytes, float], ...] = ()
    """The likeliest tokens in its place, the likeliest first."""


class Prompt(Message, frozen=True):
    """A prompt that is told back (`echo`)."""

    text: str
    tokens: tuple[TokenLogprob, ...] = ()
    """All of them if log-probabilities were asked for."""


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
    prompt: Prompt | None = None
    """Told here if the answer has no token."""
    embeddings: bytes = b""
    """A vector for each input, one after the other, as little-endian float32."""


class Piece(Message, frozen=True):
    """What one step added to one request: token ids, and the text that they released (may be empty)."""

    ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One for each token, if asked for."""
    prompt: Prompt | None = None
    """Comes with the answer's first token, if asked for."""


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
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt: Prompt | None = None
    end: Outcome | None = None


class Frames(Message, frozen=True):
    """One publication on a gateway's channel: the frames of one engine step for that gateway."""

    frames: tuple[Frame, ...]
    v: int = 1


class Control(Message, frozen=True):
    """To one worker, on its control channel: stop this request, tell at once what it produces, or (no id) drain."""

    id: str = ""
    kind: Literal["cancel", "watch", "drain"] = "cancel"
    expired: bool = False
    """Of a cancel: its time was over."""
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
