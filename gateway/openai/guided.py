"""The fields that ask for structured output, OpenAI's and vLLM's, each brought into a guide."""

from typing import Any

import msgspec

from gateway.openai.fields import wrong
from shared import guides
from shared.wire import Guide

KINDS = ("json", "json_object", "regex", "choice", "grammar")


def response_format(given: Any) -> Guide | None:
    """OpenAI's: text, json_object or json_schema."""
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return schema({"type": "object"})
    if kind != "json_schema":
        raise wrong("type must be text, json_object or json_schema")
    named = given.get("json_schema")
    if not isinstance(named, dict):
        raise wrong("json_schema must be an object with a schema")
    return schema(named.get("schema", {"type": "object"}))


def structured_outputs(given: Any) -> Guide | None:
    """vLLM's: an object with one of json, json_object, regex, choice and grammar."""
    if not isinstance(given, dict):
        raise wrong("must be an object")
    asked = {name: value for name, value in given.items() if value is not None and value is not False}
    if unknown := asked.keys() - set(KINDS):
        raise wrong(f"{min(unknown)[:40]} is not supported; {', '.join(KINDS)} are")
    if len(asked) > 1:
        raise wrong("only one kind can be followed")
    for name, value in asked.items():
        if name == "json_object":
            return schema({"type": "object"})
        return {"json": schema, "regex": regex, "choice": choice, "grammar": grammar}[name](value)
    return None


def schema(given: Any) -> Guide:
    """A JSON schema, as an object or as its text."""
    if isinstance(given, str):
        return Guide(kind="json_schema", text=given)
    if not isinstance(given, dict | bool):
        raise wrong("a schema must be an object")
    return Guide(kind="json_schema", text=msgspec.json.encode(given).decode())


def regex(given: Any) -> Guide:
    if not isinstance(given, str) or not given:
        raise wrong("must be a regular expression")
    return Guide(kind="regex", text=given)


def choice(given: Any) -> Guide:
    if not isinstance(given, list) or not given or not all(isinstance(one, str) and one for one in given):
        raise wrong("must be a list of non-empty strings")
    if len(given) > guides.MAX_CHOICES:
        raise wrong(f"at most {guides.MAX_CHOICES} choices")
    return guides.of_choices(given)


def grammar(given: Any) -> Guide:
    if not isinstance(given, str) or not given:
        raise wrong("must be a grammar")
    if len(given) > guides.MAX_BYTES:
        raise wrong(f"at most {guides.MAX_BYTES} characters")
    return Guide(kind="grammar", text=given)
