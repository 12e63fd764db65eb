"""When a lane asks, and what: both follow from the seed alone, so a run can be repeated."""

import json
import math
from collections.abc import Iterator
from itertools import count
from random import Random
from typing import Any

from shared.cli.bench.plan import Load, Plan
from shared.cli.chat import TIERS

# One token each for the tokenizers of the well-known models, with the blank before it.
TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city name team minute idea body back parent face others level "
    "office door health person art war history party result change morning reason research girl guy moment air teacher"
)
WORDS = TEXT.split()


def arrivals(load: Load, *, seed: int, lane: str) -> Iterator[float]:
    """Seconds after the start at which requests arrive, without end; at first 0 for `constant`, a gap for `poisson`."""
    assert load.rate is not None, "a closed loop has no arrivals"
    if load.rate == math.inf:
        yield from (0.0 for _ in count())
    elif load.arrivals == "constant":
        yield from (number / load.rate for number in count())
    else:
        chance, at = Random(f"{seed}/{lane}/arrivals"), 0.0  # noqa: S311 - load, no secret
        while True:
            at += chance.expovariate(load.rate)
            yield at


def body(plan: Plan, lane: str, number: int) -> bytes:
    """The JSON body of a lane's request of this number (0, 1, ...), the same in every run with this seed."""
    load, chance = plan.loads[lane], Random(f"{plan.seed}/{lane}/{number}")  # noqa: S311 - load, no secret
    prompt = " ".join(chance.choices(WORDS, k=chance.randint(load.prompt_tokens.low, load.prompt_tokens.high)))
    fields: dict[str, Any] = {
        "model": plan.model,
        "max_tokens": chance.randint(load.output_tokens.low, load.output_tokens.high),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if plan.endpoint == "chat":
        fields["messages"] = [{"role": "user", "content": prompt}]
    else:
        fields["prompt"] = prompt
    if plan.temperature is not None:
        fields["temperature"] = plan.temperature
    if plan.ignore_eos:
        fields["ignore_eos"] = True
    if plan.send_tier:
        fields["service_tier"] = TIERS.get(lane, lane)
    return json.dumps(fields).encode()
