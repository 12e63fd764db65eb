"""What goes to an OpenAI server, and what its words mean."""

import json

import pytest

from shared.errors import InvalidRequest
from shared.wire import GenerateRequest, Guide, Sampling, TokenLogprob, Usage
from worker.engines.upstream.body import body, path
from worker.engines.upstream.reading import MAX_EVENT_BYTES, AwayError, delta, events, failure

MESSAGES = ({"role": "user", "content": "hi"},)


def sent(request):
    told = body(request, "there", 100)
    assert json.loads(json.dumps(told)) == told
    return told


def test_a_plain_chat_says_only_what_openai_knows():
    request = GenerateRequest(sampling=Sampling(seed=5, max_tokens=9, temperature=0.5), messages=MESSAGES)

    assert path(request) == "/chat/completions"
    assert sent(request) == {
        "model": "there",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": list(MESSAGES),
        "temperature": 0.5,
        "top_p": 1.0,
        "seed": 5,
        "max_tokens": 9,
    }


def test_every_way_of_choosing_tokens_is_passed_on():
    fields = {
        "top_k": 4,
        "min_p": 0.1,
        "frequency_penalty": 0.2,
        "presence_penalty": -0.3,
        "repetition_penalty": 1.1,
        "min_tokens": 2,
        "ignore_eos": True,
    }
    sampling = Sampling(seed=5, **fields, stop=("a", "b"), stop_token_ids=(7,), logit_bias=((3, -1.5),), logprobs=2)

    told = sent(GenerateRequest(sampling=sampling, messages=MESSAGES, chat_template_kwargs={"think": False}))

    expected = {"stop": ["a", "b"], "stop_token_ids": [7], "logit_bias": {"3": -1.5}, "logprobs": True}
    assert told.items() >= {**fields, **expected, "top_logprobs": 2, "chat_template_kwargs": {"think": False}}.items()
    # no field of Sampling is forgotten: one that is added later must be thought of here
    assert set(Sampling.__struct_fields__) - {"max_tokens"} <= told.keys()


@pytest.mark.parametrize(("prompt", "limit"), [("hi", None), ((5, 6), 98)])
def test_a_completion_gets_what_the_context_leaves_if_that_is_known(prompt, limit):
    request = GenerateRequest(sampling=Sampling(seed=5, logprobs=0), prompt=prompt)

    told = sent(request)

    assert path(request) == "/completions"
    assert told["prompt"] == (list(prompt) if isinstance(prompt, tuple) else prompt)
    assert (told.get("max_tokens"), told["logprobs"]) == (limit, 0)


@pytest.mark.parametrize(
    ("guide", "expected"),
    [
        (
            Guide(kind="json_schema", text='{"type": "object"}'),
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True},
                }
            },
        ),
        (Guide(kind="regex", text="a+"), {"structured_outputs": {"regex": "a+"}}),
        (Guide(kind="grammar", text="root: x"), {"structured_outputs": {"grammar": "root: x"}}),
    ],
)
def test_a_guide_is_passed_on(guide, expected):
    assert sent(GenerateRequest(sampling=Sampling(seed=1), messages=MESSAGES, guide=guide)).items() >= expected.items()


async def read(*chunks):
    async def stream():
        for chunk in chunks:
            yield chunk

    return [data async for data in events(stream())]


async def test_events_are_read_however_they_are_cut():
    raw = ': ping\n\ndata: {"a":"\u2028"}\r\n\r\nevent: x\ndata: b\ndata: c\n\ndata: cut'.encode()
    expected = ['{"a":"\u2028"}', "b\nc"]

    assert await read(raw) == expected
    assert await read(*(raw[n : n + 1] for n in range(len(raw)))) == expected


async def test_an_event_without_end_is_not_kept():
    with pytest.raises(AwayError, match="without end"):
        await read(*[b"x" * 2**20] * (MAX_EVENT_BYTES // 2**20 + 1))


def test_chat_and_completions_are_understood():
    chat = {"choices": [{"delta": {"content": "hé"}, "finish_reason": None}]}
    completion = {"choices": [{"text": "", "finish_reason": "length"}]}
    last = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}

    assert delta(json.dumps(chat)).text == "hé"
    assert delta(json.dumps(completion)).reason == "length"
    assert delta(json.dumps(last)).usage == Usage(prompt_tokens=3, completion_tokens=2)


def test_half_a_character_becomes_the_replacement():
    assert delta('{"choices": [{"delta": {"content": "a\\ud83d"}}]}').text == "a\ufffd"


def test_log_probabilities_of_both_kinds_are_understood():
    content = [
        {
            "token": "x",
            "bytes": [240],
            "logprob": -1.0,
            "top_logprobs": [{"token": "é", "bytes": None, "logprob": -0.5}],
        }
    ]
    lists = {"tokens": ["x"], "token_logprobs": [None], "top_logprobs": [{"b": -2.0, "a": -1.0}], "text_offset": [0]}

    of_chat = delta(json.dumps({"choices": [{"delta": {}, "logprobs": {"content": content}}]}))
    of_completion = delta(json.dumps({"choices": [{"text": "x", "logprobs": lists}]}))

    assert of_chat.logprobs == (TokenLogprob(raw=b"\xf0", logprob=-1.0, top=(("é".encode(), -0.5),)),)
    assert of_completion.logprobs == (TokenLogprob(raw=b"x", logprob=None, top=((b"a", -1.0), (b"b", -2.0))),)


@pytest.mark.parametrize("data", ["", "nonsense", "[]", "3", '{"choices": 5}', '{"choices": [{"delta": 7}]}'])
def test_what_is_no_event_is_the_upstreams_fault(data):
    with pytest.raises(AwayError, match="no event"):
        delta(data)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"message": "too long", "type": "invalid_request_error", "code": "invalid_value"}, InvalidRequest),
        ({"message": "bad", "type": "BadRequestError", "code": 400}, InvalidRequest),
        ({"message": "oops", "type": "server_error", "code": "internal_error"}, AwayError),
        ({"message": "slow down", "code": 429}, AwayError),
        ("gone", AwayError),
    ],
)
def test_an_error_within_a_stream_is_told_apart(error, kind):
    with pytest.raises(kind):
        delta(json.dumps({"error": error}))


@pytest.mark.parametrize(
    ("status", "raw", "code", "message"),
    [
        (400, b'{"error": {"message": "no", "code": "unsupported_value"}}', "unsupported_value", "no"),
        (400, b'{"error": {"message": "no", "code": "of_their_own"}}', "invalid_request", "no"),
        (400, b'{"message": "maximum context length is 5", "code": 400}', "context_length_exceeded", "maximum"),
        (404, b'{"error": {"message": "who?", "code": "model_not_found"}}', "model_not_found", "who"),
        (413, b"<html>", "request_too_large", "413"),
        (422, b'{"detail": [1]}', "invalid_request", "[1]"),
        (418, b'{"error": "teapot"}', "invalid_request", "teapot"),
        (400, b"[]", "invalid_request", "400"),
    ],
)
def test_what_the_caller_did_wrong_is_told_to_the_caller(status, raw, code, message):
    error = failure(status, {}, raw)

    assert isinstance(error, InvalidRequest)
    assert error.code == code
    assert message in error.message


@pytest.mark.parametrize(
    ("status", "retry_after", "pause_s", "may_be_the_request"),
    [
        (429, "7", 7.0, False),
        (503, None, 1.0, False),
        (429, "Wed, 21 Oct 2026 07:28:00 GMT", 1.0, False),
        (429, "1e9", 300.0, False),
        (429, "nan", 1.0, False),
        (503, "-5", 0.0, False),
        (500, None, 0.0, True),
        (401, "9", 0.0, True),
        (302, None, 0.0, True),
    ],
)
def test_what_is_nobodys_fault_here_is_tried_again(status, retry_after, pause_s, may_be_the_request):
    error = failure(status, {"retry-after": retry_after} if retry_after else {}, b'{"error": {"message": "sk-secret"}}')

    assert isinstance(error, AwayError)
    assert (error.pause_s, error.may_be_the_request) == (pause_s, may_be_the_request)
    assert "secret" not in str(error)
