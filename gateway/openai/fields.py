"""Fields that may be written in several ways, brought into one."""

import re
from typing import Any

import msgspec
from pydantic_core import PydanticCustomError

MAX_STOPS = 4
MAX_STOP_CHARS = 256
MAX_TOKEN_ID = 2**31 - 1
MAX_BIASES = 1024
MAX_STOP_IDS = 128
MAX_DEPTH = 16
MAX_KWARGS_BYTES = 64 * 1024
# These are ours: a client that set them could run its own template in the worker, or break its caller.
RESERVED_KWARGS = frozenset({
    "chat_template", "tokenize", "tokenizer", "conversation", "messages", "add_generation_prompt",
    "continue_final_message", "tools", "documents", "padding", "truncation", "max_length", "return_tensors",
    "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs",
})  # fmt: skip

_PART_TYPE = re.compile(r"[a-z_]{1,40}")


def wrong(message: str, param: str = "") -> PydanticCustomError:
    """The value is not one that the field may have; `param` names the field where no single one is being looked at."""
    return PydanticCustomError("invalid_value", "{message}", {"message": message, "param": param})


def unsupported(message: str, *, kind: str = "unsupported") -> PydanticCustomError:
    """The value may be right elsewhere, but not here."""
    return PydanticCustomError(kind, "{message}", {"message": message})  # type: ignore[arg-type]


def flat_content(content: Any) -> str | None:
    """A message's content as text; the parts of a list become lines."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise wrong("must be a string or a non-empty list of parts")
    return "\n".join(_part_text(part) for part in content)


def _part_text(part: Any) -> str:
    if not isinstance(part, dict):
        raise wrong("each part must be an object")
    kind = part.get("type")
    if kind != "text":
        named = kind if isinstance(kind, str) and _PART_TYPE.fullmatch(kind) else "unknown"
        raise unsupported(f"parts of type {named} are not supported; only text is")
    if not isinstance(part.get("text"), str):
        raise wrong("a part of type text must have a text")
    return part["text"]


def stop_strings(stop: Any) -> tuple[str, ...]:
    """A string or up to four: none long, as workers look for them at every token; none empty, as that is everywhere."""
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(one, str) for one in stops):
        raise wrong("must be a string or a list of strings")
    if len(stops) > MAX_STOPS:
        raise wrong(f"at most {MAX_STOPS} strings")
    if any(len(one) > MAX_STOP_CHARS for one in stops):
        raise wrong(f"at most {MAX_STOP_CHARS} characters a string")
    if "" in stops:
        raise wrong("an empty string cannot stop anything")
    return tuple(stops)


def logit_biases(biases: Any) -> tuple[tuple[int, float], ...]:
    """Token ids as JSON writes them, as keys of an object, and what is added to each one's logit."""
    if not isinstance(biases, dict):
        raise wrong("must be an object")
    if len(biases) > MAX_BIASES:
        raise wrong(f"at most {MAX_BIASES} tokens")
    for token, bias in biases.items():
        if not (token.isascii() and token.isdigit() and len(token) < 11 and int(token) <= MAX_TOKEN_ID):
            raise wrong("each key must be a token id")
        if isinstance(bias, bool) or not isinstance(bias, int | float) or not -100 <= bias <= 100:
            raise wrong("each value must be a number from -100 to 100")
    return tuple((int(token), float(bias)) for token, bias in biases.items())


def stop_ids(ids: Any) -> tuple[int, ...]:
    """Token ids that end an answer."""
    if not isinstance(ids, list) or not _all_token_ids(ids):
        raise wrong("must be a list of token ids")
    if len(ids) > MAX_STOP_IDS:
        raise wrong(f"at most {MAX_STOP_IDS} tokens")
    return tuple(ids)


def prompts(given: Any) -> tuple[str | tuple[int, ...], ...]:
    """One prompt or a list of them, each a text or a list of token ids."""
    if isinstance(given, list) and given and isinstance(given[0], str | list):
        return tuple(_prompt(one) for one in given)
    return (_prompt(given),)


def _all_token_ids(ids: list[Any]) -> bool:
    return all(type(token) is int and 0 <= token <= MAX_TOKEN_ID for token in ids)


def _prompt(prompt: Any) -> str | tuple[int, ...]:
    """Text or token ids."""
    if not prompt or not isinstance(prompt, str | list):
        raise wrong("must be a non-empty string or a non-empty list of token ids")
    if isinstance(prompt, str):
        return prompt
    if not _all_token_ids(prompt):
        raise wrong("token ids must be integers, 0 or more")
    return tuple(prompt)


def template_kwargs(kwargs: Any) -> dict[str, Any]:
    """What a chat template may be given: plain, shallow values under names that are not ours."""
    if not isinstance(kwargs, dict):
        raise wrong("must be an object")
    for name in kwargs:
        if name in RESERVED_KWARGS:
            raise unsupported(f"{name} cannot be set", kind="unsupported_parameter")
        if not name.isidentifier() or not name.isascii():
            raise wrong("each name must be an identifier")
    if _deeper_than(kwargs, MAX_DEPTH):
        raise wrong(f"nested more than {MAX_DEPTH} levels")
    if len(msgspec.json.encode(kwargs)) > MAX_KWARGS_BYTES:
        raise wrong(f"larger than {MAX_KWARGS_BYTES} bytes")
    return kwargs


def _deeper_than(value: Any, levels: int) -> bool:
    layer = [value]
    for _ in range(levels):
        layer = [
            inner
            for outer in layer
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not layer:
            return False
    return True
