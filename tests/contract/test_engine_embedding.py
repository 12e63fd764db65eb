"""What `worker/engine.py` promises, kept by the engine that makes embeddings; and what its vectors are."""

import random

import numpy as np
import pytest

from shared.sections import DEFAULT_EMBEDDER
from shared.settings import load
from tests.support.engines import SLOTS, chat, embed, run
from worker.engine import Ended, Work

pytestmark = pytest.mark.model

WORDS = [
    "the",
    "sea",
    "storm",
    "lighthouse",
    "keeper",
    "of",
    "ships",
    "and",
    "bread",
    "tides",
    "龜",
    "🫠",
    "a",
    "quantum",
    "ledger",
]
DIMENSIONS = 384
CLOSE = 1e-5


@pytest.fixture
def engine(embedding):
    """With nothing in it, before and after the test."""
    yield embedding
    assert embedding.free_slots == embedding.slots, "a test left a request in the engine"
    assert embedding.step() == []


def texts(count, *, seed=3, longest=90):
    source = random.Random(seed)
    return [" ".join(source.choices(WORDS, k=source.randint(1, longest))) for _ in range(count)]


def alone(engine, request):
    return run(engine, [Work("alone", request)])["alone"].outcome


def vectors(outcome, dimensions=DIMENSIONS):
    assert outcome.state == "done", outcome
    return np.frombuffer(outcome.embeddings, dtype="<f4").reshape(-1, dimensions)


def reference(inputs):
    """As the model's card computes it: each text alone, the mean of its tokens, of length 1."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    from worker.engines.weights import ensure

    source = ensure(DEFAULT_EMBEDDER, load().cache_dir)
    model, tokenizer = AutoModel.from_pretrained(source).eval(), AutoTokenizer.from_pretrained(source)
    found = []
    with torch.inference_mode():
        for text in inputs:
            given = tokenizer(text, return_tensors="pt")
            mean = model(**given).last_hidden_state[0].mean(0)
            found.append(torch.nn.functional.normalize(mean, dim=0).numpy())
    return np.stack(found)


def test_everything_that_is_added_ends_exactly_once_with_a_vector_for_each_input(engine):
    works = [Work(str(n), embed(*texts(1 + n % 7, seed=n)), lane="bulk" if n % 3 else "interactive") for n in range(27)]
    before = sum(engine.spent.values())

    told = run(engine, works)

    for work in works:
        outcome = told[work.id].outcome
        assert vectors(outcome).shape[0] == len(work.request.inputs)
        assert (outcome.reason, outcome.usage.completion_tokens) == ("stop", 0)
    assert sum(engine.spent.values()) - before == sum(told[one.id].outcome.usage.prompt_tokens for one in works)


def test_slots_are_counted_and_an_id_is_held_once(engine):
    for index in range(SLOTS):
        assert engine.free_slots == SLOTS - index
        engine.add(Work(str(index), embed("hello", "you")))
        if index == 0:
            with pytest.raises(AssertionError):
                engine.add(Work("0", embed("hello")))

    with pytest.raises(AssertionError):
        engine.add(Work("one more", embed("hello")))
    for index in range(SLOTS):
        engine.cancel(str(index))
        assert engine.free_slots == index + 1


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_cancelled_request_gives_its_slot_back_and_says_nothing_more(engine, steps):
    engine.add(Work("goes", embed(*texts(40))))  # many steps long
    engine.add(Work("stays", embed(*texts(30, seed=9))))
    for _ in range(steps):
        assert engine.step() == []

    engine.cancel("goes")
    engine.cancel("goes")
    engine.cancel("never was")

    assert engine.free_slots == SLOTS - 1
    rest = []
    while engine.free_slots < SLOTS:
        rest += engine.step()
    assert [(event.id, type(event)) for event in rest] == [("stays", Ended)]
    assert np.abs(vectors(rest[0].outcome) - reference(texts(30, seed=9))).max() < CLOSE


def test_vectors_are_those_of_transformers_whatever_shares_their_batch(engine):
    inputs = texts(60)
    works = [Work(str(n), embed(*inputs[n::SLOTS])) for n in range(SLOTS)]

    told = run(engine, works)

    expected = reference(inputs)
    for n in range(SLOTS):
        found = vectors(told[str(n)].outcome)
        assert np.abs(found - expected[n::SLOTS]).max() < CLOSE
        assert np.abs(np.linalg.norm(found, axis=1) - 1).max() < CLOSE


def test_what_means_the_same_is_closer_than_what_does_not(engine):
    pairs = [
        ("A cat sleeps on the sofa.", "A kitten is napping on the couch."),
        ("How do I reset my password?", "I forgot my login and need a new password."),
        ("The bank raised interest rates.", "Borrowing became more expensive."),
    ]
    found = vectors(alone(engine, embed(*(text for pair in pairs for text in pair))))

    likeness = found @ found.T

    for n in range(0, len(found), 2):
        others = [likeness[n, m] for m in range(len(found)) if m not in (n, n + 1)]
        assert likeness[n, n + 1] > max(others) + 0.2


def test_ids_are_taken_as_they_are(engine):
    ids = tuple(engine._encoder.tokens(["hello sea"])[0])

    by_text, by_ids = vectors(alone(engine, embed("hello sea", ids)))

    assert np.array_equal(by_text, by_ids)


def test_fewer_dimensions_are_the_first_ones_at_length_one(engine):
    whole = vectors(alone(engine, embed("hello")))[0]

    cut = vectors(alone(engine, embed("hello", dimensions=100)), 100)[0]

    assert np.allclose(cut, whole[:100] / np.linalg.norm(whole[:100]), atol=CLOSE)


@pytest.mark.parametrize(
    ("request_", "code", "param", "says"),
    [
        (embed("fine", "word " * 300), "context_length_exceeded", "input", "input 1 has 302 tokens"),
        (embed("x" * 1_000_000), "context_length_exceeded", "input", "input 0 has 1000000 characters"),
        (embed("fine", (5,) * 257), "context_length_exceeded", "input", "256"),
        (embed("fine", ""), "invalid_value", "input", "Input 1 is empty"),
        (embed("fine", ()), "invalid_value", "input", "Input 1 is empty"),
        (embed(), "invalid_value", "input", "no input"),
        (embed("fine", (5, 30522)), "invalid_value", "input", "input 1 is outside of 0 to 30521"),
        (embed((-1,)), "invalid_value", "input", "outside"),
        (embed("fine", dimensions=385), "invalid_value", "dimensions", "384"),
        (embed("fine", dimensions=0), "invalid_value", "dimensions", "384"),
        (chat("hello"), "unsupported_value", "model", "does not generate text"),
    ],
)
def test_what_cannot_be_embedded_fails_and_says_why(engine, request_, code, param, says):
    outcome = alone(engine, request_)

    assert (outcome.state, outcome.error.code, outcome.error.param) == ("failed", code, param)
    assert says in outcome.error.message


def test_the_longest_input_is_embedded_whole(engine):
    ids = (101, *[2000 + n for n in range(254)], 102)

    first, other_end = vectors(alone(engine, embed(ids, (*ids[:-2], 7, 102))))

    assert np.abs(first - other_end).max() > CLOSE


def test_interactive_overtakes_bulk_and_bulk_still_moves(engine):
    engine.add(Work("bulk", embed(*texts(60)), lane="bulk"))
    engine.step()

    engine.add(Work("interactive", embed(*texts(20, seed=8)), lane="interactive"))

    ends, bulk_before = [], engine.spent["bulk"]
    while not ends:
        ends = [event.id for event in engine.step()]
    assert ends == ["interactive"]
    assert engine.spent["bulk"] > bulk_before
    while engine.free_slots < SLOTS:
        engine.step()
