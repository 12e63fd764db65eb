"""Chunks: the tokens of sequences that a step runs, in the order in which attention wants them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from worker.engines.continuous.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `count` tokens of a sequence, from position `start`."""

    sequence: Sequence
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def is_decode(self) -> bool:
        """It is one token because the sequence has no more, not because the step has no room."""
        return self.count == 1 and self.is_last

    @property
    def wanted(self) -> int:
        """Of its tokens, the last so many: their logits are needed."""
        return self.count if self.sequence.reads_prompt else int(self.is_last)

    @property
    def is_last(self) -> bool:
        """After it the model has seen every token, so the next one can be chosen."""
        return self.end == self.sequence.length


def arrange(sequences: Iterable[Sequence], counts: Mapping[str, int]) -> list[Chunk]:
    """A chunk for each sequence with a count: every decode, by slot, then the prefills."""
    chunks = [Chunk(one, one.cached, counts[one.id]) for one in sequences if one.id in counts]
    decodes = sorted((chunk for chunk in chunks if chunk.is_decode), key=lambda chunk: chunk.sequence.slot)
    return decodes + [chunk for chunk in chunks if not chunk.is_decode]
