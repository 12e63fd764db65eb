"""Answers that must match a schema: `python -m tests.bench.guides [--json FILE]`.

A hundred answers of the real model at temperature 1, ten schemas with ten seeds each, in one batch with unguided
strangers: how many are valid, and what the mask costs a token.
"""

import json
import statistics
import sys
import time
from typing import Any

import jsonschema
from torch import Tensor

from shared.lanes import defaults
from shared.sections import DEFAULT_MODEL, WorkerSettings
from shared.settings import load
from shared.wire import GenerateRequest, Guide, Sampling
from tests.bench.rig import arguments, report, say
from worker.engine import Ended, Progressed, Work
from worker.engines.continuous import guide as module
from worker.engines.continuous.engine import ContinuousEngine

WORD = {"type": "string", "maxLength": 12}
NUMBER = {"type": "integer", "minimum": -999, "maximum": 999}
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"name": WORD, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
     "required": ["name", "age"], "additionalProperties": False},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 999}, "minItems": 2, "maxItems": 5},
    {"type": "object", "properties": {"colour": {"enum": ["red", "green", "blue"]}}, "required": ["colour"],
     "additionalProperties": False},
    {"type": "object", "properties": {"ok": {"type": "boolean"}, "why": WORD}, "required": ["ok"],
     "additionalProperties": False},
    {"anyOf": [{"type": "integer", "maximum": 9999, "minimum": 0}, WORD]},
    {"type": "object", "properties": {"tags": {"type": "array", "items": WORD, "maxItems": 3}}, "required": ["tags"],
     "additionalProperties": False},
    {"type": "object", "properties": {"date": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}},
     "required": ["date"], "additionalProperties": False},
    {"type": "object", "properties": {"at": {"type": "object", "properties": {"x": NUMBER,
     "y": NUMBER}, "required": ["x", "y"], "additionalProperties": False}}, "required": ["at"],
     "additionalProperties": False},
    {"const": {"a": [1, 2, 3]}},
    {"type": "array", "prefixItems": [WORD, {"type": "boolean"}], "items": False, "minItems": 2},
]  # fmt: skip
SEEDS, STRANGERS, MOST_TOKENS = 10, 20, 200


def works() -> list[Work]:
    made = []
    for number in range(len(SCHEMAS) * SEEDS):
        guide = Guide(kind="json_schema", text=json.dumps(SCHEMAS[number % len(SCHEMAS)]))
        sampling = Sampling(seed=number, temperature=1.0, max_tokens=MOST_TOKENS)
        made.append(Work(f"g{number}", GenerateRequest(sampling=sampling, prompt="An example: ", guide=guide)))
        if number < STRANGERS:
            stranger = GenerateRequest(sampling=Sampling(seed=number, max_tokens=40), prompt="A story: ")
            made.append(Work(f"s{number}", stranger))
    return made


def answers(engine: ContinuousEngine) -> tuple[dict[str, str], dict[str, Any]]:
    """Text and outcome of all works."""
    waiting, texts, ends = works(), {}, {}
    while waiting or engine.free_slots < engine.slots:
        while waiting and engine.free_slots:
            texts[waiting[0].id] = ""
            engine.add(waiting.pop(0))
        for event in engine.step():
            if isinstance(event, Progressed):
                texts[event.id] += event.text
            elif isinstance(event, Ended):
                ends[event.id] = event.outcome
    return texts, ends


def main() -> int:
    """Exit status 1 if a finished answer is not valid."""
    options = arguments(__doc__).parse_args()
    settings = WorkerSettings.model_validate({"model": DEFAULT_MODEL, "slots": 16, "max_model_len": 512})
    engine = ContinuousEngine.load(settings, load().cache_dir, defaults())
    masks: list[float] = []
    plain = module.Guide.allowed

    def timed(one: module.Guide) -> Tensor:
        began = time.perf_counter()
        allowed = plain(one)
        masks.append(1e6 * (time.perf_counter() - began))
        return allowed

    module.Guide.allowed = timed
    texts, ends = answers(engine)
    cut = [key for key, outcome in ends.items() if key[0] == "g" and outcome.reason != "stop"]
    invalid = [key for key in texts if key[0] == "g" and key not in cut and not _is_valid(key, texts[key])]
    masks.sort()
    result = {
        "answers": len(SCHEMAS) * SEEDS,
        "valid": len(SCHEMAS) * SEEDS - len(cut) - len(invalid),
        "cut_by_max_tokens": len(cut),
        "invalid": len(invalid),
        "mask_us": {"median": statistics.median(masks), "p99": masks[int(0.99 * len(masks))], "max": masks[-1]},
        "masks": len(masks),
    }
    say(json.dumps(result, indent=2))
    report(result, options.json)
    return 1 if invalid else 0


def _is_valid(key: str, text: str) -> bool:
    try:
        jsonschema.validate(json.loads(text), SCHEMAS[int(key[1:]) % len(SCHEMAS)])
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
