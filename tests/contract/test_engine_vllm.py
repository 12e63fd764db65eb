"""What the vllm engine adds to vLLM, with the real one; skipped where it is not installed."""

import pytest

from shared.wire import GenerateRequest, Guide, Sampling
from tests.support.engines import PROMPTS, chat, run
from worker.engine import Progressed, Work

pytestmark = pytest.mark.model


def alone(engine, request, prior_ids=()):
    return run(engine, [Work("alone", request, tuple(prior_ids))])["alone"]


def guided(text, **sampling):
    request = chat("Name a colour.", **sampling)
    return GenerateRequest(sampling=request.sampling, messages=request.messages, guide=Guide(kind="regex", text=text))


@pytest.mark.parametrize(
    "request_", [guided("(red|green) and (blue|white)"), chat(PROMPTS[1], frequency_penalty=0.7, presence_penalty=0.3)]
)
def test_what_depends_on_the_answer_so_far_is_asked_again_when_it_is_resumed(vllm, request_):
    whole = alone(vllm, request_)

    resumed = alone(vllm, request_, whole.ids[:3])

    assert whole.ids[:3] + resumed.ids == whole.ids
    assert resumed.outcome.usage == whole.outcome.usage


def test_another_beginning_cannot_be_gone_on_with(vllm):
    told = alone(vllm, guided("(red|green) and (blue|white)"), (5, 6, 7))

    assert (told.outcome.state, told.outcome.error.code) == ("failed", "worker_lost")


def test_log_probabilities_come_with_each_token(vllm):
    vllm.add(Work("a", chat(logprobs=2)))
    events = []
    while vllm.free_slots < vllm.slots:
        events += vllm.step()

    progressed = [event for event in events if isinstance(event, Progressed)]
    for event in progressed:
        (one,) = event.logprobs
        assert len(one.top) == 2
        assert one.logprob <= one.top[0][1] <= 0
    assert [event.logprobs[0].raw.decode() for event in progressed[:-1]] == [event.text for event in progressed[:-1]]


def test_a_prompt_is_told_back_with_its_tokens(vllm):
    vllm.add(
        Work("a", GenerateRequest(sampling=Sampling(seed=1, max_tokens=2, logprobs=1), prompt="Hi you", echo=True))
    )
    events = []
    while vllm.free_slots < vllm.slots:
        events += vllm.step()

    prompt = events[0].prompt
    assert prompt.text == "Hi you" == b"".join(one.raw for one in prompt.tokens).decode()
    assert [one.logprob is None for one in prompt.tokens] == [True] + [False] * (len(prompt.tokens) - 1)
    assert all(event.prompt is None for event in events[1:-1])


def test_what_vllm_refuses_is_the_callers(vllm):
    told = alone(vllm, chat(logit_bias=((10**6, 1.0),)))

    assert (told.outcome.state, told.outcome.error.code) == ("failed", "invalid_value")
