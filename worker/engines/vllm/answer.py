"""Answer: one request's tokens, their text, and why it is over. Without vLLM."""

from collections.abc import Collection

from shared.wire import Outcome, Prompt, Usage
from worker.engine import Work
from worker.engines.continuous.text import Codec, TextStream


class Answer:
    """Holds what earlier attempts produced from the start."""

    def __init__(self, work: Work, codec: Codec, prompt_ids: list[int], limit: int, end_ids: Collection[int]) -> None:
        sampling = work.request.sampling
        self.prompt_ids = prompt_ids
        self.limit = limit
        self.produced: list[int] = []
        self.reason: str | None = "length" if limit == 0 else None
        self._stream = TextStream(codec, sampling.stop)
        self._ends = set(sampling.stop_token_ids) | set(() if sampling.ignore_eos else end_ids)
        self._min_tokens = sampling.min_tokens
        for token in work.prior_ids:
            if self.reason is None:
                self.take(token)

    def take(self, token: int) -> str:
        """The next token; returns the text that it released, and sets `reason` if it was the last."""
        self.produced.append(token)
        is_end = token in self._ends and len(self.produced) > self._min_tokens
        text = "" if is_end else self._stream.feed(token)
        if is_end or self._stream.is_stopped:
            self.reason = "stop"
        elif len(self.produced) >= self.limit:
            self.reason = "length"
        if self.reason is not None:
            text += self._stream.flush()
            self.reason = "stop" if self._stream.is_stopped else self.reason
        return text

    def outcome(self, prompt: Prompt | None, cached: int) -> Outcome:
        usage = Usage(
            prompt_tokens=len(self.prompt_ids),
            completion_tokens=len(self.produced),
            cached_tokens=min(cached, len(self.prompt_ids)),
        )
        return Outcome(state="done", reason="length" if self.reason == "length" else "stop", usage=usage, prompt=prompt)
