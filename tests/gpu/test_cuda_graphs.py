"""Recorded decode steps against eager ones on a CUDA device. A minute on any GPU; skipped without one."""

import sys
import time

import pytest

torch = pytest.importorskip("torch")

from shared.sections import DEFAULT_MODEL, WorkerSettings  # noqa: E402
from shared.settings import load  # noqa: E402
from shared.wire import Sampling  # noqa: E402
from worker.engines.continuous.chunks import Chunk, arrange  # noqa: E402
from worker.engines.continuous.model import Model  # noqa: E402
from worker.engines.continuous.sequence import Sequence  # noqa: E402
from worker.engines.weights import ensure  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.model,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

SLOTS, STEPS = 32, 64
TOLERANCE = 0.03
"""Of a row of logits, by its norm: bfloat16 has eight bits, and a padded shape may be added up in another order."""


@pytest.fixture(scope="module")
def models():
    source = ensure(DEFAULT_MODEL, load().cache_dir)
    common = {"slots": SLOTS, "max_model_len": 512, "device": "cuda"}
    settings = [WorkerSettings.model_validate({**common, "cuda_graphs": graphs}) for graphs in (False, True)]
    made = [Model.load(source, one) for one in settings]
    yield made
    for one in made:
        one.close()


def prompts(count, model):
    """The prompts of so many sequences, run."""
    made = [
        Sequence(str(n), "", n, [100 + 37 * n + m for m in range(8 + 9 * n)], Sampling(seed=1), 512, (), None)
        for n in range(count)
    ]
    model.forward(arrange(made, {one.id: one.pending for one in made}))
    for one in made:
        one.cached = one.length
    return made


def decodes(running, token):
    for one in running:
        one.output_ids.append(token)
    return [Chunk(one, one.length - 1, 1) for one in running]


@pytest.mark.parametrize("count", [1, 3, 8, 21, SLOTS])
def test_recorded_steps_give_what_eager_ones_give(models, count):
    """At every step, over lengths that cross from one shape into the next."""
    eager, recorded = models
    pairs = prompts(count, eager), prompts(count, recorded)
    for step in range(STEPS):
        expected, found = (
            model.forward(decodes(running, 1000 + step)).float()
            for model, running in zip((eager, recorded), pairs, strict=True)
        )
        for running in pairs:
            for one in running:
                one.cached = one.length
        assert ((found - expected).norm(dim=-1) / expected.norm(dim=-1)).max() < TOLERANCE


@pytest.mark.parametrize("count", [1, 8, SLOTS])
def test_speed_is_told(models, count):
    """Decides nothing about time; says what recording is worth on this device."""
    for name, model in zip(("eager", "recorded"), models, strict=True):
        running = prompts(count, model)
        chunks = decodes(running, 1000)
        assert model.forward(chunks).isfinite().all()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(STEPS):
            model.forward(chunks)
        torch.cuda.synchronize()
        taken_ms = 1000 * (time.perf_counter() - began) / STEPS
        sys.stdout.write(f"{name}, {count} requests: {taken_ms:.2f} ms a step\n")
