"""How a worker's slots are shared between lanes. Pure: numbers in, numbers out."""

from collections.abc import Collection, Mapping

from shared.lanes import Lane
from shared.lease import Room

TOKENS_GUESSED = 256
"""Of a request, before it has run."""


class Quotas:
    """Weighted sharing by deficit: over time, lanes that have work get tokens in the ratio of their weights.

    While several lanes wait for slots, each is credited with its share of the tokens that they are given and
    charged with those that it got; who has most credit gets the next slot. What others left over is free of charge,
    and a lane saves nothing up while it is empty or at its bound. A lane whose oldest request has waited for longer
    than `starvation_s` is served next.
    """

    def __init__(self, lanes: Mapping[str, Lane], *, slots: int) -> None:
        self._lanes = dict(lanes)
        self._slots = slots
        self._credit = dict.fromkeys(self._lanes, 0.0)
        self._spent: dict[str, int] = {}
        self._sharing: frozenset[str] = frozenset()

    def charge(self, spent: Mapping[str, int]) -> None:
        """Account for the tokens that the engine has spent on each lane, counted from its start."""
        used = {name: spent.get(name, 0) - self._spent.get(name, 0) for name in self._sharing}
        self._spent = dict(spent)
        weights = sum(self._lanes[name].weight for name in self._sharing)
        most = float(self._slots * TOKENS_GUESSED)
        for name, tokens in used.items():
            share = sum(used.values()) * self._lanes[name].weight / weights
            self._credit[name] = max(-most, min(most, self._credit[name] + share - tokens))

    def rooms(self, used: Mapping[str, int], starving: Collection[str] = ()) -> list[Room]:
        """What to take from each lane now, given the slots that each lane uses. No room at all: an empty list."""
        free = self._slots - sum(used.values())
        caps = {name: self._cap(name, used, free) for name in self._lanes}
        with_room = [name for name in self._lanes if caps[name] > 0]
        if not with_room:
            return []
        weights = sum(self._lanes[name].weight for name in with_room)
        due = {name: free * self._lanes[name].weight / weights for name in with_room}
        quota = {name: int(name in starving and caps[name] > 0) for name in self._lanes}
        for _ in range(free - sum(quota.values())):
            open_lanes = [name for name in with_room if quota[name] < caps[name]]
            if not open_lanes:
                break
            # In requests: what its weight makes due, and what it is owed from before.
            quota[max(open_lanes, key=lambda name: due[name] + self._credit[name] / TOKENS_GUESSED - quota[name])] += 1
        # fetch.lua serves quotas in this order until no slot is left: who starves comes first.
        order = sorted(self._lanes, key=lambda name: name not in starving)
        return [Room(name, quota[name], caps[name]) for name in order]

    def reclaim(self, used: Mapping[str, int], waiting: Mapping[str, int]) -> tuple[list[Room], dict[str, int]]:
        """What to take for lanes that are shut out, into slots that preemptible lanes must give back for it; and how
        many each of those can spare. Nothing to take: an empty list.

        A preemptible lane keeps the slots that its weight makes due, one at least, and all of them while it has had
        less than its share.
        """
        weights = sum(lane.weight for lane in self._lanes.values())
        spare = {
            name: max(0, used.get(name, 0) - max(1, self._slots * lane.weight // weights))
            for name, lane in self._lanes.items()
            if lane.preemptible and self._credit[name] <= 0
        }
        free, most, rooms = self._slots - sum(used.values()), sum(spare.values()), []
        for name, lane in self._lanes.items():
            is_shut_out = not lane.preemptible and self._cap(name, used, free) == 0
            wanted = min(most, waiting.get(name, 0), self._most(name) - used.get(name, 0)) if is_shut_out else 0
            rooms.append(Room(name, max(0, wanted), max(0, wanted)))
        rooms.sort(key=lambda room: -self._credit[room.lane])
        return (rooms if any(room.cap for room in rooms) else []), spare

    def settle(self, used: Mapping[str, int], waiting: Mapping[str, int]) -> None:
        """Note who still waits after a fetch, and is not kept back by its own bound: they share from now on."""
        sharing = set()
        for name, lane in self._lanes.items():
            is_bound = lane.max_batch is not None and used.get(name, 0) >= lane.max_batch
            if waiting.get(name, 0) > 0 and not is_bound:
                sharing.add(name)
            else:
                self._credit[name] = 0.0
        self._sharing = frozenset(sharing)

    def _cap(self, name: str, used: Mapping[str, int], free: int) -> int:
        kept_for_others = sum(
            max(0, other.reserve_slots - used.get(other_name, 0))
            for other_name, other in self._lanes.items()
            if other_name != name
        )
        # However much is reserved, one slot of the worker is anybody's: a lane that no worker serves never moves.
        kept_for_others = min(kept_for_others, self._slots - 1)
        return max(0, min(free - kept_for_others, self._most(name) - used.get(name, 0)))

    def _most(self, name: str) -> int:
        """Slots that the lane may hold."""
        max_batch = self._lanes[name].max_batch
        return self._slots if max_batch is None else max_batch
