"""What batching by length gains: `python -m tests.bench.embeddings [--json FILE]`.

The same texts, of mixed lengths as a corpus has them, embedded in three ways by the same network:
- engine: through the embedding engine, which puts inputs of like length together;
- padded: batches of as many tokens in order of arrival, each padded to its longest;
- single: one text a forward.
The ways take turns, several times; their vectors must agree.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shared.sections import WorkerSettings
from shared.settings import load
from shared.wire import GenerateRequest, Sampling
from worker.engine import Ended, Work
from worker.engines.embedding.engine import EmbeddingEngine

TEXTS = 256
TEXTS_A_REQUEST = 16
REPEATS = 3
WORDS = ["the", "sea", "storm", "lighthouse", "keeper", "ships", "and", "bread", "tides", "quantum", "ledgers", "in"]


def corpus(count: int, seed: int = 11) -> list[str]:
    """Mostly short texts and some long ones: log-normal, 20 words in the median."""
    source = random.Random(seed)
    sizes = [max(1, min(180, round(source.lognormvariate(3.0, 0.9)))) for _ in range(count)]
    return [" ".join(source.choices(WORDS, k=size)) for size in sizes]


def by_engine(engine: EmbeddingEngine, texts: list[str]) -> np.ndarray:
    waiting = [
        Work(
            str(start), GenerateRequest(sampling=Sampling(seed=1), inputs=tuple(texts[start : start + TEXTS_A_REQUEST]))
        )
        for start in range(0, len(texts), TEXTS_A_REQUEST)
    ]
    found: dict[int, np.ndarray] = {}
    while waiting or engine.free_slots < engine.slots:
        while waiting and engine.free_slots:
            engine.add(waiting.pop(0))
        for event in engine.step():
            assert isinstance(event, Ended)
            found[int(event.id)] = np.frombuffer(event.outcome.embeddings, "<f4").reshape(
                -1, engine._encoder.dimensions
            )
    return np.concatenate([found[start] for start in sorted(found)])


def padded(engine: EmbeddingEngine, texts: list[str], tokens: int) -> np.ndarray:
    batches: list[list[list[int]]] = [[]]
    for ids in engine._encoder.tokens(texts):
        if batches[-1] and sum(map(len, batches[-1])) + len(ids) > tokens:
            batches.append([])
        batches[-1].append(ids)
    return np.concatenate([unit(engine._encoder.encode(batch)) for batch in batches])


def single(engine: EmbeddingEngine, texts: list[str]) -> np.ndarray:
    return np.concatenate([unit(engine._encoder.encode([ids])) for ids in engine._encoder.tokens(texts)])


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def measure(ways: dict[str, Callable[[], np.ndarray]], repeats: int) -> tuple[dict[str, list[float]], float]:
    """Seconds of each way in each round, and the largest difference between any two vectors of a text."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    apart, first = 0.0, None
    for _ in range(repeats):
        for name, way in ways.items():
            began = time.perf_counter()
            vectors = way()
            seconds[name].append(time.perf_counter() - began)
            first = vectors if first is None else first
            apart = max(apart, float(np.abs(vectors - first).max()))
    return seconds, apart


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the numbers there")
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--threads", type=int, default=0, help="0: one a core")
    chosen = parser.parse_args()
    settings = WorkerSettings(engine="embedding", threads=chosen.threads)
    engine = EmbeddingEngine.load(settings, load().lanes, load().cache_dir)
    texts = corpus(chosen.texts)
    tokens = sum(map(len, engine._encoder.tokens(texts)))
    seconds, apart = measure(
        {
            "engine": lambda: by_engine(engine, texts),
            "padded": lambda: padded(engine, texts, settings.embed_batch_tokens),
            "single": lambda: single(engine, texts),
        },
        chosen.repeats,
    )
    told = {"texts": len(texts), "tokens": tokens, "largest_difference": apart, "ways": {}}
    sys.stdout.write(f"{len(texts)} texts, {tokens} tokens; vectors differ by {apart:.1e} at most\n")
    for name, each in seconds.items():
        middle, spread = statistics.median(each), max(each) - min(each)
        told["ways"][name] = {"texts_s": len(texts) / middle, "tokens_s": tokens / middle, "seconds": each}
        rates = f"{len(texts) / middle:7.1f} texts/s {tokens / middle:8.0f} tokens/s"
        sys.stdout.write(f"{name:8} {rates}   (spread {spread / middle:.0%} of {middle:.2f} s)\n")
    if chosen.json:
        chosen.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
