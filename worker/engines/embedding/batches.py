"""Batches: which inputs the next step runs, and which of them together. Pure policy."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Input:
    """One text of a request."""

    request_id: str
    number: int
    """Its place among the request's inputs."""
    ids: Sequence[int]


class Shares:
    """Weighted sharing of steps: lanes that have inputs get tokens in the ratio of their weights.

    Stride scheduling (Waldspurger and Weihl, 1995): a lane's pass grows by tokens over weight with what it
    takes, and the lane with the least pass is next. A lane saves nothing up while it is empty.
    """

    def __init__(self, weights: Mapping[str, int], *, tokens: int) -> None:
        """`tokens` is the most that one step may run; a single input may have more."""
        self._weights = dict(weights)
        self._tokens = tokens
        self._passes: dict[str, float] = {}

    def take(self, waiting: Mapping[str, deque[Input]]) -> list[Input]:
        """The inputs of the next step, removed from `waiting`, those of a lane in order of arrival."""
        lanes = [lane for lane, inputs in waiting.items() if inputs]
        least = min((self._passes[lane] for lane in lanes if lane in self._passes), default=0.0)
        self._passes = {lane: self._passes.get(lane, least) - least for lane in lanes}
        taken: list[Input] = []
        left = self._tokens
        while lanes := [lane for lane in lanes if waiting[lane]]:
            lane = min(lanes, key=lambda name: (self._passes[name], -self._weight(name)))
            size = len(waiting[lane][0].ids)
            if taken and size > left:
                break
            taken.append(waiting[lane].popleft())
            left -= size
            self._passes[lane] += size / self._weight(lane)
        return taken

    def _weight(self, lane: str) -> int:
        """A lane that the settings do not know weighs as little as any."""
        return self._weights.get(lane, 1)


def buckets(inputs: Sequence[Input], forward_tokens: int) -> list[list[Input]]:
    """The inputs in groups to run together: alike in length, so that little is padding.

    An input joins the longer ones before it unless the group would then have more padding than
    `forward_tokens`: the tokens that could be run in the time that one more forward takes by itself.
    """
    groups: list[list[Input]] = []
    longest = padding = 0
    for one in sorted(inputs, key=lambda one: -len(one.ids)):
        padding += longest - len(one.ids)
        if groups and padding <= forward_tokens:
            groups[-1].append(one)
        else:
            groups.append([one])
            longest, padding = len(one.ids), 0
    return groups
