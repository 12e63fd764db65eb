"""Scheduler: which tokens of which sequences the next step runs. Pure policy."""

from collections.abc import Iterable
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
    def is_last(self) -> bool:
        """After it the model has seen every token, so the next one can be chosen."""
        return self.end == self.sequence.length


def plan(arrived: Iterable[Sequence], prefill_tokens: int) -> list[Chunk]:
    """Every decode, by slot; then prefill in order of arrival, `prefill_tokens` at most in all.

    A decode costs the same whether it waits or not, and its reader waits for it; a prompt is cut so
    that a long one never holds up the others' next token for longer than the bound allows.
    """
    decodes, prefills, left = [], [], prefill_tokens
    for sequence in arrived:
        pending = sequence.pending
        if pending == 1:
            decodes.append(Chunk(sequence, sequence.cached, 1))
        elif left > 0:
            count = min(pending, left)
            left -= count
            prefills.append(Chunk(sequence, sequence.cached, count))
    decodes.sort(key=lambda chunk: chunk.sequence.slot)
    return decodes + prefills
