"""Chunks and bodies as OpenAI writes them, and the bytes of their events."""

import base64
import json
from array import array

import pytest
from openai.types import Completion as CompletionType
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.openai import sse
from gateway.openai.dialects import Chat, Completion, Heading, usage
from gateway.openai.embeddings import Embeddings
from gateway.openai.errors import Problem
from shared.errors import WireError
from shared.wire import ErrorInfo, Frame, Outcome, Prompt, TokenLogprob, Usage

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


def frames(*texts) -> list[Frame]:
    return [Frame(id="r", attempt=1, at=at, ids=(at,), text=text) for at, text in enumerate(texts)]


def whole_stream(dialect, pieces, outcome=DONE) -> list:
    [choice] = dialect.choices
    said = choice.opening + choice.text(frames(*pieces)) + choice.finish(outcome)
    return events(said + dialect.closing([(outcome, len(pieces))]))


def body(dialect, *pieces, outcome=DONE) -> bytes:
    return dialect.body([(pieces if pieces and isinstance(pieces[0], Frame) else frames(*pieces), outcome, 2)])


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
    chat = ChatCompletion.model_validate_json(body(Chat(heading(service_tier="flex")), "hi"), strict=True)
    completion = CompletionType.model_validate_json(body(Completion(heading()), "h", "i"), strict=True)

    assert (chat.choices[0].message.content, chat.choices[0].finish_reason, chat.service_tier) == (
        "hi",
        "length",
        "flex",
    )
    assert (completion.choices[0].text, completion.usage.total_tokens) == ("hi", 5)


def test_usage_falls_back_on_our_own_count():
    assert usage([(Outcome(state="done"), 4)]) == {**counts(0, 4), **DETAILS}


def test_usage_has_the_details_that_some_clients_read_unasked():
    chat = ChatCompletion.model_validate_json(body(Chat(heading()), "hi"), strict=True)

    assert chat.usage.prompt_tokens_details.cached_tokens == 0
    assert chat.usage.completion_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize("text", [LINE_ENDS, "🫠🥹 龜 안녕하세요", '"\\', "\x00\x7f", "\u2028" * 3, "é\u0085"])
def test_no_character_of_a_text_can_be_taken_for_the_end_of_a_line(text):
    """B033, B001."""
    dialect = Chat(heading())

    raw = dialect.choices[0].text(frames(text, text))

    assert len(raw.decode().splitlines()) == len(raw.split(b"\n")) - 1 == 4
    assert [event["choices"][0]["delta"]["content"] for event in events(raw)] == [text, text]
    assert json.loads(body(dialect, text))["choices"][0]["message"]["content"] == text


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


# Log-probabilities and echoed prompts --------------------------------------------------------------

TOP = ((b" a", -0.5), (b"\xc3", -2.0))
FIRST = TokenLogprob(raw=b"Once")
TOKENS = (TokenLogprob(raw=b" a", logprob=-0.5, top=TOP), TokenLogprob(raw=b"\xc3", logprob=-3.0, top=TOP[:1]))


def told() -> list[Frame]:
    """A token with text, and one that is half a character."""
    return [
        Frame(id="r", attempt=1, at=0, ids=(1,), text=" a", logprobs=TOKENS[:1]),
        Frame(id="r", attempt=1, at=1, ids=(2,), logprobs=TOKENS[1:]),
    ]


def test_log_probabilities_of_a_chat_are_what_the_client_expects():
    answer = ChatCompletion.model_validate_json(body(Chat(heading()), *told()), strict=True)

    first, second = answer.choices[0].logprobs.content
    assert (first.token, first.logprob, bytes(first.bytes)) == (" a", -0.5, b" a")
    assert [(one.token, one.logprob) for one in first.top_logprobs] == [(" a", -0.5), ("\ufffd", -2.0)]
    assert (second.token, second.bytes) == ("\ufffd", [0xC3])


def test_streamed_log_probabilities_come_with_their_token_even_without_text():
    [choice] = Chat(heading()).choices
    chunks = [ChatCompletionChunk.model_validate(one, strict=True) for one in events(choice.text(told()))]

    assert [chunk.choices[0].delta.content for chunk in chunks] == [" a", ""]
    assert [chunk.choices[0].logprobs.content[0].logprob for chunk in chunks] == [-0.5, -3.0]


def test_log_probabilities_of_a_completion_stand_side_by_side_with_the_prompt_first():
    _, second = told()
    prompt = Prompt(text="Once", tokens=(FIRST,))
    whole = Frame(id="r", attempt=1, at=0, ids=(1,), text=" a", logprobs=TOKENS[:1], prompt=prompt)

    [choice] = json.loads(body(Completion(heading()), whole, second))["choices"]

    assert choice["text"] == "Once a"
    assert choice["logprobs"] == {
        "tokens": ["Once", " a", "bytes:\\xc3"],
        "token_logprobs": [None, -0.5, -3.0],
        "top_logprobs": [None, {" a": -0.5, "bytes:\\xc3": -2.0}, {"bytes:\\xc3": -3.0, " a": -0.5}],
        "text_offset": [0, 4, 6],
    }


def test_offsets_go_on_from_chunk_to_chunk():
    [choice] = Completion(heading()).choices

    chunks = events(choice.text(told()[:1])) + events(choice.text(told()[1:]))

    assert [chunk["choices"][0]["logprobs"]["text_offset"] for chunk in chunks] == [[0], [2]]


def test_a_prompt_is_told_although_no_token_follows():
    """max_tokens 0 with echo: the outcome brings it."""
    outcome = Outcome(state="done", reason="length", usage=DONE.usage, prompt=Prompt(text="Once", tokens=(FIRST,)))
    [choice] = Completion(heading()).choices
    first, last = events(choice.finish(outcome))
    answer = json.loads(body(Completion(heading()), outcome=outcome))

    assert (first["choices"][0]["text"], last["choices"][0]["finish_reason"]) == ("Once", "length")
    assert (answer["choices"][0]["text"], answer["choices"][0]["logprobs"]["tokens"]) == ("Once", ["Once"])


def test_a_prompt_counts_once_for_all_of_its_choices():
    cached = Outcome(state="done", usage=Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1))

    counted = usage([(cached, 2)] * 6, choices_per_prompt=3)

    assert (counted["prompt_tokens"], counted["completion_tokens"]) == (6, 12)
    assert counted["prompt_tokens_details"]["cached_tokens"] == 2


# Embeddings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings_of_several_parts_are_numbered_through(encoding):
    numbers = [[1.0, -2.5], [0.0, 3.0], [0.5, 0.25]]
    packed = [array("f", values).tobytes() for values in numbers]
    parts = [
        Outcome(state="done", usage=Usage(prompt_tokens=5, completion_tokens=0), embeddings=packed[0] + packed[1]),
        Outcome(state="done", usage=Usage(prompt_tokens=2, completion_tokens=0), embeddings=packed[2]),
    ]

    raw = Embeddings("m", [2, 1], encoding).body([((), part, 0) for part in parts])
    answer = json.loads(raw)

    assert [one["index"] for one in answer["data"]] == [0, 1, 2]
    found = [one["embedding"] for one in answer["data"]]
    if encoding == "base64":
        found = [array("f", base64.b64decode(one)).tolist() for one in found]
    assert found == numbers
    assert answer["usage"] == {"prompt_tokens": 7, "total_tokens": 7}


def test_vectors_that_are_cut_short_are_no_answer():
    part = Outcome(state="done", embeddings=b"\x00" * 12)

    with pytest.raises(WireError):
        Embeddings("m", [2], "float").body([((), part, 0)])
    with pytest.raises(WireError):
        Embeddings("m", [1], "float").body([((), Outcome(state="done"), 0)])


def test_offsets_count_characters_that_several_tokens_make():
    tokens = tuple(TokenLogprob(raw=bytes([byte]), logprob=-1.0) for byte in "é龜x".encode())
    whole = Frame(id="r", attempt=1, at=0, ids=tuple(range(6)), text="é龜x", logprobs=tokens)

    [choice] = json.loads(body(Completion(heading()), whole))["choices"]

    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 1, 1, 2]
