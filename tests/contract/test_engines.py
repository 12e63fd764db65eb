"""One suite over every engine: what `worker/engine.py` promises, each of them keeps."""

import random

import pytest

from shared.settings import WorkerSettings
from shared.wire import GenerateRequest, Sampling
from tests.support.engines import MAX_MODEL_LEN, PROMPTS, SLOTS, chat, run
from worker.engine import Ended, Work


@pytest.fixture(params=["echo", pytest.param("continuous", marks=pytest.mark.model)])
def engine(request):
    """An engine with nothing in it, before and after the test."""
    if request.param == "echo":
        from worker.engines.echo import EchoEngine

        made = EchoEngine(WorkerSettings(engine="echo", slots=SLOTS, max_model_len=MAX_MODEL_LEN))
    else:
        made = request.getfixturevalue("continuous")
    yield made
    assert made.free_slots == made.slots, "a test left a request in the engine"
    assert made.step() == []


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
        assert len(one.ids) == one.outcome.usage.completion_tokens == work.request.sampling.max_tokens


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
    engine.add(Work("stays", chat(ignore_eos=True)))
    engine.add(Work("goes", chat(PROMPTS[6])))
    for _ in range(steps):
        engine.step()

    engine.cancel("goes")
    engine.cancel("goes")
    engine.cancel("never was")

    assert engine.free_slots == SLOTS - 1
    rest = [event for _ in range(40) for event in engine.step()]
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
        assert together[str(index)].texts == one.texts
        assert together[str(index)].outcome == one.outcome


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "top_p": 0.95}, {"stop": ("e", "a")}])
def test_a_resumed_request_goes_on_where_it_was(engine, sampling):
    request = chat(PROMPTS[2], **sampling, max_tokens=14)
    whole = alone(engine, request)

    for cut in (1, 2, 3, 7, 11):  # some of them are in the middle of a character
        resumed = alone(engine, request, whole.ids[:cut])
        assert whole.ids[:cut] + resumed.ids == whole.ids
        assert whole.texts[:cut] + resumed.texts == whole.texts
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
    assert cut.outcome.usage.completion_tokens == len(cut.ids) < 30


def test_max_tokens_end_an_answer_with_length(engine):
    for limit in (1, 3):
        told = alone(engine, chat(max_tokens=limit))
        assert (told.outcome.reason, told.outcome.usage.completion_tokens) == ("length", limit)


def test_an_answer_that_is_over_ends_with_stop(engine):
    told = alone(engine, chat("What is the capital of France?", max_tokens=100))

    assert told.outcome.reason == "stop"
    assert told.outcome.usage.completion_tokens == len(told.ids) < 100
    assert told.text


def test_ignore_eos_runs_to_the_bound(engine):
    told = alone(engine, chat("What is the capital of France?", max_tokens=60, ignore_eos=True))

    assert (told.outcome.reason, len(told.ids)) == ("length", 60)


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

    assert (told.outcome.reason, len(told.ids)) == ("length", 1)


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


def test_a_refused_request_holds_its_slot_until_it_is_reported_or_cancelled(engine):
    for name in ("a", "b"):
        engine.add(Work(name, GenerateRequest(sampling=Sampling(seed=1), prompt="")))
    assert engine.free_slots == SLOTS - 2
    engine.cancel("a")
    assert engine.free_slots == SLOTS - 1

    events = engine.step()

    assert [event.id for event in events] == ["b"]
    assert engine.free_slots == SLOTS


# Sampling ------------------------------------------------------------------------------------------


def completion(prompt="The sea is", **sampling):
    chosen = {"seed": 7, "temperature": 0, "max_tokens": 6, "ignore_eos": True, **sampling}
    echo = chosen.pop("echo", False)
    guide = chosen.pop("guide", None)
    return GenerateRequest(sampling=Sampling(**chosen), prompt=prompt, echo=echo, guide=guide)


def test_a_stop_token_ends_the_answer_and_is_not_shown(engine):
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

    assert len(told.logprobs) == len(told.ids)
    assert all(one.logprob <= 0 for one in told.logprobs)
    assert b"".join(one.raw for one in told.logprobs).decode() == told.text == silent.text
    assert silent.logprobs == []


@pytest.mark.parametrize("max_tokens", [0, 1, 4])
def test_a_prompt_is_told_once_with_as_many_tokens_as_it_has(engine, max_tokens):
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
