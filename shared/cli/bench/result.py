"""What a run showed: percentiles and rates of each lane, as objects and as JSON."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from statistics import fmean
from typing import Any

from shared.cli.bench.plan import Plan
from shared.cli.bench.sample import Sample
from shared.version import VERSION

QUANTILES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The value at this share (0 to 1) of values in ascending order; None if there are none.

    Linear between neighbours: rank `share * (n - 1)`, counted from 0 (Hyndman and Fan's type 7, numpy's default).
    """
    if not ordered:
        return None
    rank = share * (len(ordered) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)


@dataclass(frozen=True)
class Spread:
    """Milliseconds in ascending order."""

    ordered: Sequence[float]

    @classmethod
    def of_seconds(cls, values: Iterable[float]) -> "Spread":
        return cls(sorted(value * 1000 for value in values))

    def at(self, share: float) -> float | None:
        return percentile(self.ordered, share)

    def as_dict(self) -> dict[str, float | int | None]:
        """Percentiles, mean and greatest (None without values), and how many values there are."""
        return {
            **{name: self.at(share) for name, share in QUANTILES.items()},
            "mean": fmean(self.ordered) if self.ordered else None,
            "max": self.ordered[-1] if self.ordered else None,
            "count": len(self.ordered),
        }


class Lane:
    """One lane's figures. Requests that arrived within the warm-up are left out of all but `tokens_per_s`."""

    def __init__(self, samples: Sequence[Sample], *, begin_s: float, over_s: float) -> None:
        self._all = samples
        self._begin_s = begin_s
        self._over_s = over_s
        self.samples = [one for one in samples if one.due >= begin_s]
        self.answered = [one for one in self.samples if one.error is None]
        """Neither failed nor, unless the run was interrupted, unfinished."""

    @cached_property
    def ttft(self) -> Spread:
        """From the planned arrival to the first event with text."""
        return Spread.of_seconds(one.events[0] - one.due for one in self.answered if one.events)

    @cached_property
    def itl(self) -> Spread:
        """Every gap between two events with text."""
        return Spread.of_seconds(
            after - before for one in self.answered for before, after in zip(one.events, one.events[1:], strict=False)
        )

    @cached_property
    def tpot(self) -> Spread:
        """A request's time a token after the first: first to last event, over the tokens but one."""
        return Spread.of_seconds(
            (one.events[-1] - one.events[0]) / (one.tokens - 1)
            for one in self.answered
            if one.is_whole and len(one.events) > 1 and one.tokens > 1
        )

    @cached_property
    def e2e(self) -> Spread:
        """From the planned arrival to `[DONE]`."""
        return Spread.of_seconds(one.ended - one.due for one in self.answered if one.ended is not None)

    @cached_property
    def send_delay(self) -> Spread:
        """From the planned arrival to the request's first byte: our own lateness, and connecting."""
        return Spread.of_seconds(one.sent - one.due for one in self.samples if one.sent is not None)

    @cached_property
    def errors(self) -> Counter[str]:
        """How many failed, by kind."""
        return Counter(one.error for one in self.samples if one.error is not None)

    @property
    def error_examples(self) -> dict[str, str]:
        """What the first of each kind was told."""
        return {one.error: one.detail for one in reversed(self.samples) if one.error is not None}

    @property
    def unfinished(self) -> int:
        """In flight when the run was interrupted."""
        return sum(one.ended is None for one in self.answered)

    def token_times(self) -> list[tuple[float, float]]:
        """(time, tokens) of each event, warm-up included: a request's tokens, spread evenly over its events."""
        return [
            (at, one.tokens / len(one.events))
            for one in self._all
            if one.error is None and one.events
            for at in one.events
        ]

    @cached_property
    def tokens_per_s(self) -> float | None:
        """Tokens that came between the warm-up and the run's end, failed requests' left out; None without a time."""
        if self._over_s <= self._begin_s:
            return None
        tokens = sum(count for at, count in self.token_times() if self._begin_s <= at <= self._over_s)
        return tokens / (self._over_s - self._begin_s)

    def as_dict(self) -> dict[str, Any]:
        whole = [one for one in self.answered if one.is_whole]
        return {
            "requests": len(self.samples),
            "completed": len(whole),
            "unfinished": self.unfinished,
            "errors": sum(self.errors.values()),
            "errors_by_kind": dict(self.errors),
            "error_examples": self.error_examples,
            "warmup_requests": len(self._all) - len(self.samples),
            "ttft_ms": self.ttft.as_dict(),
            "itl_ms": self.itl.as_dict(),
            "tpot_ms": self.tpot.as_dict(),
            "e2e_ms": self.e2e.as_dict(),
            "send_delay_ms": self.send_delay.as_dict(),
            "tokens_per_s": self.tokens_per_s,
            "prompt_tokens": sum(one.prompt_tokens or 0 for one in whole),
            "output_tokens": sum(one.tokens for one in whole),
            "counted_by_events": sum(one.output_tokens is None for one in whole),
        }


@dataclass(frozen=True)
class Result:
    """One run."""

    plan: Plan
    """As it was run: the model is named."""
    samples: list[Sample]
    started: datetime
    over_s: float
    """When the run was over: nothing new was asked, and `tokens_per_s` ends."""
    elapsed_s: float
    """When the last answer had ended."""
    client_cpu: float
    """CPU seconds that this process took a second. Near 1, it is the client that is measured."""
    is_interrupted: bool

    @cached_property
    def lanes(self) -> dict[str, Lane]:
        begin_s = self.plan.warmup_s
        return {
            name: Lane([one for one in self.samples if one.lane == name], begin_s=begin_s, over_s=self.over_s)
            for name in self.plan.loads
        }

    def as_dict(self) -> dict[str, Any]:
        """For JSON. What is not known is None; an infinite rate is the text `inf`."""
        settings = asdict(self.plan)
        del settings["api_key"]
        for load in settings["loads"].values():
            if load["rate"] == math.inf:
                load["rate"] = "inf"
        return {
            "busway": VERSION,
            "started": self.started.isoformat(timespec="seconds"),
            "settings": settings,
            "measured_s": max(0.0, self.over_s - self.plan.warmup_s),
            "elapsed_s": self.elapsed_s,
            "is_interrupted": self.is_interrupted,
            "client_cpu": self.client_cpu,
            "lanes": {name: lane.as_dict() for name, lane in self.lanes.items()},
        }
