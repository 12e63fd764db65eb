"""EchoEngine: answers with the caller's own words, at a set pace. No model.

A token is a word with the blanks before it, and its id is the word's place in the answer's text, so
that an answer can be continued from any of its tokens.
"""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shared.errors import InvalidRequest
from shared.guides import PARAM
from shared.lanes import Lane, defaults
from shared.sections import WorkerSettings
from shared.wire import GenerateRequest, Outcome, Prompt, TokenLogprob, Usage
from worker.composer import Candidate, Composer
from worker.engine import Ended, Event, Progressed, Work
from worker.engines.limits import output_limit, refusal, refuse_outsized
from worker.engines.stops import StopMatcher

WORD = re.compile(r"\s*\S+|\s+")


@dataclass(slots=True)
class _Answer:
    """One request's answer, as far as it has come."""

    id: str
    lane: str
    words: Sequence[str]
    prompt_tokens: int
    total: int
    """Tokens that it has if no stop string cuts it."""
    is_cut: bool
    """It ends there because of a limit, not because the words are over."""
    unseen: int
    """Tokens still to be "read"; one: it decodes."""
    stops: StopMatcher | None
    stop_ids: frozenset[int]
    min_tokens: int
    tells: bool
    """Log-probabilities are asked for: what is certain has 0."""
    prompt: Prompt | None
    """Until it has been told."""
    is_deadly: bool = False
    """Its first token kills the process."""
    produced: int = 0
    outcome: Outcome | None = None

    def advance(self) -> Progressed:
        """The next token; sets `outcome` with the last."""
        token = self.produced % len(self.words)
        word = text = self.words[token]
        self.produced += 1
        is_free = self.produced > self.min_tokens
        is_end = is_free and token in self.stop_ids
        if is_end:
            text = ""
        if self.stops is not None:
            text = self.stops.feed(text) if is_free else text
            if is_end or self.produced == self.total:
                text += self.stops.flush()
        is_stopped = is_end or (self.stops is not None and self.stops.is_stopped)
        if is_stopped or self.produced == self.total:
            self.end(is_stopped=is_stopped)
        raw = word.encode()
        logprobs = (TokenLogprob(raw=raw, logprob=0.0, top=((raw, 0.0),)),) if self.tells else ()
        prompt, self.prompt = self.prompt, None
        return Progressed(self.id, (token,), text, logprobs, prompt)

    def end(self, *, is_stopped: bool = False) -> None:
        usage = Usage(prompt_tokens=self.prompt_tokens, completion_tokens=self.produced)
        reason = "length" if self.is_cut and not is_stopped else "stop"
        self.outcome = Outcome(state="done", reason=reason, usage=usage, prompt=self.prompt)


class EchoEngine:
    """A first-class engine for tests and scale runs: it keeps every rule of the contract and costs what it is told."""

    is_ready = True

    def __init__(
        self,
        settings: WorkerSettings,
        lanes: Mapping[str, Lane] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.model = settings.model_name
        self.slots = settings.slots
        self.spent: Counter[str] = Counter()
        self.max_model_len = settings.max_model_len
        self._composer = Composer(lanes or defaults(), prefill_tokens=settings.prefill_chunk_tokens)
        self._keeps_places = settings.batching == "static"
        self._places_kept = 0  # of answers that have ended in the batch that runs
        self._pace = settings.echo
        self._sleep = sleep
        self._running: dict[str, _Answer] = {}
        self._settled: dict[str, Outcome] = {}

    @property
    def free_slots(self) -> int:
        return self.slots - len(self._running) - len(self._settled)

    def add(self, work: Work) -> None:
        assert work.id not in self._running, "the id is held already"
        assert work.id not in self._settled, "the id is held already"
        assert self.free_slots > 0, "add() without a free slot"
        try:
            answer = self._answer(work)
        except InvalidRequest as error:
            self._settled[work.id] = refusal(error)
            return
        if answer.total == 0:
            answer.end()
        for _ in work.prior_ids:
            if answer.outcome is None:
                answer.advance()
        if answer.outcome is None:
            self._running[work.id] = answer
        else:
            self._settled[work.id] = answer.outcome

    def cancel(self, request_id: str) -> None:
        self._running.pop(request_id, None)
        self._settled.pop(request_id, None)

    def step(self) -> Sequence[Event]:
        events: list[Event] = [Ended(request_id, outcome) for request_id, outcome in self._settled.items()]
        self._settled.clear()
        if not self._running:
            self._places_kept = 0
            return events
        for answer in self._read():
            if answer.is_deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            events.append(answer.advance())
            if answer.outcome is not None:
                del self._running[answer.id]
                events.append(Ended(answer.id, answer.outcome))
                self._places_kept += self._keeps_places
        if not self._running:
            self._places_kept = 0
        return events

    def close(self) -> None:
        self._running.clear()
        self._settled.clear()

    def _read(self) -> list[_Answer]:
        """Let each answer see what the step allows, in the time that takes; returns those that have seen all."""
        candidates = [Candidate(one.id, one.lane, one.unseen) for one in self._running.values()]
        decodes, prefilled, ready = self._places_kept, 0, []
        for request_id, count in self._composer.compose(candidates).items():
            answer = self._running[request_id]
            self.spent[answer.lane] += count
            if answer.unseen == 1:
                decodes += 1
            else:
                prefilled += count
            answer.unseen -= count
            if answer.unseen == 0:
                answer.unseen = 1  # the token that it is about to produce
                ready.append(answer)
        cost_ms = self._pace.step_ms + self._pace.decode_ms * decodes + self._pace.prefill_ms * prefilled
        if cost_ms > 0:
            self._sleep(cost_ms / 1000)
        self._composer.pace.observe(decodes, prefilled, cost_ms)
        return ready

    def _answer(self, work: Work) -> _Answer:
        request = work.request
        if request.guide is not None:
            problem = "The echo engine repeats what it hears; it follows no grammar."
            raise InvalidRequest(problem, param=PARAM, code="unsupported_value")
        refuse_outsized(request, self.max_model_len)
        words, prompt_tokens = _words(request)
        sampling = request.sampling
        limit = output_limit(request, prompt_tokens, self.max_model_len)
        wanted = max(len(words), sampling.min_tokens)
        is_cut = sampling.ignore_eos or limit <= wanted
        return _Answer(
            id=work.id,
            lane=work.lane,
            words=words,
            prompt_tokens=prompt_tokens,
            total=limit if is_cut else wanted,
            is_cut=is_cut,
            unseen=prompt_tokens + len(work.prior_ids),
            stops=StopMatcher(sampling.stop) if sampling.stop else None,
            stop_ids=frozenset(sampling.stop_token_ids),
            min_tokens=sampling.min_tokens,
            tells=sampling.logprobs is not None,
            prompt=_told_prompt(request) if request.echo and not work.prior_ids else None,
            is_deadly=bool(self._pace.dies_of) and self._pace.dies_of in "".join(words),
        )


def _words(request: GenerateRequest) -> tuple[list[str], int]:
    """The words to answer with, one at least; and the number of words of the whole prompt."""
    if request.messages is None:
        prompt = request.prompt or ""
        text = prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
        words = WORD.findall(text)
        return words or [""], len(words)
    contents = [_content(message) for message in request.messages]
    roles = [message.get("role") for message in request.messages]
    last = len(roles) - 1 - roles[::-1].index("user") if "user" in roles else len(roles) - 1
    counted = sum(len(WORD.findall(content)) for content in contents)
    # A chat is never empty to a model: its template adds tokens of its own.
    return WORD.findall(contents[last] if contents else "") or [""], max(counted, len(contents[:1]))


def _told_prompt(request: GenerateRequest) -> Prompt:
    """The prompt with its words, each of which is certain once the first has been said."""
    text = request.prompt if isinstance(request.prompt, str) else " ".join(map(str, request.prompt or ()))
    if request.sampling.logprobs is None:
        return Prompt(text=text)
    words = [word.encode() for word in WORD.findall(text)]
    first, rest = words[:1], words[1:]
    tokens = [TokenLogprob(raw=word) for word in first]
    tokens += [TokenLogprob(raw=word, logprob=0.0, top=((word, 0.0),)) for word in rest]
    return Prompt(text=text, tokens=tuple(tokens))


def _content(message: dict[str, object]) -> str:
    content = message.get("content") or ""
    if not isinstance(content, str):
        raise InvalidRequest("The content of a message must be text.", param="messages")
    return content
