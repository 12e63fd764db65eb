"""What every engine does with a request's sampling, on one suite."""

import random

import pytest

from shared.wire import GenerateRequest, Sampling
from tests.support.engines import SLOTS, chat, has_ids, run
from worker.engine import Ended, Work


def alone(engine, request, prior_ids=()):
    return run(engine, [Work("alone", request, tuple(prior_ids))])["alone"]


def completion(prompt="The sea is", **sampling):
    chosen = {"seed": 7, "temperature": 0, "max_tokens": 6, "ignore_eos": True, **sampling}
    echo = chosen.pop("echo", False)
    guide = chosen.pop("guide", None)
    return GenerateRequest(sampling=Sampling(**chosen), prompt=prompt, echo=echo, guide=guide)


def test_a_stop_token_ends_the_answer_and_is_not_shown(engine):
    if not has_ids(engine):
        pytest.skip("an upstream's tokens have no ids that we know")
    whole = alone(engine, completion())
    stopped = alone(engine, completion(stop_token_ids=(whole.ids[2],)))

    assert stopped.ids == whole.ids[: whole.ids.index(whole.ids[2]) + 1]
    assert whole.text.startswith(stopped.text) and len(stopped.text) < len(whole.text)
    assert stopped.outcome.reason == "stop"


def test_nothing_ends_an_answer_before_its_least_number_of_tokens(engine):
    whole = alone(engine, chat("one two three", max_tokens=40))
    longer = alone(engine, chat("one two three", max_tokens=60, min_tokens=len(whole.ids) + 5))
    stopped = alone(engine, completion("a b c d e f g", min_tokens=4, stop=("a", "b", "c", " ")))

    assert len(longer.ids) >= len(whole.ids) + 5
    assert len(stopped.ids) >= 4


def test_log_probabilities_come_with_every_token_that_asks_for_them(engine):
    told = alone(engine, completion(logprobs=2))
    silent = alone(engine, completion())

    assert len(told.logprobs) == told.tokens
    assert all(one.logprob <= 0 for one in told.logprobs)
    assert b"".join(one.raw for one in told.logprobs).decode() == told.text == silent.text
    assert silent.logprobs == []


@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_a_prompt_is_told_once_with_as_many_tokens_as_it_has(engine, max_tokens):
    if not has_ids(engine):
        pytest.skip("an upstream's prompt is told as text only")
    told = alone(engine, completion("The sea is wide and blue", echo=True, logprobs=1, max_tokens=max_tokens))
    text = alone(engine, completion("The sea is wide and blue", echo=True, max_tokens=max_tokens))

    assert told.prompt.text == text.prompt.text == "The sea is wide and blue"
    assert len(told.prompt.tokens) == told.outcome.usage.prompt_tokens
    assert [one.logprob is None for one in told.prompt.tokens] == [True] + [False] * (len(told.prompt.tokens) - 1)
    assert b"".join(one.raw for one in told.prompt.tokens) == b"The sea is wide and blue"
    assert text.prompt.tokens == ()
    assert len(told.ids) == max_tokens


def test_a_resumed_request_does_not_tell_its_prompt_again(engine):
    request = completion(echo=True, logprobs=0)
    whole = alone(engine, request)

    assert alone(engine, request, whole.ids[:2]).prompt is None


def test_what_cannot_be_embedded_here_fails(engine):
    told = alone(engine, GenerateRequest(sampling=Sampling(seed=0, max_tokens=0), inputs=("x",)))

    assert (told.outcome.error.code, told.outcome.error.param) == ("unsupported_value", "model")


OPTIONS = [
    {"frequency_penalty": 0.5}, {"presence_penalty": 1.0}, {"repetition_penalty": 1.3}, {"logit_bias": ((5, 3.0),)},
    {"min_p": 0.1}, {"top_k": 20}, {"top_p": 0.8}, {"stop": ("zz",)}, {"stop_token_ids": (9,)}, {"min_tokens": 3},
    {"logprobs": 2}, {"logprobs": 1, "echo": True}, {},
]  # fmt: skip


def test_requests_with_and_without_each_option_may_join_at_any_step(engine):
    """B122: state that one request has and another lacks is nobody's problem, and no answer depends on its company."""
    requests = [completion("So it is", temperature=0.8, seed=n, **option) for n, option in enumerate(OPTIONS)]
    expected = [alone(engine, request).ids for request in requests]
    order, told, waiting = random.Random(3), {}, [Work(str(n), request) for n, request in enumerate(requests)]
    order.shuffle(waiting)
    while waiting or engine.free_slots < SLOTS:
        if waiting and engine.free_slots:
            work = waiting.pop()
            told[work.id] = []
            engine.add(work)
        for event in engine.step():
            if not isinstance(event, Ended):
                told[event.id] += event.ids

    assert [told[str(n)] for n in range(len(requests))] == expected
