"""The composer: which tokens of which requests the next step runs. Pure policy: no tensor, no clock."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shared.lanes import Lane
from worker.pace import Pace

MOST_STRETCH = 1.8
"""Prompts make a step at most so many times as long as its decodes alone."""
QUANTUM = 16
"""The oldest prompt advances by so many tokens a step at least, whatever else is in it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that holds a slot and has something to run."""

    key: str
    lane: str
    pending: int
    """Tokens that the model has not seen. One: it decodes. More: it prefills."""


@dataclass(slots=True)
class _Step:
    """A step in the making."""

    counts: dict[str, int] = field(default_factory=dict)
    decodes: int = 0
    prefill: int = 0

    def take(self, one: Candidate, count: int) -> None:
        self.counts[one.key] = self.counts.get(one.key, 0) + count
        if one.pending == 1:
            self.decodes += 1
        else:
            self.prefill += count


class Composer:
    """Fills each step up to a time that its readers can bear.

    The bound is the least `itl_target_ms` of the lanes that are not preemptible. It holds for steps of bulk
    alone too, since whoever arrives has to wait for the running step. In this order come:

    1. decodes of lanes that are not preemptible: their readers wait for them, so they are never paused;
    2. what preemptible lanes are owed: their share, by weight, of the tokens of the steps that left them out;
    3. prefill of lanes that are not preemptible: the oldest prompt always advances by a quantum, then the short
       ones go first, so that a long one holds nobody up. While there is any, the step ends here: nothing
       stretches a first token but what is owed;
    4. of preemptible lanes what still fits, by weight between them and in turn within each.

    Who is left out is paused in its place. A step is predicted to take longer than the bound only because
    of 1, 2 and one quantum.
    """

    def __init__(self, lanes: Mapping[str, Lane], *, prefill_tokens: int) -> None:
        """`prefill_tokens` bounds the prefill of one step, whatever the time allows."""
        self.pace = Pace()
        self._lanes = dict(lanes)
        self._prefill_tokens = prefill_tokens
        self._patient = frozenset(name for name, lane in self._lanes.items() if lane.preemptible)
        watched = [lane.itl_target_ms for name, lane in self._lanes.items() if name not in self._patient]
        self.budget_ms = min(watched or [lane.itl_target_ms for lane in self._lanes.values()])
        """The time that a step may take."""
        self._owed = dict.fromkeys(self._patient, 0.0)
        self._virtual = dict.fromkeys(self._patient, 0.0)  # tokens over weight, of what was left over
        self._last_run: dict[str, int] = {}
        self._number = 0

    def compose(self, candidates: Sequence[Candidate]) -> dict[str, int]:
        """How many tokens of each candidate to run, those left out missing.

        The candidates come in order of arrival. If there are any, at least one of them runs.
        """
        self._number += 1
        step = _Step()
        watched = [one for one in candidates if one.lane not in self._patient]
        for one in watched:
            if one.pending == 1:
                step.take(one, 1)
        queues = self._in_turn(one for one in candidates if one.lane in self._patient)
        self._pay_debts(step, queues)
        if prompts := [one for one in watched if one.pending > 1]:
            self._prefill(step, prompts)
        else:
            self._fill(step, queues)
        self._account(step, candidates)
        held = {one.key for one in candidates}
        self._last_run = {key: number for key, number in self._last_run.items() if key in held}
        self._last_run.update(dict.fromkeys(step.counts, self._number))
        return step.counts

    def _in_turn(self, patient: Iterable[Candidate]) -> dict[str, list[Candidate]]:
        """By lane; in each, who has not run for the longest time first."""
        queues: dict[str, list[Candidate]] = {}
        for one in patient:
            queues.setdefault(one.lane, []).append(one)
        for waiting in queues.values():
            waiting.sort(key=lambda one: self._last_run.get(one.key, 0))
        return queues

    def _pay_debts(self, step: _Step, queues: Mapping[str, list[Candidate]]) -> None:
        for lane, waiting in queues.items():
            owed = int(self._owed[lane])
            while waiting and owed > 0:
                one = waiting[0]
                count = min(one.pending, owed, max(1, self._prefill_tokens - step.prefill))
                if count < min(one.pending, QUANTUM):
                    break  # a sliver of a prompt is not worth its place: what is owed adds up
                step.take(waiting.pop(0), count)
                owed -= count

    def _prefill(self, step: _Step, prompts: Sequence[Candidate]) -> None:
        left = max(self._room(step), self._quantum())
        grants = {prompts[0].key: min(prompts[0].pending, self._quantum())}
        left -= grants[prompts[0].key]
        for one in sorted(prompts, key=lambda one: one.pending - grants.get(one.key, 0)):
            granted = grants.get(one.key, 0)
            more = min(left, one.pending - granted)
            grants[one.key] = granted + more
            left -= more
        for one in prompts:
            if grants[one.key] > 0:
                step.take(one, grants[one.key])

    def _fill(self, step: _Step, queues: Mapping[str, list[Candidate]]) -> None:
        left = {lane: waiting for lane, waiting in queues.items() if waiting}
        floor = min((self._virtual[lane] for lane in left), default=0.0)
        for lane in self._virtual:
            # A lane that has nothing to run saves nothing up, and one that comes back starts level.
            self._virtual[lane] = max(self._virtual[lane] - floor, 0.0) if lane in left else 0.0
        while left:
            lane = min(left, key=lambda name: self._virtual[name])
            one = left[lane].pop(0)
            if not left[lane]:
                del left[lane]
            if count := self._fitting(step, one):
                step.take(one, count)
                self._virtual[lane] += count / self._lanes[lane].weight

    def _fitting(self, step: _Step, one: Candidate) -> int:
        """Tokens of a preemptible request that still fit; a sliver of a prompt is not worth its place."""
        if one.pending == 1:
            fits = not self.pace.is_known or self.pace.predict_ms(step.decodes + 1, step.prefill) <= self.budget_ms
            return int(fits or not step.counts)
        if not step.counts:
            return min(one.pending, max(self._room(step), self._quantum()))
        count = min(one.pending, self._room(step))
        return count if count >= min(one.pending, QUANTUM) else 0

    def _room(self, step: _Step) -> int:
        """Prefill tokens that still fit into the step."""
        left = self._prefill_tokens - step.prefill
        cost_ms = self.pace.costs_ms[2]
        if self.pace.is_known and cost_ms > 0:
            most_ms = self.budget_ms
            if step.decodes:
                most_ms = min(most_ms, MOST_STRETCH * self.pace.predict_ms(step.decodes, 0))
            spare_ms = most_ms - self.pace.predict_ms(step.decodes, step.prefill)
            left = min(left, int(spare_ms / cost_ms))
        return max(left, 0)

    def _quantum(self) -> int:
        """The least that the oldest prompt advances: where steps are dear, what costs half as much as an empty one."""
        base_ms, _, cost_ms = self.pace.costs_ms
        worth = int(base_ms / 2 / cost_ms) if self.pace.is_known and cost_ms > 0 else 0
        return min(max(QUANTUM, worth), self._prefill_tokens)

    def _account(self, step: _Step, candidates: Iterable[Candidate]) -> None:
        """A preemptible lane is owed its share of the step, less what it got, and never more than it can use."""
        got: Counter[str] = Counter()
        wanted: Counter[str] = Counter()
        for one in candidates:
            got[one.lane] += step.counts.get(one.key, 0)
            wanted[one.lane] += one.pending
        weights = sum(self._lanes[lane].weight for lane in wanted)
        for lane in self._owed:
            share = got.total() * self._lanes[lane].weight / weights if lane in wanted else 0.0
            self._owed[lane] = max(0.0, min(self._owed[lane] + share - got[lane], wanted[lane]))
