"""What a body is told from another by."""

import json

from gateway.openai.schemas import ChatBody, parse
from gateway.routes.generation import content
from gateway.terms import fingerprint

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def said(**fields) -> str:
    body, _ = parse(json.dumps({**CHAT, **fields}).encode(), ChatBody)
    return fingerprint("chat.completions", content(body))


def test_fields_that_a_validator_makes_are_told_without_a_word_of_warning():
    """A warning is an error here, and noise in a gateway's log."""
    assert said() == said(stop=[], logit_bias={}, stop_token_ids=[])


def test_each_of_them_tells_two_requests_apart():
    assert len({said(), said(stop="x"), said(logit_bias={"1": 2}), said(stop_token_ids=[3])}) == 4
