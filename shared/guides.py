"""Guides: what both sides must agree on about them. llguidance comes with the gateway's and the worker's extras."""

import json
from collections.abc import Sequence
from typing import Any

from shared import wire
from shared.errors import InvalidRequest

PARAM = "response_format"
MAX_BYTES = 64 * 1024
MAX_GBNF_CHARS = 8 * 1024
MAX_CHOICES = 1_000
JSON_STYLE: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One way to write JSON: where any white space may come, a small model writes it for ever."""


def of_choices(choices: Sequence[str]) -> wire.Guide:
    """One of these texts."""
    return wire.Guide(kind="grammar", text="start: " + " | ".join(json.dumps(choice) for choice in choices))


def prepared(guide: wire.Guide, param: str) -> wire.Guide:
    """The guide as workers take it; InvalidRequest, which names the field, if nothing can be made of it.

    Up to some hundred milliseconds of work, so not for an event loop. llguidance bounds depth, size and work by itself,
    and fetches nothing that a schema refers to.
    """
    from llguidance import LLMatcher

    if len(guide.text.encode()) > MAX_BYTES:
        raise InvalidRequest(f"A schema or grammar may have {MAX_BYTES} bytes at most.", param=param)
    if guide.kind == "grammar":
        guide = wire.Guide(kind="grammar", text=_as_lark(guide.text, param))
    try:
        problem = LLMatcher.validate_grammar(grammar_of(guide), None)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param=param) from None
    if problem:
        raise InvalidRequest(f"The schema or grammar cannot be used: {problem[:500]}", param=param)
    return guide


def _as_lark(text: str, param: str) -> str:
    """A grammar in Lark's form; one in llama.cpp's (GBNF) is put into it."""
    from llguidance import gbnf_to_lark

    if "::=" not in text or gbnf_to_lark.is_lark_syntax(text):
        return text
    if len(text) > MAX_GBNF_CHARS:  # the converter's time grows with the square of it
        raise InvalidRequest(f"A GBNF grammar may have {MAX_GBNF_CHARS} characters at most.", param=param)
    try:
        return gbnf_to_lark.gbnf_to_lark(text)
    except Exception as error:  # noqa: BLE001 - it raises bare exceptions and IndexErrors, whatever is wrong
        raise InvalidRequest(f"The grammar cannot be read: {str(error)[:200]}", param=param) from None


def grammar_of(guide: wire.Guide) -> str:
    """The guide in llguidance's form; InvalidRequest if it is malformed. More shows when it is compiled."""
    from llguidance import LLMatcher

    try:
        if guide.kind == "json_schema":
            return LLMatcher.grammar_from_json_schema(guide.text, overrides=JSON_STYLE)
        if guide.kind == "regex":
            return LLMatcher.grammar_from_regex(guide.text)
        return LLMatcher.grammar_from_lark(guide.text)
    except ValueError as error:
        raise InvalidRequest(f"The schema or grammar cannot be read: {str(error)[:500]}", param=PARAM) from error
