"""ContinuousEngine: every step decodes for all requests and prefills a bounded piece of the new ones."""

from collections import Counter
from collections.abc import Sequence as Series
from pathlib import Path

from shared.errors import InvalidRequest
from shared.settings import WorkerSettings
from shared.wire import Outcome
from worker.engine import Ended, Event, Progressed, Work
from worker.engines.continuous.model import Model
from worker.engines.continuous.sampler import choose
from worker.engines.continuous.scheduler import plan
from worker.engines.continuous.sequence import Sequence
from worker.engines.continuous.slots import Slots
from worker.engines.continuous.text import Codec, TextStream
from worker.engines.limits import output_limit, refusal, refuse_outsized
from worker.engines.weights import ensure


class ContinuousEngine:
    """Schedule, forward, sample, report."""

    is_ready = True

    def __init__(self, name: str, model: Model, codec: Codec, *, slots: int, prefill_chunk_tokens: int) -> None:
        self.model = name
        self.slots = slots
        self.spent: Counter[str] = Counter()
        self.max_model_len = model.max_model_len
        self._network = model
        self._codec = codec
        self._prefill_chunk_tokens = prefill_chunk_tokens
        self._end_ids = model.end_ids | codec.end_ids
        self._slots = Slots(slots)
        self._running: dict[str, Sequence] = {}
        # Over before their first step, refused or found complete; they hold a slot until it is reported.
        self._settled: dict[str, tuple[int, Outcome]] = {}

    @classmethod
    def load(cls, settings: WorkerSettings, cache_dir: Path) -> "ContinuousEngine":
        """The engine for the configured model, warm; ConfigError if it cannot be had or cannot run here."""
        source = ensure(settings.model, cache_dir)
        model = Model.load(source, settings)
        return cls(
            settings.model_name,
            model,
            Codec.load(source, model.vocab_size),
            slots=settings.slots,
            prefill_chunk_tokens=settings.prefill_chunk_tokens,
        )

    @property
    def free_slots(self) -> int:
        return self._slots.free

    def add(self, work: Work) -> None:
        assert work.id not in self._running, "the id is held already"
        assert work.id not in self._settled, "the id is held already"
        slot = self._slots.take()
        try:
            sequence = self._sequence(work, slot)
        except InvalidRequest as error:
            self._settled[work.id] = slot, refusal(error)
            return
        sequence.replay(work.prior_ids)
        if sequence.reason is not None:
            self._settled[work.id] = slot, sequence.outcome()
        else:
            self._running[work.id] = sequence

    def cancel(self, request_id: str) -> None:
        if sequence := self._running.pop(request_id, None):
            self._slots.give(sequence.slot)
        elif settled := self._settled.pop(request_id, None):
            self._slots.give(settled[0])

    def step(self) -> Series[Event]:
        events: list[Event] = []
        for request_id, (slot, outcome) in self._settled.items():
            self._slots.give(slot)
            events.append(Ended(request_id, outcome))
        self._settled.clear()
        chunks = plan(self._running.values(), self._prefill_chunk_tokens)
        if not chunks:
            return events
        logits = self._network.forward(chunks)
        ready = [chunk.sequence for chunk in chunks if chunk.is_last]
        for chunk in chunks:
            chunk.sequence.cached = chunk.end
            self.spent[chunk.sequence.lane] += chunk.count
        if ready:
            positions = [len(sequence.output_ids) for sequence in ready]
            tokens = choose(logits, [sequence.sampling for sequence in ready], positions)
            for sequence, token in zip(ready, tokens, strict=True):
                events.extend(self._advance(sequence, token))
        return events

    def close(self) -> None:
        self._running.clear()
        self._settled.clear()
        self._network.close()

    def _sequence(self, work: Work, slot: int) -> Sequence:
        """The request in this engine's terms; InvalidRequest if it cannot be served."""
        request = work.request
        refuse_outsized(request, self.max_model_len)
        prompt_ids = self._codec.encode(request)
        return Sequence(
            id=work.id,
            lane=work.lane,
            slot=slot,
            prompt_ids=prompt_ids,
            sampling=request.sampling,
            limit=output_limit(request, len(prompt_ids), self.max_model_len),
            end_ids=() if request.sampling.ignore_eos else self._end_ids,
            stream=TextStream(self._codec, request.sampling.stop),
        )

    def _advance(self, sequence: Sequence, token: int) -> list[Event]:
        text = sequence.take(token)
        events: list[Event] = [Progressed(sequence.id, (token,), text)]
        if sequence.reason is not None:
            del self._running[sequence.id]
            self._slots.give(sequence.slot)
            events.append(Ended(sequence.id, sequence.outcome()))
        return events
