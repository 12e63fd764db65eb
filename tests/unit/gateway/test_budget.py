"""What a request may take of a context, and what it counts for in a lane."""

import pytest

from gateway.openai.budget import CONTEXT_GUESSED, cost_tokens, refuse_too_long
from shared.errors import InvalidRequest
from shared.wire import GenerateRequest, Sampling

CONTEXT = 2048
MOST = CONTEXT * 32


def chat(*contents: str, max_tokens: int | None = None, **fields) -> GenerateRequest:
    messages = tuple({"role": "user", "content": content, **fields} for content in contents)
    return GenerateRequest(sampling=Sampling(seed=1, max_tokens=max_tokens), messages=messages)


def completion(prompt, max_tokens: int | None = None) -> GenerateRequest:
    return GenerateRequest(sampling=Sampling(seed=1, max_tokens=max_tokens), prompt=prompt)


def calling(arguments: str) -> list:
    return [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (chat("hi", max_tokens=CONTEXT), "max_tokens"),
        (chat("hi", max_tokens=2**31 - 1), "max_tokens"),
        (completion("hi", CONTEXT), "max_tokens"),
        (completion((1,) * CONTEXT), "prompt"),
        (completion((1,) * 100, CONTEXT - 99), "prompt"),
        (completion("x" * MOST), "prompt"),
        (chat("x" * MOST), "messages"),
        (chat("x" * (MOST // 2), "x" * (MOST // 2)), "messages"),
        (chat("x" * (MOST // 2), max_tokens=CONTEXT // 2 + 1), "messages"),
        (chat(*[""] * CONTEXT), "messages"),
        (chat("", tool_calls=calling("x" * MOST)), "messages"),
        (chat("", name="x" * MOST), "messages"),
    ],
    ids=range(12),
)
def test_what_no_tokenizer_could_make_fit_is_refused(request_, param):
    with pytest.raises(InvalidRequest, match=r"^This model's maximum context length is 2048 tokens\. ") as caught:
        refuse_too_long(request_, CONTEXT, limit_field="max_tokens")

    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", param)


def test_the_bound_is_named_as_the_client_named_it():
    with pytest.raises(InvalidRequest) as caught:
        refuse_too_long(chat("hi", max_tokens=CONTEXT), CONTEXT, limit_field="max_completion_tokens")

    assert caught.value.param == "max_completion_tokens"


@pytest.mark.parametrize(
    "request_",
    [
        chat("hi", max_tokens=CONTEXT - 1),
        completion((1,) * (CONTEXT - 1)),
        completion((1,) * 100, CONTEXT - 100),
        chat("x" * (MOST - 1000)),
        chat(*["x"] * (CONTEXT - 1)),
    ],
    ids=range(5),
)
def test_what_may_fit_is_left_to_the_worker(request_):
    refuse_too_long(request_, CONTEXT, limit_field="max_tokens")


def test_without_a_known_context_nothing_is_refused():
    refuse_too_long(chat("x", max_tokens=2**31 - 1), None, limit_field="max_tokens")


def test_the_cost_is_prompt_and_output():
    assert cost_tokens(completion((1,) * 50, 20), CONTEXT) == 1 + 50 + 20
    assert cost_tokens(completion("x" * 40, 20), CONTEXT) == 1 + 10 + 20
    assert cost_tokens(chat("x" * 396), CONTEXT) == 1 + 100 + 256, "the role is part of the prompt"
    assert cost_tokens(chat("", tool_calls=calling("x" * 400)), CONTEXT) > 1 + 100 + 256


def test_no_request_costs_more_than_a_context_holds():
    """Else one client could close a lane for all others."""
    greedy = chat("x", max_tokens=2**31 - 1)

    assert cost_tokens(greedy, CONTEXT) == CONTEXT
    assert cost_tokens(greedy, None) == CONTEXT_GUESSED
    assert cost_tokens(completion("x" * MOST), CONTEXT) == CONTEXT
