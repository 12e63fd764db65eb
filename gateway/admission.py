"""Admission: may this request enter, on which lane, and for how long. Decided before any header is sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.catalogue import ABSENT_RETRY_S, Catalogue, longest_context, vocabulary
from gateway.follower import Follower, Reader
from gateway.metrics import Metrics
from gateway.openai.budget import cost_tokens, prompt_tokens, refuse_too_long
from gateway.relay import Relay
from shared import wire
from shared.broker import Broker, ServedModel, Submission
from shared.errors import BrokerUnavailable, InvalidRequest, LaneFull, NoWorkers
from shared.lanes import BULK, INTERACTIVE, Lane
from shared.tokens import refuse_ids

DEADLINE_HEADER = "x-busway-deadline-ms"
READ_TIMEOUT_HEADER = "x-stainless-read-timeout"
MAX_DEADLINE_MS = 2**53

TIER_LANES = {"flex": BULK, "priority": INTERACTIVE, "fast": INTERACTIVE}
DEFAULT_TIERS = frozenset({"auto", "default", "scale"})
LANE_TIERS = {BULK: "flex"}


@dataclass(frozen=True, slots=True)
class Ask:
    """What a client asks for."""

    id: str
    model: str
    requests: tuple[wire.GenerateRequest, ...]
    """One for each part of the answer: a choice, or some inputs to embed."""
    limit_field: str
    """What the client calls the bound of tokens to produce."""
    service_tier: str | None
    stream: bool
    headers: Mapping[str, str]
    choices_per_prompt: int = 1


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that waits in a lane, in one part or several."""

    id: str
    lane: str
    followers: tuple[Follower, ...]
    """Those of one prompt in a row."""
    reader: Reader
    choices_per_prompt: int
    tier: str
    """The service tier that was really used, in OpenAI's words."""
    deadline_s: float
    queue_timeout_s: float
    ahead: int | None
    """Requests before it in its lane; None if it was in it already."""


class Admission:
    """Lets requests into lanes."""

    def __init__(
        self,
        broker: Broker,
        relay: Relay,
        catalogue: Catalogue,
        metrics: Metrics,
        *,
        lanes: dict[str, Lane],
        default_lane: str,
    ) -> None:
        self._broker = broker
        self._relay = relay
        self._catalogue = catalogue
        self._metrics = metrics
        self._lanes = lanes
        self._default_lane = default_lane

    async def admit(self, ask: Ask) -> Admitted:
        """Queue it and follow it; a BuswayError says why not."""
        if not self._relay.listening:
            raise BrokerUnavailable("Redis does not answer.")
        model = await self._catalogue.find(ask.model)
        context, vocab_size = longest_context(model), vocabulary(model)
        for request in ask.requests:
            refuse_too_long(request, context, limit_field=ask.limit_field)
            if vocab_size is not None:
                refuse_ids(request.sampling, vocab_size)
        longest = max(ask.requests, key=prompt_tokens)
        name = self._for_length(self.lane_of(ask.service_tier), longest)
        refuse_unserved(model, name)
        lane = self._lanes[name]
        deadline_ms = min(int(lane.deadline_s * 1000), asked_deadline_ms(ask.headers, stream=ask.stream))
        reader = Reader(is_patient=not ask.stream)
        submissions = [
            Submission(
                id=part_id(ask.id, part),
                model=ask.model,
                lane=name,
                request=request,
                cost_tokens=cost_tokens(request, context),
                channel=self._relay.channel,
                deadline_ms=deadline_ms,
            )
            for part, request in enumerate(ask.requests)
        ]
        followers, ahead = await self._enqueue_all(submissions, reader, lane)
        return Admitted(
            id=ask.id,
            lane=name,
            followers=followers,
            reader=reader,
            choices_per_prompt=ask.choices_per_prompt,
            tier=LANE_TIERS.get(name, "default"),
            deadline_s=deadline_ms / 1000,
            queue_timeout_s=lane.queue_timeout_s,
            ahead=ahead,
        )

    def lane_of(self, tier: str | None) -> str:
        """The lane of a service tier, or of a lane's own name; InvalidRequest if it is neither."""
        if tier is None or tier in DEFAULT_TIERS:
            return self._default_lane
        lane = TIER_LANES.get(tier, tier)
        if lane not in self._lanes:
            known = ", ".join(sorted({*DEFAULT_TIERS, *TIER_LANES, *self._lanes}))
            raise InvalidRequest(f"service_tier must be one of {known}.", param="service_tier")
        return lane

    def _for_length(self, name: str, request: wire.GenerateRequest) -> str:
        """The lane that takes a prompt this long, by estimate; InvalidRequest if none does."""
        tokens, tried = prompt_tokens(request), set[str]()
        while (most := self._lanes[name].max_prompt_tokens) is not None and tokens > most:
            tried.add(name)
            overflow = self._lanes[name].overflow
            if not overflow or overflow in tried:
                problem = f"The prompt has about {tokens} tokens; lane {name} takes {most} at most."
                field = "messages" if request.messages is not None else "prompt"
                raise InvalidRequest(problem, param=field, code="context_length_exceeded")
            name = overflow
        return name

    async def _enqueue_all(
        self, submissions: Sequence[Submission], reader: Reader, lane: Lane
    ) -> tuple[tuple[Follower, ...], int | None]:
        """All of them or none: if one is refused, those that got in are taken back."""
        followers: list[Follower] = []
        ahead: int | None = None
        try:
            for submission in submissions:
                follower = Follower(submission.id, submission.model, submission.lane, reader)
                before = await self._enqueue(submission, follower, lane)
                ahead = before if not followers else ahead
                followers.append(follower)
        except BaseException:
            for follower in followers:
                self._relay.release(follower, "sibling")
            raise
        return tuple(followers), ahead

    async def _enqueue(self, submission: Submission, follower: Follower, lane: Lane) -> int | None:
        losses = self._relay.follow(follower)
        try:
            ahead = await self._broker.enqueue(submission, lane)
        except LaneFull:
            self._metrics.lane_full.labels(follower.lane).inc()
            self._relay.drop(follower)
            raise
        except BaseException:
            self._relay.release(follower)  # it may have got in: only the reply is missing
            raise
        self._relay.accept(follower, losses)
        return ahead


def part_id(request_id: str, part: int) -> str:
    """The id under which a part of a request is queued; the first has the request's own."""
    return request_id if part == 0 else f"{request_id}-{part}"


def refuse_unserved(model: ServedModel, lane: str) -> None:
    """NoWorkers if the model lives, but not for this lane."""
    served = [worker["lanes"].split(",") for worker in model.workers if worker.get("lanes")]
    if served and not any(lane in lanes for lanes in served):
        raise NoWorkers(f"No worker of {model.name} serves the lane {lane} now.", retry_after_s=ABSENT_RETRY_S)


def asked_deadline_ms(headers: Mapping[str, str], *, stream: bool) -> int:
    """The client's own deadline; InvalidRequest if it is not a positive number.

    A client that waits in silence for a whole answer gives up at its read timeout and asks again. The end
    must reach it before. A stream is never silent for long, so there the timeout says nothing.
    """
    deadline_ms = MAX_DEADLINE_MS
    if DEADLINE_HEADER in headers:
        text = headers[DEADLINE_HEADER]
        if not (text.isascii() and text.isdigit() and 0 < len(text) < 16 and int(text) > 0):
            raise InvalidRequest(f"{DEADLINE_HEADER} must be a positive number of milliseconds.", param=DEADLINE_HEADER)
        deadline_ms = int(text)
    if not stream:
        timeout_s = _seconds(headers.get(READ_TIMEOUT_HEADER, ""))
        if timeout_s is not None:
            deadline_ms = min(deadline_ms, max(1, int(1000 * (timeout_s - min(1.0, timeout_s / 10)))))
    return deadline_ms


def _seconds(text: str) -> float | None:
    """A client may also say `None` or `not_given` there."""
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if 0 < seconds < 1e9 else None
