"""One burst under the three batching policies: `python -m tests.bench.batching [--json FILE]`.

32 requests at once, prompts of 24 to 96 and answers of 16 to 128 tokens, 16 slots; tokens a second and time to first
token, on the echo engine with the cost of a GPU and on the real model. The policies take turns within each repeat.
"""

import math
import sys
from contextlib import ExitStack
from typing import Any

from shared.cli.bench.drive import run
from shared.cli.bench.plan import Load, Plan, Range
from tests.bench.rig import arguments, fleet, report, said, say, spread

POLICIES = ("continuous", "dynamic", "static")
BURST = Load(rate=math.inf, requests=32, prompt_tokens=Range(24, 96), output_tokens=Range(16, 128))
COMMON = {"WORKER__SLOTS": "16", "WORKER__MAX_MODEL_LEN": "512", "WORKER__PREFIX_CACHE_TOKENS": "0"}
ENGINES: dict[str, dict[str, str]] = {
    "echo": {
        "WORKER__ENGINE": "echo",
        "WORKER__ECHO__STEP_MS": "15",
        "WORKER__ECHO__DECODE_MS": "0.3",
        "WORKER__ECHO__PREFILL_MS": "0.05",
    },
    "continuous": {"WORKER__ENGINE": "continuous"},
}


def burst(url: str, seed: int) -> dict[str, float]:
    """One burst: tokens a second from its first request to its last token, and times to first token in ms."""
    found = run(Plan(url, {"interactive": BURST}, ignore_eos=True, seed=seed, timeout_s=600), is_interruptible=False)
    lane = found.lanes["interactive"]
    if lane.errors or found.is_interrupted:
        raise RuntimeError(f"requests failed: {dict(lane.errors)}")
    told: dict[str, Any] = lane.as_dict()
    return {
        "tokens_per_s": told["output_tokens"] / found.elapsed_s,
        "ttft_p50_ms": told["ttft_ms"]["p50"],
        "ttft_p99_ms": told["ttft_ms"]["p99"],
    }


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    result: dict[str, Any] = {}
    for engine in options.engines:
        seen: dict[str, list[dict[str, float]]] = {policy: [] for policy in POLICIES}
        with ExitStack() as stack:
            env = COMMON | ENGINES[engine]
            urls = {one: stack.enter_context(fleet(env | {"WORKER__BATCHING": one})) for one in POLICIES}
            for turn in range(options.repeats + 1):  # the first warms up
                for policy, url in urls.items():
                    figures = burst(url, turn)
                    if turn:
                        seen[policy].append(figures)
        result[engine] = {
            policy: {name: spread([one[name] for one in repeats]) for name in repeats[0]}
            for policy, repeats in seen.items()
        }
        for policy, figures in result[engine].items():
            say(f"{engine:10} {policy:10} " + ", ".join(f"{name} {said(value)}" for name, value in figures.items()))
        pairs = zip(seen["continuous"], seen["static"], strict=True)
        ratio = spread([one["tokens_per_s"] / other["tokens_per_s"] for one, other in pairs])
        result[engine]["continuous_over_static"] = ratio
        say(f"{engine:10} continuous over static {said(ratio, 2)} (target 1.5 at least)")
    report(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
