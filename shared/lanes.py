"""A lane: one priority class of requests, and what its operator promises for it."""

import re
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from shared.errors import ConfigError

Seconds = Annotated[float, Field(le=31_536_000)]
"""At most a year: what is meant to be for ever still fits every clock."""
NAME = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")
INTERACTIVE = "interactive"
BULK = "bulk"


class Lane(BaseModel):
    """The bounds and weights of one lane. Every field is `BUSWAY_LANES__<LANE>__<FIELD>`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    weight: int = Field(default=1, ge=1, le=1000, description="Share of slots when several lanes have work")
    max_queued: int = Field(default=1_000, ge=1, description="Requests that may wait; one more is answered 429")
    max_queued_tokens: int = Field(default=2_000_000, ge=1, description="Estimated tokens that may wait")
    queue_timeout_s: Seconds = Field(default=60, gt=0, description="Longest wait for a worker")
    deadline_s: Seconds = Field(default=600, gt=0, description="Longest life of a request, its wait included")
    window_ms: float = Field(default=2, ge=0, le=1000, description="An idle worker waits this long for a fuller batch")
    max_batch: int | None = Field(
        default=None, ge=1, description="Slots of one worker that the lane may hold; unset: all"
    )
    starvation_s: Seconds = Field(default=30, gt=0, description="A request that waited longer is served next")
    ttft_target_ms: float = Field(default=1_000, gt=0, description="Promised time to first token")
    itl_target_ms: float = Field(
        default=200,
        gt=0,
        description="Promised time between tokens; the least of those that are not preemptible bounds a step",
    )
    max_prompt_tokens: int | None = Field(
        default=None, ge=1, description="Longer prompts go to `overflow`; unset: none"
    )
    overflow: str = Field(default="", description="Lane of prompts that are too long here; empty: they are refused")
    reserve_slots: int = Field(
        default=0, ge=0, description="Slots of each worker that other lanes leave free for this one"
    )
    preemptible: bool = Field(
        default=False, description="Its requests pause or go back to the lane, tokens kept, when others need the place"
    )


DEFAULTS: dict[str, dict[str, Any]] = {
    INTERACTIVE: {"weight": 8, "reserve_slots": 1},
    BULK: {
        "weight": 1,
        "max_queued": 100_000,
        "max_queued_tokens": 200_000_000,
        "queue_timeout_s": 86_400,
        "deadline_s": 86_400,
        "starvation_s": 60,
        "ttft_target_ms": 3_600_000,
        "itl_target_ms": 10_000,
        "window_ms": 20,
        "preemptible": True,
    },
}


def defaults() -> dict[str, Lane]:
    """The lanes of a fleet whose operator says nothing."""
    return {name: Lane(**fields) for name, fields in DEFAULTS.items()}


def names_of(text: str) -> list[str]:
    """The names in a comma-separated list, in lower case as all lanes are."""
    return [name.strip().lower() for name in text.split(",") if name.strip()]


def merged(overrides: dict[str, dict[str, Any]], extra: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """The defaults, and the extra lanes, with single fields replaced."""
    lanes = {name: dict(DEFAULTS.get(name, {})) for name in (*DEFAULTS, *extra)}
    for name, fields in overrides.items():
        lanes.setdefault(name, {}).update(fields)
    return lanes


def check_names(lanes: dict[str, Lane], *, default: str) -> None:
    """ConfigError if the default lane or an overflow is none of the lanes, or a name cannot be part of a setting."""
    if default not in lanes:
        raise ConfigError(f"BUSWAY_GATEWAY__DEFAULT_LANE={default}: no such lane; there are {', '.join(lanes)}")
    for name, lane in lanes.items():
        if not NAME.fullmatch(name):
            raise ConfigError(f"BUSWAY_EXTRA_LANES: {name!r} is not a name of letters, digits and single underscores")
        if lane.overflow and lane.overflow not in lanes:
            raise ConfigError(f"BUSWAY_LANES__{name.upper()}__OVERFLOW={lane.overflow}: no such lane")


def check_order(lanes: dict[str, Lane]) -> None:
    """ConfigError if bulk outranks interactive: nearly always a slip, and it spoils what lanes are for."""
    if lanes[BULK].weight > lanes[INTERACTIVE].weight:
        raise ConfigError(
            f"lane bulk (weight {lanes[BULK].weight}) outranks interactive (weight {lanes[INTERACTIVE].weight}); "
            "set BUSWAY_ALLOW_INVERTED_LANES=1 if you mean it"
        )
