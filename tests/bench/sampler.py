"""What choosing costs: `python -m tests.bench.sampler [--json FILE]`.

Sixteen requests decode with the real model; for each kind of sampling, the time of all that follows the logits, and
its share of the step. Target: under 5 %.
"""

import random
import sys
import time
from typing import Any

import torch

from shared.sections import DEFAULT_MODEL, WorkerSettings
from shared.settings import load
from shared.wire import Sampling
from tests.bench.rig import arguments, report, said, say, spread
from worker.engines.continuous.chunks import Chunk
from worker.engines.continuous.model import Model
from worker.engines.continuous.rows import Row, Tally
from worker.engines.continuous.sampler import choose
from worker.engines.continuous.sequence import Sequence
from worker.engines.weights import ensure

BATCH, CONTEXT = 16, 100
MIXES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "temperature 1": {},
    "top_p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "top_p 0.9, flat": {"temperature": 5.0, "top_p": 0.9},
    "top_k 50": {"temperature": 0.7, "top_k": 50},
    "penalties": {"temperature": 0.7, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "logprobs 5, greedy": {"temperature": 0, "logprobs": 5},
    "all of it": {"temperature": 0.7, "top_p": 0.9, "top_k": 50, "min_p": 0.02, "presence_penalty": 0.5, "logprobs": 5},
}


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    dice = random.Random(1)
    settings = WorkerSettings.model_validate({"slots": BATCH, "max_model_len": 256})
    model = Model.load(ensure(DEFAULT_MODEL, load().cache_dir), settings)
    sequences: list[Any] = []
    for slot in range(BATCH):
        ids = [dice.randrange(1000, 40000) for _ in range(CONTEXT)]
        one: Any = Sequence(str(slot), "", slot, ids, Sampling(seed=slot), 100, (), None)  # type: ignore[arg-type]
        model.forward([Chunk(one, 0, CONTEXT - 1)])
        one.cached = CONTEXT - 1
        sequences.append(one)
    chunks = [Chunk(one, CONTEXT - 1, 1) for one in sequences]
    times: dict[str, list[float]] = {name: [] for name in MIXES}
    steps: list[float] = []
    for _ in range(options.repeats + 2):
        for name, fields in MIXES.items():
            began = time.perf_counter()
            logits = model.forward(chunks)
            forward = time.perf_counter()
            rows = [_row(seed, fields, one.prompt_ids) for seed, one in enumerate(sequences)]
            ready = time.perf_counter()
            with torch.inference_mode():
                choose(logits, rows)
            times[name].append(1000 * (time.perf_counter() - ready))
            steps.append(1000 * (forward - began))
    step = spread(steps[2 * len(MIXES) :])
    say(f"{'forward':20} {said(step)} ms")
    figures = {name: spread(values[2:]) for name, values in times.items()}
    for name, figure in figures.items():
        share = figure["median"] / (step["median"] + figure["median"])
        say(f"{name:20} {said(figure, 2)} ms, {100 * share:.1f} % of the step")
    report({"forward_ms": step, "sampler_ms": figures, "threads": torch.get_num_threads()}, options.json)
    return 0


def _row(seed: int, fields: dict[str, Any], prompt_ids: list[int]) -> Row:
    sampling = Sampling(seed=seed, **fields)
    penalised = {"frequency_penalty", "presence_penalty", "repetition_penalty"} & fields.keys()
    return Row(sampling, 7, Tally(prompt_ids) if penalised else None)


if __name__ == "__main__":
    sys.exit(main())
