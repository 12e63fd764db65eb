"""Prefixes: which beginnings of earlier texts are kept, block by block. The bookkeeping, without a tensor."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

BLOCK = 32
"""Tokens of a block."""
ROOT = -1

Name = tuple[int, tuple[int, ...]]
"""A block is named by the one before it and by its tokens, so that equal names are equal texts."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A block that must be filled: with the tokens from `start` on."""

    block: int
    start: int


class Prefixes:
    """A tree of blocks, of which the least recently used leaf goes when there is no room.

    Nothing is pinned: a text that begins like an earlier one gets a copy.
    """

    def __init__(self, blocks: int) -> None:
        self._free = list(range(blocks))
        # Least recently used first. A block is touched after those that follow it: so the first is always a leaf.
        self._kept: OrderedDict[Name, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def match(self, ids: Sequence[int]) -> list[int]:
        """The blocks that hold the beginning of `ids`, the longest that is known."""
        names = self._known(ids)
        blocks = [self._kept[name] for name in names]
        self._touch(names)
        return blocks

    def extend(self, ids: Sequence[int]) -> list[Stored]:
        """Keep all full blocks of `ids`, as far as there is room for them; returns those that are new."""
        names = self._known(ids)
        self._touch(names)
        parent, added, own = (self._kept[names[-1]] if names else ROOT), [], set(names)
        for start in range(len(names) * BLOCK, len(ids) - BLOCK + 1, BLOCK):
            block = self._room(keep=own)
            if block is None:
                break
            name = (parent, tuple(ids[start : start + BLOCK]))
            self._kept[name] = parent = block
            names.append(name)
            own.add(name)
            added.append(Stored(block, start))
        self._touch(names)
        return added

    def _known(self, ids: Sequence[int]) -> list[Name]:
        names: list[Name] = []
        parent = ROOT
        for start in range(0, len(ids) - BLOCK + 1, BLOCK):
            name = (parent, tuple(ids[start : start + BLOCK]))
            if name not in self._kept:
                break
            names.append(name)
            parent = self._kept[name]
        return names

    def _touch(self, names: Sequence[Name]) -> None:
        for name in reversed(names):
            self._kept.move_to_end(name)

    def _room(self, keep: set[Name]) -> int | None:
        """A free block; None if only those are left that this very text is made of."""
        if self._free:
            return self._free.pop()
        name = next(iter(self._kept), None)
        return None if name is None or name in keep else self._kept.pop(name)
