"""Does bulk spoil interactive latency, and what does it get? `python -m tests.bench.interference [--json FILE]`.

In turn, several times: interactive alone at a tenth of the fleet's capacity, the same beside a bulk lane that
always has more than the fleet can run, and that bulk alone. On the echo engine with the cost of a GPU
(15 ms a step, 0.3 ms a decode, 0.05 ms a prefill token; two workers of 64 slots), or with `--engine continuous` on the
real model. `ratio_p99_ttft` is with bulk over without; `bulk_kept` is bulk's tokens a second beside
interactive over those alone.
"""

import sys
from typing import Any

from shared.cli.bench.drive import run
from shared.cli.bench.plan import Load, Plan, Range
from tests.bench.rig import arguments, fleet, report, said, say, spread

CASES: dict[str, dict[str, Any]] = {
    "echo": {
        # An operator who promises 24 ms between tokens on such a device.
        "env": {
            "WORKER__ENGINE": "echo",
            "WORKER__SLOTS": "64",
            "WORKER__MAX_MODEL_LEN": "4096",
            "WORKER__ECHO__STEP_MS": "15",
            "WORKER__ECHO__DECODE_MS": "0.3",
            "WORKER__ECHO__PREFILL_MS": "0.05",
            "LANES__INTERACTIVE__ITL_TARGET_MS": "24",
            "LANES__INTERACTIVE__RESERVE_SLOTS": "8",
        },
        "workers": 2,
        "interactive": Load(rate=3.7, prompt_tokens=Range(24, 96), output_tokens=Range(32, 96)),
        "bulk": Load(concurrency=160, prompt_tokens=Range(24, 96), output_tokens=Range(64, 192)),
        "target_ratio": 1.25,
    },
    "continuous": {
        "env": {
            "WORKER__ENGINE": "continuous",
            "WORKER__SLOTS": "16",
            "WORKER__MAX_MODEL_LEN": "512",
            "WORKER__THREADS": "1",
            "WORKER__PREFIX_CACHE_TOKENS": "0",  # the same prompts come with bulk and without
            "LANES__INTERACTIVE__RESERVE_SLOTS": "2",
        },
        "workers": 1,
        "interactive": Load(rate=0.3, prompt_tokens=Range(24, 64), output_tokens=Range(16, 48)),
        "bulk": Load(concurrency=32, prompt_tokens=Range(24, 96), output_tokens=Range(64, 128)),
        "target_ratio": 1.5,
    },
}


def phase(url: str, loads: dict[str, Load], seconds: float, seed: int) -> dict[str, Any]:
    """One load for so long; each lane's figures."""
    plan = Plan(url, loads, duration_s=seconds, warmup_s=seconds / 6, ignore_eos=True, seed=seed, timeout_s=300)
    return run(plan, is_interruptible=False).as_dict()


def repeat(url: str, case: dict[str, Any], seconds: float, seed: int) -> dict[str, Any]:
    interactive, bulk = {"interactive": case["interactive"]}, {"bulk": case["bulk"]}
    alone = phase(url, interactive, seconds, seed)
    both = phase(url, interactive | bulk, seconds, seed)
    only = phase(url, bulk, seconds, seed)
    with_bulk, without = both["lanes"]["interactive"], alone["lanes"]["interactive"]
    return {
        "alone": without,
        "with_bulk": with_bulk,
        "bulk_with": both["lanes"]["bulk"],
        "bulk_alone": only["lanes"]["bulk"],
        "client_cpu": both["client_cpu"],
        "ratio_p99_ttft": with_bulk["ttft_ms"]["p99"] / without["ttft_ms"]["p99"],
        "bulk_kept": both["lanes"]["bulk"]["tokens_per_s"] / only["lanes"]["bulk"]["tokens_per_s"],
    }


def show(repeats: list[dict[str, Any]]) -> None:
    for name in ("alone", "with_bulk"):
        for measure in ("ttft_ms", "itl_ms"):
            points = ", ".join(
                f"{point} {said(spread([one[name][measure][point] for one in repeats]))}"
                for point in ("p50", "p95", "p99")
            )
            say(f"interactive {name:9} {measure:8} {points}")
    for name in ("bulk_alone", "bulk_with"):
        say(f"{name:11} tokens/s {said(spread([one[name]['tokens_per_s'] for one in repeats]))}")


def main() -> int:
    """Exit status 1 if a request failed."""
    parser = arguments(__doc__)
    parser.add_argument("--engine", choices=CASES, default="echo")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40, help="of each of the three loads of a repeat")
    options = parser.parse_args()
    case = CASES[options.engine]
    with fleet(case["env"], workers=case["workers"]) as url:
        phase(url, {"interactive": case["interactive"], "bulk": case["bulk"]}, 6, 99)  # the pace is learnt, all is warm
        repeats = [repeat(url, case, options.seconds, seed) for seed in range(options.repeats)]
    ratio, kept = (spread([one[name] for one in repeats]) for name in ("ratio_p99_ttft", "bulk_kept"))
    show(repeats)
    say(f"ratio_p99_ttft {said(ratio, 2)} (target {case['target_ratio']} at most)")
    say(f"bulk_kept      {said(kept, 2)} (target 0.85 at least)")
    result = {
        "engine": options.engine,
        "settings": case["env"],
        "workers": case["workers"],
        "ratio_p99_ttft": ratio["median"],
        "bulk_kept": kept["median"],
        "spread": {"ratio_p99_ttft": ratio, "bulk_kept": kept},
        "repeats": repeats,
    }
    report(result, options.json)
    failed = sum(one[part]["errors"] for one in repeats for part in ("alone", "with_bulk", "bulk_with", "bulk_alone"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
