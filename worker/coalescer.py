"""The coalescer: pieces of requests that nobody reads now are logged in larger portions."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from msgspec import structs

from shared.lease import Assignment, Emission
from worker.table import Report

MOST_TOKENS = 32
MOST_S = 1.0
"""A portion holds at most so many tokens, and is kept back no longer than this: what a worker's death costs to redo."""


@dataclass(slots=True)
class Portion:
    """Pieces that have not been told yet, joined."""

    emission: Emission
    since: float


class Coalescer:
    """Stands between the table and the outlet. An end or a hand-over tells what was kept back before it.

    Who is read is known from the broker's last reply, and from the word of a gateway that begins to watch.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._quiet: set[str] = set()
        self._woken: set[str] = set()
        """Of these the next reply may be older than who reads them now."""
        self._portions: dict[str, Portion] = {}

    def learn(self, told: Iterable[Assignment], unwatched: Iterable[Assignment]) -> None:
        """From a reply: of what was `told`, nobody reads `unwatched`."""
        self._quiet -= {one.id for one in told}
        self._quiet |= {one.id for one in unwatched} - self._woken
        self._woken -= {one.id for one in told}

    def wake(self, request_id: str) -> None:
        """Somebody reads it from now on."""
        self._quiet.discard(request_id)
        self._woken.add(request_id)

    def shape(self, report: Report) -> Report:
        """The report with what is to be told now."""
        now, passed = self._clock(), []
        for one in report.dropped:  # first: the same turn may bring pieces of a newer attempt of ours
            self._portions.pop(one.id, None)
            self._quiet.discard(one.id)
        for emission in report.emissions:
            key = emission.held.id
            if (portion := self._portions.get(key)) is not None:
                portion.emission = _joined(portion.emission, emission)
            elif key in self._quiet:
                self._portions[key] = Portion(emission, now)
            else:
                passed.append(emission)
        leaving = {one.held.id for one in report.endings} | {one.id for one in report.parked}
        due = [key for key, portion in self._portions.items() if key in leaving or self._is_due(key, portion, now)]
        told = [self._portions.pop(key).emission for key in due]
        self._quiet -= leaving
        self._woken -= leaving
        return replace(report, emissions=told + passed)

    def _is_due(self, key: str, portion: Portion, now: float) -> bool:
        is_full = len(portion.emission.piece.ids) >= MOST_TOKENS or now - portion.since >= MOST_S
        return is_full or key not in self._quiet


def _joined(first: Emission, second: Emission) -> Emission:
    one, other = first.piece, second.piece
    piece = structs.replace(
        one, ids=one.ids + other.ids, text=one.text + other.text, logprobs=one.logprobs + other.logprobs
    )
    return replace(first, piece=piece)
