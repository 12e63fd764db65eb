"""A long prompt beside short streams: `python -m tests.bench.long_prompt [--json FILE]`.

The real model: six short answers are under way when a prompt of 1,800 tokens arrives. The longest gap between two
tokens of a short answer, in steps as they were before it came.
"""

import statistics
import sys
import time
from typing import Any

from shared.lanes import defaults
from shared.sections import DEFAULT_MODEL, WorkerSettings
from shared.settings import load
from tests.bench.engine import jobs, request
from tests.bench.rig import arguments, report, said, say, spread
from worker.engine import Progressed, Work
from worker.engines.continuous.engine import ContinuousEngine

SHORT, LONG = 6, 1800


def once(engine: ContinuousEngine) -> dict[str, float]:
    """Milliseconds: a normal step, the longest gap, and the long prompt's time to its first token."""
    for number, (ids, _) in enumerate(jobs("8")[:SHORT]):
        engine.add(Work(str(number), request(ids, 1200)))
    normal, gaps, last = [], [], dict.fromkeys(map(str, range(SHORT)), 0.0)
    for step in range(40):
        began = time.perf_counter()
        engine.step()
        if step >= 20:
            normal.append(time.perf_counter() - began)
    prompt = [1000 + place % 30_000 for place in range(LONG)]
    arrived = time.perf_counter()
    last = dict.fromkeys(last, arrived)
    engine.add(Work("long", request(prompt, 4)))
    first: float | None = None
    while first is None:
        for event in engine.step():
            now = time.perf_counter()
            if isinstance(event, Progressed) and event.id == "long":
                first = first or now - arrived
            elif isinstance(event, Progressed):
                gaps.append(now - last[event.id])
                last[event.id] = now
    for request_id in (*last, "long"):
        engine.cancel(request_id)
    step_ms, gap_ms = 1000 * statistics.median(normal), 1000 * max(gaps)
    return {"step_ms": step_ms, "gap_ms": gap_ms, "gap_in_steps": gap_ms / step_ms, "long_ttft_ms": 1000 * first}


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    settings = WorkerSettings.model_validate({"model": DEFAULT_MODEL, "slots": 8, "prefix_cache_tokens": 0})
    engine = ContinuousEngine.load(settings, load().cache_dir, defaults())
    repeats: list[dict[str, float]] = [once(engine) for _ in range(options.repeats)]
    result: dict[str, Any] = {name: spread([one[name] for one in repeats]) for name in repeats[0]}
    for name, figure in result.items():
        say(f"{name:13} {said(figure)}")
    say("target: a gap of 3 steps at most")
    report(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
