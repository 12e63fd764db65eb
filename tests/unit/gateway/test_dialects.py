"""Chunks and bodies as OpenAI writes them, and the bytes of their events."""

import json

import pytest
from openai.types import Completion as CompletionType
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.openai import sse
from gateway.openai.dialects import Chat, Completion, Heading, usage
from gateway.openai.errors import Problem
from shared.wire import ErrorInfo, Outcome, Usage

DONE = Outcome(state="done", reason="length", usage=Usage(prompt_tokens=3, completion_tokens=2))
DETAILS = {"prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0}}
LINE_ENDS = "a\u2028b\u2029c\u0085d\u000be\u000cf\ng\rh\u001ci\u001dj\u001ek"


def heading(**fields) -> Heading:
    return Heading(**{"request_id": "r", "created": 1, "model": "m", "service_tier": "default", **fields})


def counts(prompt: int, answer: int) -> dict:
    return {"prompt_tokens": prompt, "completion_tokens": answer, "total_tokens": prompt + answer}


def events(raw: bytes) -> list:
    lines = raw.decode().split("\n\n")
    assert lines.pop() == ""
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(text) if (text := line.removeprefix("data: ")) != "[DONE]" else text for line in lines]


def whole_stream(dialect, pieces) -> list:
    return events(dialect.opening + dialect.text(pieces) + dialect.closing(DONE, len(pieces)))


@pytest.mark.parametrize("dialect", [Chat, Completion])
def test_every_chunk_is_complete_and_alike(dialect):
    """B019."""
    *chunks, last = whole_stream(dialect(heading()), ["a", "b"])

    assert last == "[DONE]"
    constant = [{key: value for key, value in chunk.items() if key != "choices"} for chunk in chunks]
    assert all(one == constant[0] for one in constant)
    assert {"id", "object", "created", "model"} <= constant[0].keys()


def test_chunks_are_what_the_client_expects():
    *chunks, _ = whole_stream(Chat(heading()), ["a", "b"])

    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)


def test_the_role_comes_first_and_only_once():
    """B025, B027."""
    *chunks, _ = whole_stream(Chat(heading()), ["a", "b"])

    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {}]


@pytest.mark.parametrize("dialect", [Chat, Completion])
def test_the_finish_reason_comes_alone_after_the_text_and_once(dialect):
    """B009, B010."""
    *chunks, _ = whole_stream(dialect(heading()), ["a", "b"])

    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    assert choices[-1].get("text", "") == "" and choices[-1].get("delta", {}) == {}


@pytest.mark.parametrize("dialect", [Chat, Completion])
def test_usage_comes_only_when_asked_for_last_and_without_choices(dialect):
    """B011, B013."""
    *without, _ = whole_stream(dialect(heading()), ["a"])
    *asked, last, _ = whole_stream(dialect(heading(include_usage=True)), ["a"])

    assert all(chunk["choices"] and "usage" not in chunk for chunk in without)
    assert all(chunk["choices"] and chunk["usage"] is None for chunk in asked)
    assert last["choices"] == []
    assert last["usage"] == {**counts(3, 2), **DETAILS}


def test_bodies_are_what_the_client_expects():
    chat = ChatCompletion.model_validate_json(Chat(heading(service_tier="flex")).body("hi", DONE, 2), strict=True)
    completion = CompletionType.model_validate_json(Completion(heading()).body("hi", DONE, 2), strict=True)

    assert (chat.choices[0].message.content, chat.choices[0].finish_reason, chat.service_tier) == (
        "hi",
        "length",
        "flex",
    )
    assert (completion.choices[0].text, completion.usage.total_tokens) == ("hi", 5)


def test_usage_falls_back_on_our_own_count():
    assert usage(Outcome(state="done"), 4) == {**counts(0, 4), **DETAILS}


def test_usage_has_the_details_that_some_clients_read_unasked():
    chat = ChatCompletion.model_validate_json(Chat(heading()).body("hi", DONE, 2), strict=True)

    assert chat.usage.prompt_tokens_details.cached_tokens == 0
    assert chat.usage.completion_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize("text", [LINE_ENDS, "🫠🥹 龜 안녕하세요", '"\\', "\x00\x7f", "\u2028" * 3, "é\u0085"])
def test_no_character_of_a_text_can_be_taken_for_the_end_of_a_line(text):
    """B033, B001."""
    dialect = Chat(heading())

    raw = dialect.text([text, text])

    assert len(raw.decode().splitlines()) == len(raw.split(b"\n")) - 1 == 4
    assert [event["choices"][0]["delta"]["content"] for event in events(raw)] == [text, text]
    assert json.loads(dialect.body(text, DONE, 1))["choices"][0]["message"]["content"] == text


def test_comments_are_no_events():
    """B020, B021: neither data nor id, retry or event lines."""
    for comment in (sse.QUEUED, sse.PING):
        assert comment.startswith(b": ") and comment.endswith(b"\n\n") and comment.count(b"\n") == 2


def test_an_error_in_a_stream_is_one_event_that_names_the_request():
    """B015, B017."""
    outcome = Outcome(state="failed", error=ErrorInfo(code="worker_lost", message="Gone."))

    error, last = events(Problem.of_outcome(outcome).event("req-1"))

    assert last == "[DONE]"
    assert error["error"]["code"] == "worker_lost"
    assert "req-1" in error["error"]["message"]
