"""Guides: what both sides must agree on about them. llguidance comes with the gateway's and the worker's extras."""

import json
from collections.abc import Sequence
from typing import Any

from shared import wire
from shared.errors import InvalidRequest

PARAM = "response_format"
MAX_BYTES = 64 * 1024
MAX_CHOICES = 1_000
JSON_STYLE: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One way to write JSON: where any white space may come, a small model writes it for ever."""


def of_choices(choices: Sequence[str]) -> wire.Guide:
    """One of these texts."""
    return wire.Guide(kind="grammar", text="start: " + " | ".join(json.dumps(choice) for choice in choices))


def of_grammar(text: str) -> wire.Guide:
    """A grammar in Lark's form, or in llama.cpp's (GBNF), which is put into it."""
    if "::=" not in text:
        return wire.Guide(kind="grammar", text=text)
    from llguidance import gbnf_to_lark

    try:
        return wire.Guide(kind="grammar", text=gbnf_to_lark.gbnf_to_lark(text))
    except (gbnf_to_lark.GbnfToLarkError, RecursionError) as error:
        raise InvalidRequest(f"The grammar cannot be read: {error}", param=PARAM) from error


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
        raise InvalidRequest(f"The schema or grammar cannot be read: {error}", param=PARAM) from error


def refuse_wrong(guide: wire.Guide) -> None:
    """InvalidRequest if nothing can be made of the guide. Takes milliseconds, and releases the interpreter's lock.

    llguidance bounds depth, size and work by itself, and fetches nothing that a schema refers to.
    """
    from llguidance import LLMatcher

    if len(guide.text.encode()) > MAX_BYTES:
        raise InvalidRequest(f"A schema or grammar may have {MAX_BYTES} bytes at most.", param=PARAM)
    problem = LLMatcher.validate_grammar(grammar_of(guide), None)
    if problem:
        raise InvalidRequest(f"The schema or grammar cannot be used: {problem[:500]}", param=PARAM)
