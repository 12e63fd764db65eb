"""Sequence: one request's tokens, and how far it has come."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal

from shared.wire import Outcome, Prompt, Sampling, TokenLogprob, Usage
from worker.engines.continuous.guide import Guide
from worker.engines.continuous.rows import Row, Tally
from worker.engines.continuous.text import TextStream


@dataclass(slots=True)
class Telling:
    """A prompt that is told back."""

    text: str
    top: int | None
    """So many of the likeliest tokens are told in each place; None: no log-probabilities."""
    tokens: list[TokenLogprob] = field(default_factory=list)

    def prompt(self) -> Prompt:
        return Prompt(text=self.text, tokens=tuple(self.tokens))


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
    """Tokens that end it: its own, and those of the model if it does not ignore them."""
    stream: TextStream
    tally: Tally | None = None
    guide: Guide | None = None
    telling: Telling | None = None
    """The prompt, until it has been told."""
    output_ids: list[int] = field(default_factory=list)
    """Tokens produced, by earlier attempts too."""
    cached: int = 0
    """Tokens whose keys and values are in the slot."""
    reused: int = 0
    """Of the prompt's tokens: those that were cached before it ran."""
    reason: Literal["stop", "length"] | None = None
    """Why it is over; None while it is not."""

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def pending(self) -> int:
        """Tokens that the model has not seen. One: it decodes. More: it prefills."""
        return self.length - self.cached

    @property
    def reads_prompt(self) -> bool:
        """Log-probabilities of prompt tokens are still to be had, so all logits are wanted."""
        return self.telling is not None and self.telling.top is not None and self.cached < len(self.prompt_ids)

    def tokens(self, start: int, count: int) -> list[int]:
        """Tokens of prompt and output together, from `start` on."""
        past_prompt = start - len(self.prompt_ids)
        if past_prompt >= 0:
            return self.output_ids[past_prompt : past_prompt + count]
        head = self.prompt_ids[start : start + count]
        return head + self.output_ids[: count - len(head)]

    def row(self) -> Row:
        """What the sampler must know for the next token."""
        position, allowed = len(self.output_ids), None if self.guide is None else self.guide.allowed()
        muted = tuple(self.end_ids) if position < self.sampling.min_tokens else ()
        return Row(self.sampling, position, self.tally, muted, allowed)

    def replay(self, prior_ids: Iterable[int]) -> None:
        """Take what earlier attempts produced and reported; `reason` is set if that was all of it."""
        if self.limit == 0 and not self.reads_prompt:
            self.reason = "length"
        for token in prior_ids:
            if self.reason is not None:
                break
            self.take(token)
            self.telling = None

    def take(self, token: int) -> str:
        """Append a produced token; returns the text that it released, and sets `reason` if it was the last."""
        self.output_ids.append(token)
        if self.tally is not None:
            self.tally.add(token)
        is_end = token in self.end_ids
        if self.guide is not None and not is_end:
            self.guide.take(token)
        # A stop string counts only in what comes after the least number of tokens.
        is_matched = len(self.output_ids) > self.sampling.min_tokens
        text = "" if is_end else self.stream.feed(token, is_matched=is_matched)
        if is_end or self.stream.is_stopped or (self.guide is not None and self.guide.is_over):
            self.reason = "stop"
        elif len(self.output_ids) >= self.limit:
            self.reason = "length"
        if self.reason is not None:
            text += self.stream.flush()
            if self.stream.is_stopped:
                self.reason = "stop"
        return text

    def tell_prompt(self) -> Prompt | None:
        """The prompt, once."""
        told, self.telling = self.telling, None
        return None if told is None else told.prompt()

    def outcome(self) -> Outcome:
        """How it ended."""
        assert self.reason is not None, "the outcome of a sequence that still runs"
        usage = Usage(
            prompt_tokens=len(self.prompt_ids), completion_tokens=len(self.output_ids), cached_tokens=self.reused
        )
        return Outcome(state="done", reason=self.reason, usage=usage, prompt=self.tell_prompt())
