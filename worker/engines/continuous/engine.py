"""ContinuousEngine: every step decodes for all requests that it can, and prefills a bounded piece of the new ones."""

import time
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Series
from pathlib import Path

import structlog
import torch
from torch import Tensor

from shared.errors import InvalidRequest
from shared.lanes import Lane
from shared.sections import WorkerSettings
from shared.tokens import refuse_ids
from shared.wire import ErrorInfo, GenerateRequest, Outcome, TokenLogprob
from worker.composer import Candidate, Composer
from worker.engine import Ended, Event, Progressed, Work
from worker.engines.continuous.chunks import Chunk, arrange
from worker.engines.continuous.guide import Guides
from worker.engines.continuous.model import Model
from worker.engines.continuous.prefixes import BLOCK, Prefixes
from worker.engines.continuous.rows import Pick, tally_of
from worker.engines.continuous.sampler import choose, likelihoods
from worker.engines.continuous.sequence import Sequence, Telling
from worker.engines.continuous.slots import Slots
from worker.engines.continuous.text import Codec, TextStream
from worker.engines.limits import output_limit, refusal, refuse_outsized
from worker.engines.weights import ensure

READ_AT_ONCE = 64
"""Prompt tokens whose logits a step may hold at the same time, for a request that wants all of them."""
COMPILING_S = 0.005
TOO_LARGE = Outcome(
    state="failed", error=ErrorInfo(code="internal_error", message="The prompt did not fit into the device's memory.")
)

log = structlog.get_logger()


class ContinuousEngine:
    """Compose, forward, sample, report."""

    is_ready = True

    def __init__(self, model: Model, codec: Codec, settings: WorkerSettings, lanes: Mapping[str, Lane]) -> None:
        self.model = settings.model_name
        self.slots = settings.slots
        self.spent: Counter[str] = Counter()
        self.max_model_len = model.max_model_len
        self.vocab_size = model.vocab_size
        self._network = model
        self._codec = codec
        self._guides = Guides(codec.grammars, model.vocab_size)
        self._composer = Composer(lanes, prefill_tokens=settings.prefill_chunk_tokens)
        self._prefixes = Prefixes(settings.prefix_cache_tokens // BLOCK)
        self._blocks = model.blocks(settings.prefix_cache_tokens // BLOCK, BLOCK)
        self._end_ids = model.end_ids | codec.end_ids
        self._slots = Slots(settings.slots)
        self._running: dict[str, Sequence] = {}
        # Over before their first step, refused or found complete; they hold a slot until it is reported.
        self._settled: dict[str, tuple[int, Outcome]] = {}
        self._keeps_places = settings.batching == "static"
        self._places: list[Sequence] = []  # those that ended in the batch that runs: their rows are computed on

    @classmethod
    def load(cls, settings: WorkerSettings, cache_dir: Path, lanes: Mapping[str, Lane]) -> "ContinuousEngine":
        """The engine for the configured model, warm; ConfigError if it cannot be had or cannot run here."""
        source = ensure(settings.model, cache_dir)
        model = Model.load(source, settings)
        return cls(model, Codec.load(source, model.vocab_size), settings, lanes)

    @property
    def free_slots(self) -> int:
        return self._slots.free

    def add(self, work: Work) -> None:
        assert work.id not in self._running, "the id is held already"
        assert work.id not in self._settled, "the id is held already"
        if not self._running:
            self._clear_places()
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
            self._reuse(sequence)
            self._running[work.id] = sequence

    def cancel(self, request_id: str) -> None:
        if sequence := self._running.pop(request_id, None):
            self._keep(sequence)
            self._slots.give(sequence.slot)
        elif settled := self._settled.pop(request_id, None):
            self._slots.give(settled[0])

    def step(self) -> Series[Event]:
        events: list[Event] = []
        for request_id, (slot, outcome) in self._settled.items():
            self._slots.give(slot)
            events.append(Ended(request_id, outcome))
        self._settled.clear()
        events += self._open_guides()
        if chunks := self._plan():
            # Before they run: a sequence grows, and then its chunk is no decode any more.
            decodes = sum(chunk.is_decode for chunk in chunks)
            prefill = sum(chunk.count for chunk in chunks if not chunk.is_decode)
            began = time.perf_counter()
            events += self._run(chunks)
            self._composer.pace.observe(decodes, prefill, 1000 * (time.perf_counter() - began))
        return events

    def close(self) -> None:
        self._running.clear()
        self._settled.clear()
        self._guides.close()
        self._network.close()

    # What comes in ---------------------------------------------------------------------------------

    def _sequence(self, work: Work, slot: int) -> Sequence:
        """The request in this engine's terms; InvalidRequest if it cannot be served."""
        request, sampling = work.request, work.request.sampling
        refuse_outsized(request, self.max_model_len)
        refuse_ids(sampling, self.vocab_size)
        prompt_ids = self._codec.encode(request)
        ends = sampling.stop_token_ids if sampling.ignore_eos else {*self._end_ids, *sampling.stop_token_ids}
        return Sequence(
            id=work.id,
            lane=work.lane,
            slot=slot,
            prompt_ids=prompt_ids,
            sampling=sampling,
            limit=output_limit(request, len(prompt_ids), self.max_model_len),
            end_ids=frozenset(ends),
            stream=TextStream(self._codec, sampling.stop),
            tally=tally_of(request, prompt_ids),
            guide=None if request.guide is None else self._guides.start(request.guide),
            telling=self._telling(request, prompt_ids),
        )

    @torch.inference_mode()
    def _reuse(self, one: Sequence) -> None:
        """Begin where an earlier text that began alike has got to. One token at least is run: its logits are wanted."""
        if one.reads_prompt:
            return
        blocks = self._prefixes.match(one.tokens(0, one.length - 1))
        if blocks:
            self._blocks.load(blocks, one.slot)
            one.cached = len(blocks) * BLOCK
            one.reused = min(one.cached, len(one.prompt_ids))

    @torch.inference_mode()
    def _keep(self, one: Sequence) -> None:
        """Copy what it has in its slot for later texts."""
        if stored := self._prefixes.extend(one.tokens(0, one.cached)):
            self._blocks.save(one.slot, [each.block for each in stored], stored[0].start)

    def _telling(self, request: GenerateRequest, prompt_ids: list[int]) -> Telling | None:
        if not request.echo:
            return None
        text = request.prompt if isinstance(request.prompt, str) else self._codec.spell(prompt_ids)
        return Telling(text, request.sampling.logprobs)

    def _open_guides(self) -> list[Event]:
        """Let those go on whose grammars are compiled; if nobody else runs, wait a moment for one."""
        events: list[Event] = []
        waiting = [(one, one.guide) for one in self._running.values() if one.guide and not one.guide.is_open]
        if waiting and len(waiting) == len(self._running):
            waiting[0][1].wait(COMPILING_S)
        for one, guide in waiting:
            if not guide.is_compiled:
                continue
            try:
                guide.open()
            except InvalidRequest as error:
                events.append(self._end(one, refusal(error)))
                continue
            if guide.is_over:
                one.reason = "stop"
                events.append(self._end(one, one.outcome()))
        return events

    # A step ----------------------------------------------------------------------------------------

    def _plan(self) -> list[Chunk]:
        able = {key: one for key, one in self._running.items() if one.guide is None or one.guide.is_open}
        counts = self._composer.compose([Candidate(one.id, one.lane, one.pending) for one in able.values()])
        for key in counts:
            if able[key].reads_prompt:
                counts[key] = min(counts[key], READ_AT_ONCE)
        counts.update(dict.fromkeys((one.id for one in self._places), 1))
        return arrange([*able.values(), *self._places], counts)

    @torch.inference_mode()
    def _run(self, chunks: Series[Chunk]) -> list[Event]:
        """Forward, sample, settle."""
        events: list[Event] = []
        try:
            logits = self._network.forward(chunks)
        except torch.OutOfMemoryError:
            if all(chunk.is_decode for chunk in chunks):
                raise  # nothing can be left out, so the next step would not fit either
            return [self._give_up_largest(chunks)]
        ready: list[Sequence] = []
        places, end = [], 0
        for chunk in chunks:
            one, first = chunk.sequence, end
            end += chunk.wanted
            if one.reason is not None:
                continue  # only its place is kept
            if one.reads_prompt:
                self._read_prompt(chunk, logits[first:end])
            one.cached = chunk.end
            self.spent[one.lane] += chunk.count
            if one.pending == 0:
                if not chunk.is_decode:
                    self._keep(one)  # others may be waiting that begin alike
                ready.append(one)
                places.append(end - 1)
        events += self._sample(ready, logits if len(places) == len(logits) else logits[places])
        if not self._running:
            self._clear_places()
        return events

    def _clear_places(self) -> None:
        """The batch is over: so are the places of those that ended before the rest, and their slots are free."""
        for one in self._places:
            self._slots.give(one.slot)
        self._places.clear()

    def _give_up_largest(self, chunks: Series[Chunk]) -> Event:
        """The step did not fit into the device's memory: without its longest prompt it may. The others run it again."""
        largest = max((chunk for chunk in chunks if not chunk.is_decode), key=lambda chunk: chunk.count)
        log.error("engine.out_of_memory", request=largest.sequence.id, tokens=largest.count)
        torch.cuda.empty_cache()
        return self._end(largest.sequence, TOO_LARGE)

    def _sample(self, ready: list[Sequence], logits: Tensor) -> list[Event]:
        """The next token of each, and what follows from it."""
        events: list[Event] = []
        rows, places = [], []
        for place, one in enumerate(ready):
            if one.limit == 0:
                one.reason = "length"
                events.append(self._end(one, one.outcome()))
                continue
            try:
                rows.append(one.row())
            except InvalidRequest as error:
                events.append(self._end(one, refusal(error)))
            else:
                places.append(place)
        if rows:
            picks = choose(logits if len(places) == len(ready) else logits[places], rows)
            for place, pick in zip(places, picks, strict=True):
                events += self._advance(ready[place], pick)
        return events

    def _advance(self, one: Sequence, pick: Pick) -> list[Event]:
        text = one.take(pick.token)
        logprobs = () if pick.logprob is None else (self._told(pick),)
        events: list[Event] = [Progressed(one.id, (pick.token,), text, logprobs, one.tell_prompt())]
        if one.reason is not None:
            events.append(self._end(one, one.outcome()))
        return events

    def _end(self, one: Sequence, outcome: Outcome) -> Ended:
        """It is over and gives its slot back."""
        del self._running[one.id]
        self._keep(one)
        if self._keeps_places and one.reason is not None and one.cached == one.length - 1:
            self._places.append(one)  # its row goes on being computed, so its slot is nobody else's yet
        else:
            self._slots.give(one.slot)
        return Ended(one.id, outcome)

    # What is told ----------------------------------------------------------------------------------

    def _told(self, pick: Pick) -> TokenLogprob:
        top = tuple((self._codec.raw(token), logprob) for token, logprob in pick.top)
        return TokenLogprob(raw=self._codec.raw(pick.token), logprob=pick.logprob, top=top)

    def _read_prompt(self, chunk: Chunk, logits: Tensor) -> None:
        """Each row says how likely the prompt's next token was."""
        one = chunk.sequence
        assert one.telling is not None, "nothing is to be told of this prompt"
        if chunk.start == 0:
            one.telling.tokens.append(TokenLogprob(raw=self._codec.raw(one.prompt_ids[0])))
        following = one.prompt_ids[chunk.start + 1 : chunk.end + 1]
        found = likelihoods(logits[: len(following)], [one.telling.top] * len(following))
        one.telling.tokens += [self._told(row.of(token)) for row, token in zip(found, following, strict=True) if row]
