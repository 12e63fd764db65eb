"""Request bodies as OpenAI and its imitators write them.

An explicit null is as good as an absent field. What would change the answer but is not built is
refused; what would not is ignored, and the answer says so in a header.
"""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from gateway.openai import guided, policy
from gateway.openai.fields import (
    flat_content,
    logit_biases,
    prompts,
    stop_ids,
    stop_strings,
    template_kwargs,
    wrong,
)
from shared.errors import InvalidRequest
from shared.wire import Guide

MAX_TOKENS = 2**31 - 1
INT64 = 2**63
MAX_CHOICES = 4096
MAX_TOP_LOGPROBS = 20
MAX_INPUTS = 2048
MAX_DIMENSIONS = 65_536
GUIDE_FIELDS = (
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
)  # fmt: skip

B = TypeVar("B", bound="Part")
GuideOrNone = Guide | None


class Part(BaseModel):
    """Something that a body holds. Numbers are numbers: neither "0.5" nor true is one."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class StreamOptions(Part):
    include_usage: bool | None = None


class Body(Part):
    """What chat and completions share."""

    model: str = Field(min_length=1)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_TOKENS)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1, le=MAX_TOKENS)
    min_p: float = Field(default=0.0, ge=0, le=1)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=100)
    logit_bias: Annotated[tuple[tuple[int, float], ...], PlainValidator(logit_biases)] = ()
    n: int = Field(default=1, ge=1, le=MAX_CHOICES)
    seed: int | None = Field(default=None, ge=-INT64, lt=INT64)
    stop: Annotated[tuple[str, ...], PlainValidator(stop_strings)] = ()
    stop_token_ids: Annotated[tuple[int, ...], PlainValidator(stop_ids)] = ()
    min_tokens: int = Field(default=0, ge=0, le=MAX_TOKENS)
    ignore_eos: bool = False
    service_tier: str | None = None
    response_format: Annotated[GuideOrNone, PlainValidator(guided.response_format)] = None
    structured_outputs: Annotated[GuideOrNone, PlainValidator(guided.structured_outputs)] = None
    guided_json: Annotated[GuideOrNone, PlainValidator(guided.schema)] = None
    guided_regex: Annotated[GuideOrNone, PlainValidator(guided.regex)] = None
    guided_choice: Annotated[GuideOrNone, PlainValidator(guided.choice)] = None
    guided_grammar: Annotated[GuideOrNone, PlainValidator(guided.grammar)] = None

    @field_validator("stream_options")
    @classmethod
    def _only_of_streams(cls, options: StreamOptions, info: ValidationInfo) -> StreamOptions:
        if not info.data.get("stream", True):  # absent: it is wrong itself, and told first
            raise wrong("only allowed when stream is true")
        return options

    @model_validator(mode="after")
    def _fits_together(self) -> "Body":
        given = [name for name in GUIDE_FIELDS if getattr(self, name) is not None]
        if len(given) > 1:
            raise wrong(f"only one of {' and '.join(given)} can be followed", given[0])
        if self.token_limit is not None and self.min_tokens > self.token_limit:
            raise wrong(f"more than {self.limit_field}", "min_tokens")
        return self

    @property
    def guide_field(self) -> str | None:
        """The field that says what the answer must match."""
        return next((name for name in GUIDE_FIELDS if getattr(self, name) is not None), None)

    @property
    def choices(self) -> int:
        """Answers that are asked for, over all prompts."""
        return self.n

    @property
    def told(self) -> int | None:
        """So many of the likeliest tokens are to be told beside each one's log-probability."""
        raise NotImplementedError

    @property
    def token_limit(self) -> int | None:
        """Tokens to produce at most; the newer name wins if both are given."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def limit_field(self) -> str:
        """The field that `token_limit` comes from."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options.include_usage)


class Function(Part):
    name: str
    arguments: str


class ToolCall(Part):
    id: str
    function: Function
    type: Literal["function"] = "function"


class Message(Part):
    """One turn of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(flat_content)] = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _says_something(self) -> "Message":
        """Only an assistant that called tools may have no content."""
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise wrong(f"a message of role {self.role} must have content, which may be empty")
        return self


class ChatBody(Body):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    chat_template_kwargs: Annotated[dict[str, Any], PlainValidator(template_kwargs)] = {}
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0, le=MAX_TOP_LOGPROBS)

    @model_validator(mode="after")
    def _tells_what_is_told(self) -> "ChatBody":
        if self.top_logprobs and not self.logprobs:
            raise wrong("needs logprobs to be true", "top_logprobs")
        return self

    @property
    def told(self) -> int | None:
        return self.top_logprobs if self.logprobs else None


class CompletionBody(Body):
    """POST /v1/completions."""

    prompt: Annotated[tuple[str | tuple[int, ...], ...], PlainValidator(prompts)]
    max_tokens: int | None = Field(default=16, ge=0, le=MAX_TOKENS)
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    echo: bool = False

    @model_validator(mode="after")
    def _says_something(self) -> "CompletionBody":
        if self.token_limit == 0 and not self.echo:
            raise wrong("may be 0 only with echo", "max_tokens")
        return self

    @property
    def told(self) -> int | None:
        return self.logprobs

    @property
    def choices(self) -> int:
        return self.n * len(self.prompt)


class EmbeddingsBody(Part):
    """POST /v1/embeddings."""

    model: str = Field(min_length=1)
    input: Annotated[tuple[str | tuple[int, ...], ...], PlainValidator(prompts)]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1, le=MAX_DIMENSIONS)
    service_tier: str | None = None

    @field_validator("input")
    @classmethod
    def _not_too_many(cls, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(inputs) > MAX_INPUTS:
            raise wrong(f"at most {MAX_INPUTS} inputs")
        return inputs


def parse(raw: bytes, kind: type[B]) -> tuple[B, list[str]]:
    """The body, and the names of fields that have no effect here; InvalidRequest that names the first wrong one."""
    try:
        given = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}", code="invalid_json") from error
    if not isinstance(given, dict):
        raise InvalidRequest("The body must be a JSON object.", code="invalid_json")
    fields = {name: value for name, value in given.items() if value is not None}
    policy.refuse_unsupported(fields)
    try:
        body = kind.model_validate(fields)
    except ValidationError as error:
        raise _first_problem(error) from error
    known = kind.model_fields.keys() | policy.NEUTRAL.keys() | policy.WITHOUT_EFFECT
    return body, [name for name in fields if name not in known]


def _first_problem(error: ValidationError) -> InvalidRequest:
    problem = error.errors(include_url=False, include_input=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
    param = place or problem.get("ctx", {}).get("param", "")
    kind = problem["type"]
    code = {"missing": "missing_required_parameter", "unsupported": "unsupported_value"}.get(kind, "invalid_value")
    if kind == "unsupported_parameter":
        code = kind
    return InvalidRequest(f"{param}: {problem['msg']}", param=param, code=code)
