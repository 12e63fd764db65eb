"""The continuous engine against the libraries that run the same weights: `python -m tests.bench.engine [--json FILE]`.

Tokens a second at 1, 8 and 16 requests at once (64-token prompts, 64 new tokens, greedy) and for a burst of 32
(prompts of 24 to 96, answers of 16 to 128 tokens, 16 slots). In turn within each repeat: this engine, plain `generate`
(a static batch, padded), transformers' continuous batching manager, and this engine with int8 weights.
`--contestants` chooses; vLLM is one only in an environment that has it.
"""

import random
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.utils import logging

from shared.lanes import defaults
from shared.sections import DEFAULT_MODEL, WorkerSettings
from shared.settings import load
from shared.wire import GenerateRequest, Sampling
from tests.bench.rig import arguments, report, said, say, spread
from worker.engine import Engine, Work
from worker.engines.continuous.engine import ContinuousEngine
from worker.engines.weights import ensure

SLOTS = 16
Job = tuple[list[int], int]
"""A prompt, and how many tokens shall follow."""


def jobs(name: str) -> list[Job]:
    dice = random.Random(5)

    def prompt(length: int) -> list[int]:
        return [dice.randrange(1000, 40000) for _ in range(length)]

    if name == "burst":
        return [(prompt(dice.randint(24, 96)), dice.randint(16, 128)) for _ in range(32)]
    return [(prompt(64), 64) for _ in range(int(name))]


def request(ids: list[int], count: int) -> GenerateRequest:
    sampling = Sampling(seed=1, temperature=0, max_tokens=count, ignore_eos=True)
    return GenerateRequest(sampling=sampling, prompt=tuple(ids))


def drive(engine: Engine, work: list[Job]) -> None:
    """Run the jobs as slots come free."""
    waiting = [Work(str(n), request(ids, count)) for n, (ids, count) in enumerate(work)]
    while waiting or engine.free_slots < SLOTS:
        while waiting and engine.free_slots:
            engine.add(waiting.pop(0))
        engine.step()


class Ours:
    """The continuous engine, without a fleet around it."""

    def __init__(self, source: str, quantization: str = "none") -> None:
        self._engine = ContinuousEngine.load(
            # Nothing is reused: the same prompts come in every repeat.
            WorkerSettings.model_validate({
                "model": source, "slots": SLOTS, "max_model_len": 256, "prefix_cache_tokens": 0,
                "quantization": quantization,
            }),
            load().cache_dir,
            defaults(),
        )  # fmt: skip

    def __call__(self, work: list[Job]) -> float:
        began = time.perf_counter()
        drive(self._engine, work)
        return time.perf_counter() - began


class Vllm:
    """vLLM in this process, through its adapter; in an environment of its own (`busway[vllm]`)."""

    def __init__(self, source: str) -> None:
        from worker.engines.vllm.engine import VllmEngine

        settings = {"engine": "vllm", "model": source, "slots": SLOTS, "max_model_len": 256, "dtype": "float32"}
        self._engine = VllmEngine.load(WorkerSettings.model_validate(settings), load().cache_dir)

    def __call__(self, work: list[Job]) -> float:
        began = time.perf_counter()
        drive(self._engine, work)
        return time.perf_counter() - began


class Generate:
    """transformers' generate on padded batches; a batch runs until its longest answer is over."""

    def __init__(self, source: str) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()

    def __call__(self, work: list[Job]) -> float:
        began = time.perf_counter()
        for first in range(0, len(work), SLOTS):
            batch = work[first : first + SLOTS]
            width = max(len(ids) for ids, _ in batch)
            ids = torch.tensor([[0] * (width - len(ids)) + ids for ids, _ in batch])
            mask = torch.tensor([[0] * (width - len(ids)) + [1] * len(ids) for ids, _ in batch])
            longest = max(count for _, count in batch)
            with torch.inference_mode():
                self._model.generate(
                    input_ids=ids, attention_mask=mask, max_new_tokens=longest, min_new_tokens=longest, do_sample=False,
                    pad_token_id=0,
                )  # fmt: skip
        return time.perf_counter() - began


class Manager:
    """transformers' own continuous batching. Its start takes seconds, once in a server's life, and is not counted."""

    def __init__(self, source: str) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()

    def __call__(self, work: list[Job]) -> float:
        config = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=128)
        manager = self._model.init_continuous_batching(generation_config=config)
        manager.start()
        try:
            self._finish(manager, [(work[0][0][::-1], 1)])
            began = time.perf_counter()
            self._finish(manager, work)
            return time.perf_counter() - began
        finally:
            manager.stop(block=True)

    def _finish(self, manager: Any, work: list[Job]) -> None:
        for ids, count in work:
            manager.add_request(ids, max_new_tokens=count)
        left = len(work)
        while left:
            result = manager.get_result(timeout=120)
            if result is None:
                raise RuntimeError("the manager has ended")
            left -= result.is_finished()


# Of a model, a contestant; of work, the seconds that it took.
CONTESTANTS: dict[str, Callable[[str], Callable[[list[Job]], float]]] = {
    "busway": Ours,
    "generate": Generate,
    "manager": Manager,
    "vllm": Vllm,
    "busway int8": lambda source: Ours(source, "int8"),
}


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--contestants", nargs="+", choices=CONTESTANTS, default=[name for name in CONTESTANTS if name != "vllm"]
    )
    parser.add_argument("--cases", nargs="+", default=["1", "8", "16", "burst"])
    options = parser.parse_args()
    logging.disable_progress_bar()
    source = ensure(DEFAULT_MODEL, load().cache_dir)
    made = {name: CONTESTANTS[name](source) for name in options.contestants}
    figures: dict[str, Any] = {}
    for case in options.cases:
        work, speeds = jobs(case), {name: [] for name in made}
        tokens = sum(count for _, count in work)
        for turn in range(options.repeats + 1):  # the first warms up
            for name, runs in made.items():
                taken_s = runs(work[:2] if turn == 0 else work)
                if turn:
                    speeds[name].append(tokens / taken_s)
        figures[case] = {name: spread(values) for name, values in speeds.items()}
        say(
            f"{case:>6}: " + ", ".join(f"{name} {said(figure)}" for name, figure in figures[case].items()) + " tokens/s"
        )
    report({"threads": torch.get_num_threads(), "slots": SLOTS, "tokens_per_s": figures}, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
