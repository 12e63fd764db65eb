"""EmbeddingEngine: each step runs the inputs of many requests, those of like length together."""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from shared.errors import InvalidRequest
from shared.lanes import Lane
from shared.sections import WorkerSettings
from shared.wire import MAX_CHARS_PER_TOKEN, GenerateRequest, Outcome, Usage
from worker.engine import Ended, Event, Work
from worker.engines.embedding.batches import Input, Shares, buckets
from worker.engines.embedding.model import Encoder
from worker.engines.limits import TOO_LONG, refusal, refuse_other_kind
from worker.engines.weights import ensure


@dataclass(slots=True)
class _Job:
    """One request, as far as it has come."""

    lane: str
    tokens: int
    dimensions: int
    missing: int
    """Inputs that have no vector yet."""
    vectors: list[bytes] = field(default_factory=list)

    def outcome(self) -> Outcome:
        usage = Usage(prompt_tokens=self.tokens, completion_tokens=0)
        return Outcome(state="done", reason="stop", usage=usage, embeddings=b"".join(self.vectors))


class EmbeddingEngine:
    """Tokenise, share out, encode, report. It tells nothing before the end, so a resumed request begins anew."""

    is_ready = True

    def __init__(
        self, name: str, encoder: Encoder, lanes: Mapping[str, Lane], *, slots: int, batch_tokens: int
    ) -> None:
        self.model = name
        self.slots = slots
        self.spent: Counter[str] = Counter()
        self.max_model_len = encoder.max_tokens
        self._encoder = encoder
        self._shares = Shares({lane: settings.weight for lane, settings in lanes.items()}, tokens=batch_tokens)
        self._jobs: dict[str, _Job] = {}
        self._waiting: dict[str, deque[Input]] = {}
        self._refused: dict[str, Outcome] = {}

    @classmethod
    def load(cls, settings: WorkerSettings, lanes: Mapping[str, Lane], cache_dir: Path) -> "EmbeddingEngine":
        """The engine for the configured model, warm; ConfigError if it cannot be had or cannot run here."""
        encoder = Encoder.load(ensure(settings.model, cache_dir), settings)
        return cls(settings.model_name, encoder, lanes, slots=settings.slots, batch_tokens=settings.embed_batch_tokens)

    @property
    def free_slots(self) -> int:
        return self.slots - len(self._jobs) - len(self._refused)

    def add(self, work: Work) -> None:
        assert work.id not in self._jobs, "the id is held already"
        assert work.id not in self._refused, "the id is held already"
        assert self.free_slots > 0, "add() without a free slot"
        try:
            dimensions = self._dimensions(work.request)
            inputs = self._tokens(work.request)
        except InvalidRequest as error:
            self._refused[work.id] = refusal(error)
            return
        self._jobs[work.id] = _Job(
            lane=work.lane,
            tokens=sum(map(len, inputs)),
            dimensions=dimensions,
            missing=len(inputs),
            vectors=[b""] * len(inputs),
        )
        queue = self._waiting.setdefault(work.lane, deque())
        queue.extend(Input(work.id, number, ids) for number, ids in enumerate(inputs))

    def cancel(self, request_id: str) -> None:
        self._refused.pop(request_id, None)
        if job := self._jobs.pop(request_id, None):
            queue = self._waiting[job.lane]
            self._waiting[job.lane] = deque(one for one in queue if one.request_id != request_id)

    def step(self) -> Sequence[Event]:
        events: list[Event] = [Ended(request_id, outcome) for request_id, outcome in self._refused.items()]
        self._refused.clear()
        for group in buckets(self._shares.take(self._waiting), self._encoder.forward_tokens):
            vectors = self._encoder.encode([one.ids for one in group])
            for one, vector in zip(group, vectors, strict=True):
                events.extend(self._settle(one, vector))
        return events

    def close(self) -> None:
        self._jobs.clear()
        self._refused.clear()
        self._waiting.clear()
        self._encoder.close()

    def _settle(self, one: Input, vector: np.ndarray) -> list[Event]:
        job = self._jobs[one.request_id]
        self.spent[job.lane] += len(one.ids)
        vector = vector[: job.dimensions]
        if self._encoder.is_normalised:
            vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
        job.vectors[one.number] = vector.astype("<f4").tobytes()
        job.missing -= 1
        if job.missing:
            return []
        del self._jobs[one.request_id]
        return [Ended(one.request_id, job.outcome())]

    def _dimensions(self, request: GenerateRequest) -> int:
        most = self._encoder.dimensions
        if request.dimensions is None:
            return most
        if not 1 <= request.dimensions <= most:
            problem = f"This model's embeddings have {most} dimensions; {request.dimensions} cannot be had."
            raise InvalidRequest(problem, param="dimensions")
        return request.dimensions

    def _tokens(self, request: GenerateRequest) -> list[Sequence[int]]:
        """The ids of each input. Those given as ids are taken as they are, without special tokens of our own."""
        refuse_other_kind(request, embeds=True)
        inputs = request.inputs or ()
        if not inputs:
            raise InvalidRequest("There is no input.", param="input")
        for number, one in enumerate(inputs, request.first_input):
            self._refuse_unread(number, one)
        texts = iter(self._encoder.tokens([one for one in inputs if isinstance(one, str)]))
        found: list[Sequence[int]] = [next(texts) if isinstance(one, str) else one for one in inputs]
        for number, ids in enumerate(found, request.first_input):
            if len(ids) > self.max_model_len:
                raise self._too_long(number, f"{len(ids)} tokens")
        return found

    def _refuse_unread(self, number: int, one: str | tuple[int, ...]) -> None:
        """InvalidRequest for what needs no tokenizer to be found wrong."""
        if not one:
            raise InvalidRequest(f"Input {number} is empty.", param="input")
        if isinstance(one, str):
            if len(one) > MAX_CHARS_PER_TOKEN * self.max_model_len:
                raise self._too_long(number, f"{len(one)} characters")
        elif any(not 0 <= token < self._encoder.vocab_size for token in one):
            last = self._encoder.vocab_size - 1
            raise InvalidRequest(f"A token id of input {number} is outside of 0 to {last}.", param="input")

    def _too_long(self, number: int, size: str) -> InvalidRequest:
        context = f"This model's maximum context length is {self.max_model_len} tokens."
        return InvalidRequest(f"{context} However, input {number} has {size}.", param="input", code=TOO_LONG)
