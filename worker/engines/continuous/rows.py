"""Rows: what the sampler must know of each request, and what it chose."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from shared.wire import GenerateRequest, Sampling


class Tally:
    """How often an answer has each of its tokens; with 0, those of its prompt that it has not."""

    def __init__(self, prompt_ids: Iterable[int]) -> None:
        self.ids: list[int] = list(dict.fromkeys(prompt_ids))
        self.counts: list[int] = [0] * len(self.ids)
        self._places = {token: place for place, token in enumerate(self.ids)}

    def add(self, token: int) -> None:
        """The answer has this token (once more)."""
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = len(self.ids)
            self.ids.append(token)
            self.counts.append(0)
        self.counts[place] += 1


@dataclass(frozen=True, slots=True)
class Row:
    """What the sampler must know of one request."""

    sampling: Sampling
    position: int
    """Tokens of the answer so far."""
    tally: Tally | None = None
    """Kept only for a request with penalties."""
    muted: tuple[int, ...] = ()
    """Tokens that may not come now, unless a guide allows nothing else."""
    allowed: Tensor | None = None
    """A guide's verdict on each token, as booleans; None: there is no guide."""


@dataclass(frozen=True, slots=True)
class Pick:
    """A token that was chosen, and if asked for, natural log-probabilities of what the model said."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def tally_of(request: GenerateRequest, prompt_ids: list[int]) -> Tally | None:
    """What penalties need to know; None if there are none."""
    sampling = request.sampling
    if sampling.repetition_penalty != 1:
        return Tally(prompt_ids)
    return Tally(()) if sampling.frequency_penalty or sampling.presence_penalty else None
