"""The echo engine says what it was told, at the pace it was told."""

import sys

import pytest

from shared.errors import ConfigError
from shared.sections import EchoSettings, WorkerSettings
from shared.settings import Settings
from shared.wire import GenerateRequest, Sampling
from worker.engine import Ended, Progressed, Work
from worker.engines import create
from worker.engines.echo import EchoEngine


def engine(sleep=None, **settings):
    return EchoEngine(WorkerSettings(engine="echo", **settings), **({"sleep": sleep} if sleep else {}))


def chat(text, **sampling):
    return GenerateRequest(sampling=Sampling(seed=1, **sampling), messages=({"role": "user", "content": text},))


def run(echo, request, prior_ids=()):
    echo.add(Work("r", request, tuple(prior_ids)))
    events = []
    while not events or not isinstance(events[-1], Ended):
        events += echo.step()
    ids = [token for event in events[:-1] for token in event.ids]
    return "".join(event.text for event in events[:-1]), ids, events[-1].outcome


@pytest.mark.parametrize("text", ["one two  three", " a\n\nb ", "word", "  ", "tab\t x\n"])
def test_it_answers_with_the_words_as_they_were_written(text):
    said, ids, outcome = run(engine(), chat(text))

    assert said == text
    assert outcome.reason == "stop"
    assert outcome.usage.completion_tokens == len(ids)


def test_it_answers_the_last_user_message_and_counts_the_whole_prompt():
    messages = (
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "well then"},
        {"role": "user", "content": "last one"},
        {"role": "assistant", "content": None},
    )

    said, _, outcome = run(engine(), GenerateRequest(sampling=Sampling(seed=1), messages=messages))

    assert said == "last one"
    assert outcome.usage.prompt_tokens == 7


def test_it_answers_a_prompt_and_a_prompt_of_ids():
    assert run(engine(), GenerateRequest(sampling=Sampling(seed=1), prompt="a b"))[0] == "a b"
    assert run(engine(), GenerateRequest(sampling=Sampling(seed=1), prompt=(5, 6, 7)))[0] == "5 6 7"


@pytest.mark.parametrize(
    ("sampling", "said", "reason", "tokens"),
    [
        ({"max_tokens": 2}, "a b", "length", 2),
        ({"max_tokens": 3}, "a b c", "length", 3),
        ({"max_tokens": 4}, "a b c", "stop", 3),
        ({"max_tokens": 7, "ignore_eos": True}, "a b ca b ca", "length", 7),
        ({"max_tokens": 0}, "", "length", 0),
        ({"ignore_eos": True}, "a b c" * 4 + "a", "length", 13),
        ({"stop": (" c",)}, "a b", "stop", 3),
        ({"stop": ("ca",), "ignore_eos": True}, "a b ", "stop", 4),
        ({"stop": ("b c d",)}, "a b c", "stop", 3),
    ],
)
def test_it_ends_where_it_should(sampling, said, reason, tokens):
    found, ids, outcome = run(engine(max_model_len=16), chat("a b c", **sampling))

    assert (found, outcome.reason, outcome.usage.completion_tokens, len(ids)) == (said, reason, tokens, tokens)


def test_it_goes_on_from_any_of_its_tokens():
    request = chat("a b c", max_tokens=8, ignore_eos=True, stop=("zz",))
    whole, ids, outcome = run(engine(), request)

    for cut in range(9):
        rest, more, resumed = run(engine(), request, ids[:cut])
        assert whole.endswith(rest)
        assert ids[:cut] + more == ids
        assert resumed == outcome


@pytest.mark.parametrize(("words", "max_tokens"), [(16, None), (40, 1), (10, 7)])
def test_what_does_not_fit_fails(words, max_tokens):
    echo = engine(max_model_len=16)

    said, _, outcome = run(echo, chat("w " * (words - 1) + "w", max_tokens=max_tokens))

    assert (said, outcome.state, outcome.error.code) == ("", "failed", "context_length_exceeded")
    assert outcome.error.param == "messages"
    assert "16" in outcome.error.message
    assert str(words + (max_tokens or 0) if words < 16 else words) in outcome.error.message
    assert echo.free_slots == echo.slots


def test_a_step_takes_the_time_that_the_settings_say():
    slept = []
    pace = EchoSettings(step_ms=100, decode_ms=10, prefill_ms=1)
    echo = engine(slept.append, prefill_chunk_tokens=4, echo=pace)
    echo.add(Work("a", chat("a b c", max_tokens=3)))
    echo.add(Work("b", chat("a b c", max_tokens=3)))

    ended = [sum(isinstance(event, Ended) for event in echo.step()) for _ in range(4)]
    echo.step()

    # 3 + 1 tokens of prefill; a decodes, 2 of prefill; both decode; b decodes.
    assert slept == pytest.approx([0.104, 0.112, 0.120, 0.110])
    assert ended == [0, 0, 1, 1]


def test_without_a_pace_it_never_sleeps():
    run(engine(sleep=lambda _: pytest.fail("slept")), chat("a b c"))


def test_a_long_prompt_holds_up_nobody():
    echo = engine(prefill_chunk_tokens=4)
    echo.add(Work("a", chat("a b", max_tokens=30, ignore_eos=True)))
    echo.step()
    echo.add(Work("long", chat("w " * 40, max_tokens=1)))

    steps = [[event.id for event in echo.step() if isinstance(event, Progressed)] for _ in range(11)]

    assert all("a" in step for step in steps)
    assert [("long" in step) for step in steps].index(True) == 10  # 41 tokens, 4 a step


def test_tokens_are_told_one_a_step():
    echo = engine()
    echo.add(Work("a", chat("a b c d")))

    counts = [sum(len(event.ids) for event in echo.step() if isinstance(event, Progressed)) for _ in range(5)]

    assert counts == [1, 1, 1, 1, 0]


def test_an_engine_whose_libraries_are_missing_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "worker.engines.continuous.engine", raising=False)
    monkeypatch.delitem(sys.modules, "worker.engines.continuous.model", raising=False)

    with pytest.raises(ConfigError, match=r"needs torch: install busway\[worker\]"):
        create(Settings())
