"""A peer's evaluation harness on both sides: `python -m tests.bench.harness [--json FILE]`.

EleutherAI's lm-eval (`pip install "lm-eval[api]"`, not a part of the test tools) scores a small multiple-choice task by
log-likelihood, through `/v1/completions` of a real fleet (echo, log-probabilities, prompts as token ids) and with
transformers alone. Both must come to the same score, and to the same log-likelihood of every choice.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from shared.sections import DEFAULT_MODEL
from shared.settings import load
from tests.bench.rig import arguments, fleet, report, say
from worker.engines.weights import ensure

CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Germany": "Berlin", "Japan": "Tokyo", "Egypt": "Cairo",
    "Russia": "Moscow", "Greece": "Athens", "Austria": "Vienna", "China": "Beijing", "Cuba": "Havana", "Peru": "Lima",
}  # fmt: skip
OPPOSITES = {
    "hot": "cold", "big": "small", "fast": "slow", "up": "down", "light": "dark", "early": "late", "rich": "poor",
    "wet": "dry", "old": "young", "full": "empty", "hard": "soft", "open": "closed",
}  # fmt: skip
SUMS = {f"{one} plus {other}": str(one + other) for one, other in zip(range(13, 61, 4), range(88, 28, -5), strict=True)}
TASK = """
task: busway_probe
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
  - metric: acc_norm
"""


def questions() -> list[dict[str, Any]]:
    """Four choices each, one of them right."""
    rows = []
    for table, form in (
        (CAPITALS, "The capital of {} is"),
        (OPPOSITES, "The opposite of {} is"),
        (SUMS, "As we all know, {} is"),
    ):
        answers = list(table.values())
        for place, (word, right) in enumerate(table.items()):
            choices = [answers[(place + step) % len(answers)] for step in (0, 3, 5, 7)]
            turned = choices[place % 4 :] + choices[: place % 4]
            row = {"question": form.format(word), "choices": turned, "answer": turned.index(right)}
            rows.append(row)
    return rows


def evaluate(model: str, arguments: str, folder: Path) -> dict[str, Any]:
    """The task's scores, and each choice's log-likelihood, as the harness finds them."""
    from lm_eval import simple_evaluate  # pyright: ignore[reportMissingImports]
    from lm_eval.tasks import TaskManager  # pyright: ignore[reportMissingImports]

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    found = simple_evaluate(
        model=model, model_args=arguments, tasks=["busway_probe"], task_manager=manager, log_samples=True, batch_size=4
    )
    samples = sorted(found["samples"]["busway_probe"], key=lambda sample: sample["doc_id"])
    scores = found["results"]["busway_probe"]
    return {
        "acc": scores["acc,none"],
        "acc_norm": scores["acc_norm,none"],
        "likelihoods": [float(choice[0]) for sample in samples for choice in sample["filtered_resps"]],
        "greedy": [bool(choice[1]) for sample in samples for choice in sample["filtered_resps"]],
    }


def through_the_fleet(source: str, folder: Path) -> dict[str, Any]:
    """The same through a gateway, a lane and a worker."""
    with fleet({"WORKER__ENGINE": "continuous"}) as url:
        parts = {
            "model": DEFAULT_MODEL,
            "base_url": f"{url}/v1/completions",
            "tokenizer": source,
            "tokenizer_backend": "huggingface",
            "num_concurrent": 4,
            "max_length": 1024,
        }
        return evaluate("local-completions", ",".join(f"{name}={value}" for name, value in parts.items()), folder)


def main() -> int:
    """Exit status 1 if the two sides differ."""
    options = arguments(__doc__).parse_args()
    source = ensure(DEFAULT_MODEL, load().cache_dir)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_CACHE=str(folder / "datasets"))
        (folder / "probe.jsonl").write_text("\n".join(map(json.dumps, questions())))
        (folder / "probe.yaml").write_text(TASK.format(data=folder / "probe.jsonl"))
        alone = evaluate("hf", f"pretrained={source},dtype=float32,device=cpu", folder)
        served = through_the_fleet(source, folder)
    gaps = [abs(one - other) for one, other in zip(alone["likelihoods"], served["likelihoods"], strict=True)]
    found = {
        "questions": len(questions()),
        "choices": len(gaps),
        "transformers": {score: alone[score] for score in ("acc", "acc_norm")},
        "busway": {score: served[score] for score in ("acc", "acc_norm")},
        "largest_likelihood_gap": max(gaps),
        "greedy_flags_equal": alone["greedy"] == served["greedy"],
    }
    say(json.dumps(found, indent=2))
    report(found, options.json)
    return 0 if found["transformers"] == found["busway"] and found["greedy_flags_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
