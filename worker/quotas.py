"""How a worker's free slots are shared between lanes. Pure: numbers in, numbers out."""

from collections.abc import Collection, Mapping

from shared.lanes import Lane
from shared.lease import Room


class Quotas:
    """Weighted sharing by deficit: over time, lanes that have work get slots in the ratio of their weights.

    A lane's credit grows by its share of the slots that it could have, and falls by what it took of its
    quota. What others left over is free of charge, and a lane saves nothing up while it is empty or at its
    bound. A lane whose oldest request has waited for longer than `starvation_s` is served next.
    """

    def __init__(self, lanes: Mapping[str, Lane], *, slots: int) -> None:
        self._lanes = dict(lanes)
        self._slots = slots
        self._credit = dict.fromkeys(self._lanes, 0.0)

    def rooms(self, used: Mapping[str, int], starving: Collection[str] = ()) -> list[Room]:
        """What to take from each lane now, given the slots that each lane uses. No room at all: an empty list."""
        free = self._slots - sum(used.values())
        caps = {name: self._cap(name, used, free) for name in self._lanes}
        with_room = [name for name in self._lanes if caps[name] > 0]
        if not with_room:
            return []
        total_weight = sum(self._lanes[name].weight for name in with_room)
        for name in with_room:
            self._credit[name] += min(caps[name], free * self._lanes[name].weight / total_weight)
        quota = {name: int(name in starving and caps[name] > 0) for name in self._lanes}
        for _ in range(free - sum(quota.values())):
            open_lanes = [name for name in with_room if quota[name] < caps[name]]
            if not open_lanes:
                break
            quota[max(open_lanes, key=lambda name: self._credit[name] - quota[name])] += 1
        # fetch.lua serves quotas in this order until no slot is left: who starves comes first.
        order = sorted(self._lanes, key=lambda name: name not in starving)
        return [Room(name, quota[name], caps[name]) for name in order]

    def settle(self, rooms: list[Room], taken: Mapping[str, int], waiting: Mapping[str, int]) -> None:
        """Account for what `rooms` led to: requests taken from each lane, and still waiting in it."""
        for room in rooms:
            if waiting.get(room.lane, 0) == 0:
                self._credit[room.lane] = 0.0
                continue
            left = self._credit[room.lane] - min(taken.get(room.lane, 0), room.quota)
            self._credit[room.lane] = max(-float(self._slots), min(float(self._slots), left))

    def _cap(self, name: str, used: Mapping[str, int], free: int) -> int:
        lane = self._lanes[name]
        kept_for_others = sum(
            max(0, other.reserve_slots - used.get(other_name, 0))
            for other_name, other in self._lanes.items()
            if other_name != name
        )
        # However much is reserved, one slot of the worker is anybody's: a lane that no worker serves never moves.
        kept_for_others = min(kept_for_others, self._slots - 1)
        most = self._slots if lane.max_batch is None else lane.max_batch
        return max(0, min(free - kept_for_others, most - used.get(name, 0)))
