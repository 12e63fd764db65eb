"""The table of requests that this worker holds: what runs, how far it is, and what shall happen to it."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec import structs

from shared.lease import Assignment, Emission, Ending
from shared.wire import ErrorInfo, Outcome, Piece
from worker.engine import Ended, Event, Returned, Work

UNREADABLE = Outcome(
    state="failed",
    error=ErrorInfo(
        code="internal_error", message="No worker here can read this request: it comes from a newer version."
    ),
)

Release = Outcome | Literal["lost", "park"]
"""Why the engine shall let go: an outcome to report, or nothing (lost), or to hand it over (park)."""


@dataclass(slots=True)
class Held:
    """One request, as one attempt."""

    assignment: Assignment
    tokens: int
    """Tokens so far, those of earlier attempts included."""
    deadline: float
    """On the monotonic clock."""

    @property
    def key(self) -> str:
        """The engine's id for it. It names the attempt, so two attempts of one request never mix."""
        return _key(self.assignment)

    def ending(self, outcome: Outcome) -> Ending:
        """Its end, with what only we know added to the outcome."""
        told = structs.replace(outcome, queued_ms=self.assignment.queued_ms)
        return Ending(self.assignment, self.tokens, told)


@dataclass(slots=True)
class Orders:
    """What the engine shall do before its next step."""

    add: list[Work] = field(default_factory=list)
    release: dict[str, Release] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    """What one turn has to tell the broker, in this order: pieces, endings, hand-overs."""

    emissions: list[Emission] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    parked: list[Assignment] = field(default_factory=list)
    dropped: list[Assignment] = field(default_factory=list)
    """Those that are no longer ours, of which nothing is to be told."""


class Table:
    """Owned by the event loop. The engine's slots in use are always among what it holds."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._orders = Orders()
        self._leaving: set[str] = set()  # of those held: the engine lets go of them before it takes anything new
        self._suspect: Work | None = None  # held, and not added before everything else is gone
        self._suspect_begun = False
        self._returned: list[Assignment] = []
        self.tokens = 0
        """Tokens produced here, in all."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def has_suspect(self) -> bool:
        """Among what it holds is a request that must run alone."""
        return self._suspect is not None and self._suspect.id in self._held

    @property
    def suspect_due(self) -> Assignment | None:
        """The suspect, if it is all that is held now and has not begun."""
        if self._suspect is None or self._suspect_begun or set(self._held) != {self._suspect.id}:
            return None
        return self._held[self._suspect.id].assignment

    def begin_suspect(self) -> None:
        """Have it added: the broker knows that it runs from now on."""
        assert self._suspect is not None, "there is no suspect"
        self._suspect_begun = True
        self._orders.add.append(self._suspect)

    @property
    def has_orders(self) -> bool:
        return bool(self._orders.add or self._orders.release or self._returned)

    def holds(self, assignment: Assignment) -> bool:
        """It is still ours, as this attempt."""
        return _key(assignment) in self._held

    def used(self) -> Counter[str]:
        """Slots in use by lane, those not counted that are about to be free."""
        return Counter(held.assignment.lane for key, held in self._held.items() if key not in self._leaving)

    def least_advanced(self, count: int, most: Mapping[str, int]) -> list[Assignment]:
        """`count` requests, of each lane so many at most, that lose least if they have to be read again elsewhere."""
        held = [one for one in self._held.values() if one.key not in self._leaving]
        held.reverse()  # of equals, who came last goes first
        left, found = dict(most), []
        for one in sorted(held, key=lambda one: one.tokens):
            lane = one.assignment.lane
            if len(found) < count and left.get(lane, 0) > 0:
                left[lane] -= 1
                found.append(one.assignment)
        return found

    def assignments(self) -> list[Assignment]:
        return [held.assignment for held in self._held.values()]

    def take(self, assignment: Assignment, *, alone: bool = False) -> None:
        """Hold it, and have it added to the engine. An older attempt of ours at the same request is lost.

        One that must run alone waits until it is all that is held; there may be one of them at a time.
        """
        self.release([one for one in self.assignments() if one.id == assignment.id], "lost")
        deadline = time.monotonic() + assignment.deadline_ms / 1000
        held = Held(assignment, tokens=assignment.position, deadline=deadline)
        self._held[held.key] = held
        if assignment.request is None:
            self._order_release(held.key, UNREADABLE)
        else:
            work = Work(held.key, assignment.request, assignment.prior_ids, assignment.lane)
            if alone:
                assert not self.has_suspect, "one suspect at a time"
                self._suspect, self._suspect_begun = work, False
            else:
                self._orders.add.append(work)

    def hand_back(self, assignment: Assignment) -> None:
        """To its lane at once: it is not for us to run now."""
        self._returned.append(assignment)

    def release(self, assignments: Iterable[Assignment], how: Release) -> None:
        """Have the engine let go of them. The first reason stands, except that 'lost' overrules any."""
        for assignment in assignments:
            key = _key(assignment)
            if key in self._held and (how == "lost" or key not in self._orders.release):
                self._order_release(key, how)

    def _order_release(self, key: str, how: Release) -> None:
        self._orders.release[key] = how
        self._leaving.add(key)

    def late(self, now: float) -> list[Assignment]:
        """What is past its deadline."""
        return [held.assignment for held in self._held.values() if now >= held.deadline]

    def put_back(self, works: Iterable[Work]) -> None:
        """What the engine did not come round to is added in its next turn."""
        self._orders.add[:0] = works

    def take_orders(self) -> Orders:
        """The orders for the next turn. What is released before it was ever added is not added."""
        orders, self._orders = self._orders, Orders()
        orders.add = [work for work in orders.add if work.id not in orders.release]
        return orders

    def settle(self, events: Sequence[Event], orders: Orders) -> Report:
        """Account for a turn: move positions on, forget what ended, and say what the broker must hear."""
        report = Report()
        report.parked, self._returned = self._returned, []
        for key, how in orders.release.items():
            self._leaving.discard(key)
            held = self._held.pop(key, None)
            if held is None:
                continue
            if how == "park":
                report.parked.append(held.assignment)
            elif how == "lost":
                report.dropped.append(held.assignment)
            else:
                report.endings.append(held.ending(how))
        for event in events:
            held = self._held.get(event.id)
            if held is None:
                continue
            if isinstance(event, Ended):
                del self._held[event.id]
                report.endings.append(held.ending(event.outcome))
            elif isinstance(event, Returned):
                del self._held[event.id]
                report.parked.append(held.assignment)
            elif event.ids:
                piece = Piece(ids=event.ids, text=event.text, logprobs=event.logprobs, prompt=event.prompt)
                report.emissions.append(Emission(held.assignment, held.tokens, piece))
                held.tokens += len(event.ids)
                self.tokens += len(event.ids)
        return report


def _key(assignment: Assignment) -> str:
    return f"{assignment.id}#{assignment.attempt}"
