"""Request bodies: null is unset, what would change the answer and is not built is refused, nothing is a 500."""

import json

import pytest

from gateway.openai.schemas import ChatBody, CompletionBody, parse
from shared.errors import InvalidRequest

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "m", "prompt": "hi"}


def chat(**fields):
    return parse(json.dumps({**CHAT, **fields}).encode(), ChatBody)[0]


def completion(**fields):
    return parse(json.dumps({**COMPLETION, **fields}).encode(), CompletionBody)[0]


def refusal(raw, kind=ChatBody) -> InvalidRequest:
    body = raw if isinstance(raw, bytes) else json.dumps(raw).encode()
    with pytest.raises(InvalidRequest) as caught:
        parse(body, kind)
    return caught.value


OPTIONAL = [name for name in ChatBody.model_fields if name not in ("model", "messages")]


@pytest.mark.parametrize("name", [*OPTIONAL, "n", "logprobs", "logit_bias", "tools", "user", "metadata", "whatever"])
def test_null_is_as_good_as_unset(name):
    """B047."""
    assert chat(**{name: None}) == chat()


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function"}]}, {"tool_choice": "required"}, {"tool_choice": {"type": "function"}},
        {"suffix": "x"}, {"best_of": 2}, {"chat_template": "{{ x }}"}, {"modalities": ["text", "audio"]},
        {"functions": [{}]}, {"add_generation_prompt": False}, {"prompt_logprobs": 0}, {"skip_special_tokens": False},
    ],
)  # fmt: skip
def test_what_would_change_the_answer_is_refused(fields):
    """B008, B053, B059, B069: support or refuse, never ignore."""
    error = refusal({**CHAT, **fields})

    assert (error.code, error.param) == ("unsupported_parameter", next(iter(fields)))


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1}, {"logprobs": False}, {"top_logprobs": 0}, {"logit_bias": {}}, {"frequency_penalty": 0},
        {"frequency_penalty": 0.0}, {"repetition_penalty": 1.0}, {"min_p": 0}, {"response_format": {"type": "text"}},
        {"tools": []}, {"tool_choice": "none"}, {"tool_choice": "auto"}, {"stop": []}, {"best_of": 1},
        {"top_k": -1}, {"modalities": ["text"]}, {"stop_token_ids": []}, {"temperature": 1e-9}, {"top_p": 1e-9},
        {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"metadata": {"a": "b"}},
        {"stream": True, "stream_options": {"include_usage": None}}, {"stream_options": None}, {"ignore_eos": True},
        {"parallel_tool_calls": True},
    ],
)  # fmt: skip
def test_what_asks_for_nothing_unusual_is_accepted(fields):
    assert parse(json.dumps({**CHAT, **fields}).encode(), ChatBody)[1] == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"), ({"temperature": 2.1}, "temperature"),
        ({"temperature": 1e308}, "temperature"),
        ({"temperature": "0.5"}, "temperature"), ({"temperature": True}, "temperature"), ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"), ({"top_k": -2}, "top_k"), ({"top_k": 1.5}, "top_k"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": True}, "max_tokens"), ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 10**30}, "max_tokens"), ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"seed": 2**63}, "seed"), ({"seed": 1.5}, "seed"), ({"stream": "yes"}, "stream"), ({"stream": 1}, "stream"),
        ({"stop": ""}, "stop"), ({"stop": [""]}, "stop"), ({"stop": ["a", ""]}, "stop"), ({"stop": [None]}, "stop"),
        ({"stop": [5]}, "stop"), ({"stop": 5}, "stop"), ({"stop": list("abcde")}, "stop"), ({"model": ""}, "model"),
        ({"stop": ["a", "x" * 257]}, "stop"), ({"stop": "x" * 100_000}, "stop"),
        ({"stream_options": {}}, "stream_options"), ({"stream": None, "stream_options": {}}, "stream_options"),
        ({"stream": False, "stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": "yes", "stream_options": {}}, "stream"),
        ({"chat_template_kwargs": {"x": "y" * 70_000}}, "chat_template_kwargs"),
        ({"model": 5}, "model"), ({"messages": []}, "messages"), ({"messages": "hi"}, "messages"),
        ({"messages": [5]}, "messages[0]"), ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"stream_options": {"include_usage": "yes"}}, "stream_options.include_usage"),
        ({"stream_options": 5}, "stream_options"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"), ({"service_tier": 5}, "service_tier"),
    ],
)  # fmt: skip
def test_wrong_values_name_their_field(fields, param):
    """B052, B055, B057."""
    error = refusal({**CHAT, **fields})

    assert (error.code, error.param) == ("invalid_value", param)


@pytest.mark.parametrize("name", ["model", "messages"])
def test_a_missing_or_null_required_field_is_named(name):
    without = {key: value for key, value in CHAT.items() if key != name}

    for body in (without, {**CHAT, name: None}):
        error = refusal(body)
        assert (error.code, error.param) == ("missing_required_parameter", name)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b"5", b"null", b'"x"', b"\xff", b'{"model": "\xff"}', b"\xef\xbb\xbf{}", b"[" * 100_000,
        b'{"a":' * 100_000, b'{"model": "m", "messages": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"temperature": NaN}', b'{"temperature": Infinity}', b'{"seed": ' + b"9" * 100_000 + b"}",
        b'{"temperature": 1e999}', b'{"model": "\\ud800"}', b'{"\\udc00": 1}',
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "\\udfffx"}]}]}',
        b'{"model": "m", "stop": "\\ud83d"}', b'{"model": "m"} {}',
    ],
)  # fmt: skip
def test_bytes_that_are_no_json_object_are_refused(raw):
    """B056, B060."""
    assert refusal(raw).code == "invalid_json"


def test_arbitrary_json_is_kept_shallow():
    """B060: what is passed on must be encodable again."""
    deep: list = []
    for _ in range(40):
        deep = [deep]

    assert refusal({**CHAT, "chat_template_kwargs": {"x": deep}}).param == "chat_template_kwargs"
    assert chat(chat_template_kwargs={"enable_thinking": False, "x": [1, {"y": 2}]}).chat_template_kwargs["x"] == [
        1,
        {"y": 2},
    ]


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "a-b", "", "é"])
def test_template_arguments_that_are_ours_are_refused(name):
    assert refusal({**CHAT, "chat_template_kwargs": {name: 1}}).param == "chat_template_kwargs"


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_text_parts_are_flattened_for_every_role(role):
    """B071."""
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]

    assert chat(messages=[{"role": role, "content": parts}]).messages[0].content == "one\ntwo"
    assert chat(messages=[{"role": role, "content": parts[:1]}]) == chat(messages=[{"role": role, "content": "one"}])


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "refusal"])
def test_other_parts_are_refused_by_name(kind):
    """B073, B156: no part is dropped, no URL is fetched."""
    error = refusal({**CHAT, "messages": [{"role": "user", "content": [{"type": kind, kind: {"url": "http://x"}}]}]})

    assert (error.code, error.param) == ("unsupported_value", "messages[0].content")
    assert kind in error.message


@pytest.mark.parametrize("part", [{}, {"type": 5}, {"type": "text"}, {"type": "text", "text": None}, "x", None])
def test_broken_parts_are_refused(part):
    assert refusal({**CHAT, "messages": [{"role": "user", "content": [part]}]}).param == "messages[0].content"


def test_histories_may_hold_empty_answers_and_tool_calls():
    """B046."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = chat(
        messages=[
            {"role": "user", "content": ""},
            {"role": "assistant", "content": ""},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "4", "tool_call_id": "c1"},
        ]
    )

    assert [message.content for message in body.messages] == ["", "", None, "4"]


def test_the_newer_name_of_the_token_limit_wins():
    """B064."""
    assert chat(max_completion_tokens=5).token_limit == 5
    assert chat(max_completion_tokens=5, max_tokens=50).token_limit == 5
    assert chat(max_tokens=50).token_limit == 50
    assert chat().token_limit is None
    assert completion().token_limit == 16


def test_the_field_that_the_token_limit_came_from_is_known():
    assert chat(max_completion_tokens=5, max_tokens=50).limit_field == "max_completion_tokens"
    assert chat(max_tokens=50).limit_field == completion().limit_field == "max_tokens"


def test_four_stop_strings_of_some_length_are_accepted():
    stops = ["x" * 256, "\n\n", "é", "龜" * 256]

    assert chat(stop=stops).stop == tuple(stops)


def test_fields_without_effect_are_reported_unless_they_could_not_have_one():
    _, ignored = parse(json.dumps({**CHAT, "user": "u", "priority": 3, "frobnicate": 1}).encode(), ChatBody)

    assert ignored == ["priority", "frobnicate"]


@pytest.mark.parametrize(
    ("prompt", "kept"),
    [
        ("x", ("x",)), ([1, 2], ((1, 2),)), (["x"], ("x",)), ([[1, 2]], ((1, 2),)), (["x", "y"], ("x", "y")),
        ([[1], [2, 3]], ((1,), (2, 3))),
    ],
)  # fmt: skip
def test_prompts_in_any_of_their_forms(prompt, kept):
    assert completion(prompt=prompt).prompt == kept


@pytest.mark.parametrize("prompt", ["", [], [[]], [""], 5, [True], [-1], [2**31], [1.5], [1, "x"], {}, [{}], [[1], 2]])
def test_a_prompt_without_tokens_or_of_another_kind_is_refused(prompt):
    """B048."""
    assert refusal({**COMPLETION, "prompt": prompt}, CompletionBody).param == "prompt"


def test_messages_never_repeat_what_was_sent():
    """B056: a prompt must not end up in somebody's log."""
    error = refusal({**CHAT, "messages": [{"role": "user", "content": {"SECRET": 1}}], "stop": ["SECRET", ""]})

    assert "SECRET" not in error.message
