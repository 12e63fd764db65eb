"""Slots: which places in the KV storage are free."""

import heapq


class Slots:
    """Hands out the lowest free slot, so that those in use stay close together."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """The lowest free slot."""
        assert self._free, "add() without a free slot"
        return heapq.heappop(self._free)

    def give(self, slot: int) -> None:
        """The slot may be used again."""
        assert slot not in self._free, "slot given back twice"
        heapq.heappush(self._free, slot)
