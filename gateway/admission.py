"""Admission: may this request enter, on which lane, and for how long. Decided before any header is sent."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from gateway.catalogue import Catalogue, longest_context
from gateway.fit import refuse_outsized, refuse_unfit, refuse_unserved
from gateway.follower import Follower, Reader
from gateway.metrics import Metrics
from gateway.openai.budget import cost_tokens, longest_prompt
from gateway.relay import SIBLING, Relay
from gateway.terms import Terms
from shared import wire
from shared.broker import Broker, Queued, Submission
from shared.errors import (
    BrokerUnavailable,
    DeadlineTooNear,
    InvalidRequest,
    KeyReused,
    LaneFull,
    Unavailable,
)
from shared.inspection import Found, Inspector
from shared.lanes import BULK, INTERACTIVE, Lane

TIER_LANES = {"flex": BULK, "priority": INTERACTIVE, "fast": INTERACTIVE}
DEFAULT_TIERS = frozenset({"auto", "default", "scale"})
LANE_TIERS = {BULK: "flex"}
REFUSALS = (LaneFull, DeadlineTooNear, KeyReused)
"""What is said of a request that has not got in."""
CANCELLING_S = 0.05
CANCELLED_WITHIN_S = 5.0
"""A worker ends what is cancelled with its next step; who asks for it again waits so long."""
Endpoint = Literal["chat.completions", "completions", "embeddings"]


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
    endpoint: Endpoint
    terms: Terms
    tenant: str = ""
    fingerprint: str = ""
    """Tells its content from another's; set if the id was made of the client's own key."""
    choices_per_prompt: int = 1
    include_usage: bool = False
    base64: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that waits in a lane, in one part or several."""

    id: str
    lane: str
    followers: tuple[Follower, ...]
    """Those of one prompt in a row."""
    reader: Reader
    meta: wire.Meta
    """How it is told; of a request that was there already, how it was told first."""
    deadline_s: float
    queue_timeout_s: float
    queued: Queued
    is_retold: bool = False
    """Somebody else was, or is, told the same answer: its tokens count once."""


class Admission:
    """Lets requests into lanes."""

    def __init__(
        self,
        broker: Broker,
        relay: Relay,
        catalogue: Catalogue,
        inspector: Inspector,
        metrics: Metrics,
        *,
        lanes: dict[str, Lane],
        default_lane: str,
        grace_s: float = 0.0,
    ) -> None:
        """`grace_s`: who was told that Redis is away has so long to ask again by its key."""
        self._broker = broker
        self._inspector = inspector
        self._relay = relay
        self._catalogue = catalogue
        self._metrics = metrics
        self._lanes = lanes
        self._default_lane = default_lane
        self._grace_s = grace_s

    async def admit(self, ask: Ask) -> Admitted:
        """Queue it and follow it; a BuswayError says why not."""
        if not self._relay.listening:
            raise BrokerUnavailable("Redis does not answer.")
        found = await self._before(ask) if ask.fingerprint else None
        model = self._catalogue.get(ask.model) if found is not None and found.state == "done" else None
        is_told_again = model is not None  # no worker is needed for that
        model = model or await self._catalogue.find(ask.model)
        refuse_unfit(ask.requests, model, limit_field=ask.limit_field)
        name = self._for_length(self.lane_of(ask.service_tier), max(ask.requests, key=longest_prompt))
        if not is_told_again:
            refuse_unserved(model, name)
        lane = self._lanes[name]
        costs = [cost_tokens(request, longest_context(model)) for request in ask.requests]
        refuse_outsized(ask.requests, costs, name, lane, has_choices=ask.choices_per_prompt > 1)
        deadline_ms = min(int(lane.deadline_s * 1000), ask.terms.deadline_ms)
        meta = _meta(ask, name)
        submissions = self._submissions(ask, meta, name, costs, deadline_ms)
        if found is not None:
            if found.lane not in self._lanes:
                raise Unavailable(f"The request is in lane {found.lane}, which this gateway does not have.")
            meta, submissions = found.meta or meta, [replace(one, lane=found.lane) for one in submissions]
        reader = Reader(is_patient=not ask.stream, may_return=ask.stream or bool(ask.fingerprint))
        followers, queued = await self._enqueue_all(submissions, reader)
        return Admitted(
            id=ask.id,
            lane=submissions[0].lane,
            followers=followers,
            reader=reader,
            meta=meta,
            deadline_s=deadline_ms / 1000,
            queue_timeout_s=lane.queue_timeout_s,
            queued=queued,
            is_retold=queued.joined,
        )

    def _submissions(
        self, ask: Ask, meta: wire.Meta, lane: str, costs: Sequence[int], deadline_ms: int
    ) -> list[Submission]:
        return [
            Submission(
                id=part_id(ask.id, part),
                model=ask.model,
                lane=lane,
                request=request,
                cost_tokens=costs[part],
                channel=self._relay.channel,
                deadline_ms=deadline_ms,
                detached=ask.terms.detached,
                tenant=ask.tenant,
                meta=meta if part == 0 else None,
                fingerprint=ask.fingerprint,
            )
            for part, request in enumerate(ask.requests)
        ]

    async def _before(self, ask: Ask) -> Found | None:
        """The request of an earlier call with the same key, which settled its lane and how it is told.

        KeyReused if it was for another model.
        """
        found = await self._inspector.find(ask.id, [model.name for model in self._catalogue.models])
        if found is not None and found.model != ask.model:
            raise KeyReused("This idempotency key came with another model before.", param="Idempotency-Key")
        return found

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
        tokens, tried = longest_prompt(request), set[str]()
        while (most := self._lanes[name].max_prompt_tokens) is not None and tokens > most:
            tried.add(name)
            overflow = self._lanes[name].overflow
            if not overflow or overflow in tried:
                problem = f"The prompt has about {tokens} tokens; lane {name} takes {most} at most."
                raise InvalidRequest(problem, param=request.source, code="context_length_exceeded")
            name = overflow
        return name

    async def _enqueue_all(
        self, submissions: Sequence[Submission], reader: Reader
    ) -> tuple[tuple[Follower, ...], Queued]:
        """All of them or none: if one is refused, those that got in are taken back. Of the first, how it got in."""
        followers: list[Follower] = []
        joined: set[str] = set()
        told = Queued()
        try:
            for submission in submissions:
                follower = Follower(submission.id, submission.model, submission.lane, reader)
                queued = await self._enqueue(submission, follower)
                told = queued if not followers else told
                followers.append(follower)
                joined |= {follower.id} if queued.joined else set()
        except BaseException as error:
            grace_s = 0.0 if isinstance(error, REFUSALS) else self._grace_for(submissions[0])
            for follower in followers:
                self._relay.release(follower, "disconnect" if follower.id in joined else SIBLING, grace_s=grace_s)
            raise
        return tuple(followers), told

    async def _enqueue(self, submission: Submission, follower: Follower) -> Queued:
        losses = self._relay.follow(follower)
        try:
            queued = await self._enqueue_or_join(submission)
            if queued.joined:
                self._metrics.joined.inc()
                losses = -1  # what it has produced before is in its log
        except KeyReused:
            self._relay.release(follower, grace_s=self._grace_s)  # perhaps of somebody who just left, and has its grace
            raise
        except REFUSALS as error:
            if isinstance(error, LaneFull):
                self._metrics.lane_full.labels(follower.lane).inc()
            if isinstance(error, DeadlineTooNear):
                self._metrics.deadline_refused.labels(follower.lane).inc()
            self._relay.drop(follower)
            raise
        except BaseException:  # it may have got in: only the reply is missing
            self._relay.release(follower, grace_s=self._grace_for(submission))
            raise
        self._relay.accept(follower, losses)
        return queued

    async def _enqueue_or_join(self, submission: Submission) -> Queued:
        """Queue it, or watch the request of an earlier call; one that is being cancelled is queued again when it is."""
        until = time.monotonic() + CANCELLED_WITHIN_S
        while time.monotonic() < until:
            queued = await self._broker.enqueue(submission, self._lanes[submission.lane])
            if not (queued.joined or queued.cancelling):
                return queued
            if queued.joined:
                state = await self._broker.watch(
                    submission.model, submission.id, self._relay.channel, detached=submission.detached
                )
                if state not in ("", "cancelling"):
                    return queued
            await asyncio.sleep(CANCELLING_S)
        raise Unavailable("The request with this key is just being cancelled; send it again.")

    def _grace_for(self, submission: Submission) -> float:
        """What its client does not know, it cannot ask for again."""
        return self._grace_s if submission.fingerprint else 0.0


def _meta(ask: Ask, lane: str) -> wire.Meta:
    return wire.Meta(
        endpoint=ask.endpoint,
        created=int(time.time()),
        tier=LANE_TIERS.get(lane, "default"),
        include_usage=ask.include_usage,
        parts=len(ask.requests),
        choices_per_prompt=ask.choices_per_prompt,
        base64=ask.base64,
    )


def part_id(request_id: str, part: int) -> str:
    """The id under which a part of a request is queued; the first has the request's own."""
    return request_id if part == 0 else f"{request_id}-{part}"
