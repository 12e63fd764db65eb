"""A lane: one priority class of requests, and what its operator promises for it."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from shared.errors import ConfigError

INTERACTIVE = "interactive"
BULK = "bulk"


class Lane(BaseModel):
    """The bounds and weights of one lane. Every field is `BUSWAY_LANES__<LANE>__<FIELD>`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: int = Field(default=1, ge=1, le=1000, description="Share of slots when several lanes have work")
    max_queued: int = Field(default=1_000, ge=1, description="Requests that may wait; one more is answered 429")
    max_queued_tokens: int = Field(default=2_000_000, ge=1, description="Estimated tokens that may wait")
    queue_timeout_s: float = Field(default=60, gt=0, description="Longest wait for a worker")
    deadline_s: float = Field(default=600, gt=0, description="Longest life of a request, its wait included")
    window_ms: float = Field(default=2, ge=0, le=1000, description="An idle worker waits this long for a fuller batch")
    max_batch: int | None = Field(
        default=None, ge=1, description="Slots of one worker that the lane may hold; unset: all"
    )
    starvation_s: float = Field(default=30, gt=0, description="A request that waited longer is served next")
    ttft_target_ms: float = Field(default=1_000, gt=0, description="Promised time to first token; told to the metrics")
    itl_target_ms: float = Field(default=200, gt=0, description="Promised time between tokens; told to the metrics")
    max_prompt_tokens: int | None = Field(
        default=None, ge=1, description="Longer prompts go to `overflow`; unset: none"
    )
    overflow: str = Field(default="", description="Lane of prompts that are too long here; empty: they are refused")
    reserve_slots: int = Field(
        default=0, ge=0, description="Slots of each worker that other lanes leave free for this one"
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
    },
}


def merged(overrides: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The defaults with single fields replaced; a lane that has no defaults is declared by naming it."""
    lanes = {name: dict(fields) for name, fields in DEFAULTS.items()}
    for name, fields in overrides.items():
        lanes.setdefault(name, {}).update(fields)
    return lanes


def check_order(lanes: dict[str, Lane]) -> None:
    """ConfigError if bulk outranks interactive: nearly always a slip, and it spoils what lanes are for."""
    if lanes[BULK].weight > lanes[INTERACTIVE].weight:
        raise ConfigError(
            f"lane bulk (weight {lanes[BULK].weight}) outranks interactive (weight {lanes[INTERACTIVE].weight}); "
            "set BUSWAY_ALLOW_INVERTED_LANES=1 if you mean it"
        )
