"""How the continuous engine accounts for its steps and its slots, on a small network with random weights."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from shared.lanes import defaults  # noqa: E402
from shared.sections import WorkerSettings  # noqa: E402
from shared.wire import GenerateRequest, Sampling  # noqa: E402
from worker.engine import Progressed, Work  # noqa: E402
from worker.engines.continuous.engine import ContinuousEngine  # noqa: E402
from worker.engines.continuous.model import Model  # noqa: E402
from worker.engines.continuous.rows import Row, Tally  # noqa: E402
from worker.engines.continuous.sampler import choose  # noqa: E402

VOCABULARY = 64
SLOTS = 4


class Letters:
    """A codec whose tokens are letters, and their own numbers."""

    end_ids: frozenset[int] = frozenset()
    grammars = None

    def encode(self, request):
        return list(request.prompt)

    def decode(self, ids):
        return "".join(map(chr, (64 + token for token in ids)))

    def spell(self, ids):
        return self.decode(ids)

    def raw(self, token):
        return self.decode([token]).encode()


@pytest.fixture
def make():
    """An engine with settings, over a small network."""
    made = []

    def build(**settings):
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256,
        )  # fmt: skip
        model = Model(transformers.LlamaForCausalLM(config).eval(), slots=SLOTS, max_model_len=128)
        given = WorkerSettings.model_validate({"slots": SLOTS, "max_model_len": 128, "threads": 1, **settings})
        made.append(ContinuousEngine(model, Letters(), given, defaults()))
        return made[-1]

    yield build
    for engine in made:
        engine.close()


def ask(name, prompt, count):
    sampling = Sampling(seed=1, temperature=0, max_tokens=count, ignore_eos=True)
    return Work(name, GenerateRequest(sampling=sampling, prompt=tuple(prompt)))


def finish(engine, told=None):
    """The tokens of each request, until nothing runs."""
    told = {} if told is None else told
    for _ in range(200):
        for event in engine.step():
            if isinstance(event, Progressed):
                told.setdefault(event.id, []).extend(event.ids)
        if engine.free_slots == SLOTS:
            return told
    raise AssertionError("it does not end")


def test_a_step_is_accounted_for_as_it_was_planned(make):
    """Decodes as decodes, although each sequence has grown by the time that the step is over."""
    engine, seen = make(), []
    engine._composer.pace.observe = lambda decodes, prefill, _ms: seen.append((decodes, prefill))
    for name in "abc":
        engine.add(ask(name, [1, 2, 3, 4, 5], 4))

    finish(engine)

    assert seen[0] == (0, 15)
    assert seen[1:] == [(3, 0)] * 3


def test_a_kept_place_is_nobody_elses_slot(make):
    """Static: who ended early is computed on, so one that is added later in the same batch has a slot of its own."""
    prompts = {"short": [3, 1, 4], "long": [1, 5, 9, 2], "late": list(range(1, 40))}
    alone = {name: finish(engine)[name] for name in prompts if (engine := added(make(), name, prompts[name]))}
    engine = make(batching="static")
    engine.add(ask("short", prompts["short"], 1))
    engine.add(ask("long", prompts["long"], 12))
    told = {}
    for event in engine.step():
        if isinstance(event, Progressed):
            told.setdefault(event.id, []).extend(event.ids)
    assert engine.free_slots == SLOTS - 2, "the place of the one that ended is kept"

    engine.add(ask("late", prompts["late"], 12))
    finish(engine, told)

    assert told["late"] == alone["late"]
    assert told["long"] == alone["long"]


def added(engine, name, prompt):
    engine.add(ask(name, prompt, 12))
    return engine


def test_places_of_a_batch_that_was_cancelled_are_free(make):
    engine = make(batching="static")
    engine.add(ask("short", [1, 2], 1))
    engine.add(ask("long", [3, 4], 50))
    engine.step()
    engine.cancel("long")

    for number in range(SLOTS):
        engine.add(ask(str(number), [1, 2, 3], 2))

    assert set(finish(engine)) == set(map(str, range(SLOTS)))


def test_penalties_smaller_than_a_coarse_types_rounding_count(make):
    """As on a GPU, whose logits are bfloat16: 20 less 0.05 is 20 there."""

    logits = torch.tensor([[20.0, 19.97]], dtype=torch.bfloat16)
    logits[0, 1] = logits[0, 0]
    tally = Tally([])
    tally.add(0)
    row = Row(Sampling(seed=1, temperature=0, frequency_penalty=0.05), position=1, tally=tally)

    [pick] = choose(logits, [row])

    assert pick.token == 1
