"""One suite over every engine: what `worker/engine.py` promises, each of them keeps."""

import random

import pytest

from shared.wire import GenerateRequest, Sampling
from tests.support.engines import MAX_MODEL_LEN, PROMPTS, SLOTS, chat, run
from worker.engine import Ended, Work


def alone(engine, request, prior_ids=()):
    return run(engine, [Work("alone", request, tuple(prior_ids))])["alone"]


def test_with_nothing_to_do_a_step_returns_nothing(engine):
    assert engine.step() == []


def test_everything_that_is_added_ends_exactly_once(engine):
    source = random.Random(5)
    works = [
        Work(str(index), chat(source.choice(PROMPTS), max_tokens=source.randint(1, 14), ignore_eos=True))
        for index in range(3 * SLOTS)
    ]

    told = run(engine, works)

    for work in works:
        one = told[work.id]
        assert one.outcome.state == "done"
        assert one.outcome.reason == "length"
        assert one.tokens == one.outcome.usage.completion_tokens == work.request.sampling.max_tokens


def test_slots_are_counted(engine):
    for index in range(SLOTS):
        assert engine.free_slots == SLOTS - index
        engine.add(Work(str(index), chat()))

    with pytest.raises(AssertionError):
        engine.add(Work("one more", chat()))
    for index in range(SLOTS):
        engine.cancel(str(index))
        assert engine.free_slots == index + 1


def test_an_id_is_held_once(engine):
    engine.add(Work("a", chat()))

    with pytest.raises(AssertionError):
        engine.add(Work("a", chat()))
    assert engine.free_slots == SLOTS - 1
    engine.cancel("a")


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_cancelled_request_gives_its_slot_back_and_says_nothing_more(engine, steps):
    engine.add(Work("stays", chat(ignore_eos=True, max_tokens=60)))
    engine.add(Work("goes", chat(PROMPTS[6], ignore_eos=True, max_tokens=60)))
    for _ in range(steps):
        engine.step()

    engine.cancel("goes")
    engine.cancel("goes")
    engine.cancel("never was")

    assert engine.free_slots == SLOTS - 1
    rest = []
    while engine.free_slots < SLOTS:
        rest += engine.step()
    assert {event.id for event in rest} == {"stays"}
    assert isinstance(rest[-1], Ended)


def test_a_cancelled_id_can_come_back_at_once(engine):
    expected = alone(engine, chat()).text
    engine.add(Work("a", chat(PROMPTS[1])))
    engine.step()
    engine.cancel("a")

    assert run(engine, [Work("a", chat())])["a"].text == expected


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.95, "top_k": 40}, {"temperature": 1.2}])
def test_an_answer_is_the_same_in_any_company(engine, sampling):
    requests = [chat(prompt, **sampling, seed=40 + index) for index, prompt in enumerate(PROMPTS)]
    expected = [alone(engine, request) for request in requests]

    together = run(engine, [Work(str(index), request) for index, request in enumerate(requests)])

    for index, one in enumerate(expected):
        assert together[str(index)].ids == one.ids
        assert together[str(index)].text == one.text
        assert together[str(index)].outcome == one.outcome


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.95}, {"stop": ("e", "a")}])
def test_a_resumed_request_goes_on_where_it_was(engine, sampling):
    if type(engine).__name__ == "VllmEngine" and sampling.get("temperature"):
        pytest.skip("vLLM's draws begin anew with a resumed request, so it goes on with other tokens")
    request = chat(PROMPTS[2], **sampling, max_tokens=14)
    whole = alone(engine, request)

    for cut in (1, 2, 3, 7, 11):  # some of them are in the middle of a character
        resumed = alone(engine, request, whole.ids[:cut])
        assert whole.ids[:cut] + resumed.ids == whole.ids
        assert whole.text.endswith(resumed.text)
        if len(whole.texts) == len(whole.ids):  # it tells one id at a time, so we know the text of each
            assert "".join(whole.texts[:cut]) + resumed.text == whole.text
        assert resumed.outcome == whole.outcome


@pytest.mark.parametrize("sampling", [{"max_tokens": 6, "ignore_eos": True}, {"stop": ("e", "o"), "max_tokens": 60}])
def test_a_request_that_was_complete_ends_without_another_token(engine, sampling):
    request = chat(**sampling)
    whole = alone(engine, request)

    resumed = alone(engine, request, whole.ids)

    assert (resumed.ids, resumed.texts, resumed.outcome) == ([], [], whole.outcome)


def test_a_stop_string_ends_the_answer_before_it(engine):
    full = alone(engine, chat(PROMPTS[1], max_tokens=30)).text
    middle = len(full) // 2
    stop = full[middle : middle + 5]

    cut = alone(engine, chat(PROMPTS[1], max_tokens=30, stop=(stop, "never said")))

    assert cut.text == full[: full.index(stop)]
    assert cut.outcome.reason == "stop"
    assert cut.outcome.usage.completion_tokens < 30


def test_max_tokens_end_an_answer_with_length(engine):
    for limit in (1, 3):
        told = alone(engine, chat(max_tokens=limit))
        assert (told.outcome.reason, told.outcome.usage.completion_tokens) == ("length", limit)


def test_an_answer_that_is_over_ends_with_stop(engine):
    told = alone(engine, chat("What is the capital of France?", max_tokens=100))

    assert told.outcome.reason == "stop"
    assert told.outcome.usage.completion_tokens == told.tokens < 100
    assert told.text


def test_ignore_eos_runs_to_the_bound(engine):
    told = alone(engine, chat("What is the capital of France?", max_tokens=60, ignore_eos=True))

    assert (told.outcome.reason, told.tokens) == ("length", 60)


def test_without_max_tokens_the_context_is_the_bound(engine):
    told = alone(engine, chat(max_tokens=None, ignore_eos=True))

    usage = told.outcome.usage
    assert told.outcome.reason == "length"
    assert usage.prompt_tokens + usage.completion_tokens == MAX_MODEL_LEN


def test_a_prompt_that_fills_the_context_but_for_one_token(engine):
    request = GenerateRequest(
        sampling=Sampling(seed=1, temperature=0, ignore_eos=True), prompt=tuple(range(100, 99 + MAX_MODEL_LEN))
    )

    told = alone(engine, request)

    assert (told.outcome.reason, told.tokens) == ("length", 1)


@pytest.mark.parametrize(
    ("request_", "param", "numbers"),
    [
        (chat("word " * 300), "messages", [MAX_MODEL_LEN]),
        (chat("1" * 1_000_000), "messages", [1_000_000, MAX_MODEL_LEN]),
        (chat(max_tokens=MAX_MODEL_LEN), "messages", [MAX_MODEL_LEN]),
        (GenerateRequest(sampling=Sampling(seed=1), prompt=(5,) * 192), "prompt", [192, MAX_MODEL_LEN]),
        (GenerateRequest(sampling=Sampling(seed=1, max_tokens=100), prompt=(5,) * 100), "prompt", [200, MAX_MODEL_LEN]),
    ],
)
def test_what_does_not_fit_fails_and_says_why(engine, request_, param, numbers):
    told = alone(engine, request_)

    assert (told.outcome.state, told.ids) == ("failed", [])
    assert (told.outcome.error.code, told.outcome.error.param) == ("context_length_exceeded", param)
    assert all(str(number) in told.outcome.error.message for number in numbers)


@pytest.mark.parametrize("prompt", ["", ()])
def test_an_empty_prompt_fails(engine, prompt):
    told = alone(engine, GenerateRequest(sampling=Sampling(seed=1), prompt=prompt))

    assert (told.outcome.state, told.outcome.error.code) == ("failed", "invalid_value")
    assert told.outcome.error.param == "prompt"


def test_a_request_for_embeddings_is_refused(engine):
    told = alone(engine, GenerateRequest(sampling=Sampling(seed=1), inputs=("hello",)))

    assert (told.outcome.state, told.outcome.error.code) == ("failed", "unsupported_value")
    assert "does not make embeddings" in told.outcome.error.message


def test_a_refused_request_holds_its_slot_until_it_is_reported_or_cancelled(engine):
    for name in ("a", "b"):
        engine.add(Work(name, GenerateRequest(sampling=Sampling(seed=1), prompt="")))
    assert engine.free_slots == SLOTS - 2
    engine.cancel("a")
    assert engine.free_slots == SLOTS - 1

    events = engine.step()

    assert [event.id for event in events] == ["b"]
    assert engine.free_slots == SLOTS
