"""Sequence: one request's tokens, and how far it has come."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from shared.wire import Outcome, Sampling, Usage
from worker.engines.continuous.text import TextStream


@dataclass(slots=True, eq=False)
class Sequence:
    """A request that holds a slot."""

    id: str
    lane: str
    slot: int
    prompt_ids: list[int]
    sampling: Sampling
    limit: int
    """Tokens to produce at most."""
    end_ids: Collection[int]
    """Tokens that end it: those of the model, or none if the request ignores them."""
    stream: TextStream
    output_ids: list[int] = field(default_factory=list)
    """Tokens produced, by earlier attempts too."""
    cached: int = 0
    """Tokens whose keys and values are in the slot."""
    reason: Literal["stop", "length"] | None = None
    """Why it is over; None while it is not."""

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def pending(self) -> int:
        """Tokens that the model has not seen. One: it decodes. More: it prefills."""
        return self.length - self.cached

    def tokens(self, start: int, count: int) -> list[int]:
        """Tokens of prompt and output together, from `start` on."""
        past_prompt = start - len(self.prompt_ids)
        if past_prompt >= 0:
            return self.output_ids[past_prompt : past_prompt + count]
        head = self.prompt_ids[start : start + count]
        return head + self.output_ids[: count - len(head)]

    def replay(self, prior_ids: Iterable[int]) -> None:
        """Take what earlier attempts produced and reported; `reason` is set if that was all of it."""
        if self.limit == 0:
            self.reason = "length"
        for token in prior_ids:
            if self.reason is not None:
                break
            self.take(token)

    def take(self, token: int) -> str:
        """Append a produced token; returns the text that it released, and sets `reason` if it was the last."""
        self.output_ids.append(token)
        is_end = token in self.end_ids
        text = "" if is_end else self.stream.feed(token)
        if is_end or self.stream.is_stopped:
            self.reason = "stop"
        elif len(self.output_ids) >= self.limit:
            self.reason = "length"
        if self.reason is not None:
            text += self.stream.flush()
            if self.stream.is_stopped:
                self.reason = "stop"
        return text

    def outcome(self) -> Outcome:
        """How it ended."""
        assert self.reason is not None, "the outcome of a sequence that still runs"
        usage = Usage(prompt_tokens=len(self.prompt_ids), completion_tokens=len(self.output_ids))
        return Outcome(state="done", reason=self.reason, usage=usage)
