"""What vLLM is asked for; without vLLM. `tests/contract/test_engine_vllm.py` asks the real one."""

import pytest

from shared.wire import GenerateRequest, Guide, Sampling
from tests.support.engines import chat
from worker.engine import Work
from worker.engines.vllm.answer import Answer
from worker.engines.vllm.mapping import guide_fields, must_repeat, sampling_fields

END = 0


class Letters:
    """A codec whose tokens are letters."""

    def decode(self, ids):
        return "".join(map(chr, ids))


def answer(prior="", limit=8, **sampling):
    work = Work("a", chat(**sampling), tuple(map(ord, prior)))
    return Answer(work, Letters(), [1, 2, 3], limit, {END})


def test_every_way_of_choosing_tokens_is_passed_on():
    values = {
        "seed": 5,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 4,
        "min_p": 0.1,
        "frequency_penalty": 0.2,
        "presence_penalty": -0.3,
        "repetition_penalty": 1.1,
        "ignore_eos": True,
        "logprobs": 2,
    }
    sampling = Sampling(**values, stop=("x",), stop_token_ids=(7,), logit_bias=((3, -1.5),), min_tokens=4)

    fields = sampling_fields(GenerateRequest(sampling=sampling, prompt="hi"), limit=20, produced=0)

    told = {**values, "stop_token_ids": [7], "logit_bias": {3: -1.5}, "min_tokens": 4, "max_tokens": 20}
    assert fields.items() >= told.items()
    assert (fields["detokenize"], fields["prompt_logprobs"]) == (False, None)
    # no field of Sampling is forgotten; stop strings are looked for in our own text
    assert set(Sampling.__struct_fields__) - {"stop"} <= fields.keys()


def test_what_is_there_already_counts_towards_the_limits():
    request = GenerateRequest(sampling=Sampling(seed=1, min_tokens=4), prompt="hi")

    fields = sampling_fields(request, limit=20, produced=6)

    assert (fields["max_tokens"], fields["min_tokens"]) == (14, 0)


@pytest.mark.parametrize(("kind", "field"), [("json_schema", "json"), ("regex", "regex"), ("grammar", "grammar")])
def test_a_guide_is_passed_on(kind, field):
    request = GenerateRequest(sampling=Sampling(seed=1), prompt="hi", guide=Guide(kind=kind, text="t"))

    assert guide_fields(request) == {field: "t"}
    assert must_repeat(request)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, False),
        ({"repetition_penalty": 2.0}, False),
        ({"frequency_penalty": 1.0}, True),
        ({"presence_penalty": -1.0}, True),
    ],
)
def test_only_what_counts_the_answers_tokens_is_asked_again(sampling, expected):
    assert must_repeat(chat(**sampling)) is expected


def test_prompt_tokens_are_told_only_with_an_echo_that_begins():
    request = GenerateRequest(sampling=Sampling(seed=1, logprobs=3), prompt="hi", echo=True)

    assert sampling_fields(request, limit=9, produced=0)["prompt_logprobs"] == 3
    assert sampling_fields(request, limit=9, produced=1)["prompt_logprobs"] is None


def test_an_answer_ends_at_its_limit():
    one = answer(limit=2)

    assert [one.take(ord(letter)) for letter in "ab"] == ["a", "b"]
    assert one.outcome(None, 0).reason == "length"


def test_an_end_token_ends_it_and_is_no_text():
    one = answer()
    one.take(ord("a"))

    assert one.take(END) == ""
    outcome = one.outcome(None, 2)
    assert (outcome.reason, outcome.usage.completion_tokens, outcome.usage.cached_tokens) == ("stop", 2, 2)


def test_a_stop_token_is_an_end_even_where_the_models_own_is_not():
    one = answer(ignore_eos=True, stop_token_ids=(ord("z"),))

    one.take(END)
    assert one.reason is None
    one.take(ord("z"))
    assert one.reason == "stop"


def test_a_stop_string_may_lie_across_attempts():
    one = answer("ab", stop=("bc",))

    assert one.reason is None
    assert one.take(ord("c")) == ""
    assert one.reason == "stop"


def test_an_answer_that_was_complete_is_so_again():
    assert answer("abcdefgh").reason == "length"
    assert answer("ab", stop=("b",)).reason == "stop"
    assert answer("a\0").reason == "stop"
