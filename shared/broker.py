"""The broker as a gateway sees it: put a request in, follow it, take it back, ask who serves what."""

import math
from dataclasses import dataclass
from typing import Any

from msgspec import structs
from redis.asyncio import Redis

from shared import keys, scripts, wire
from shared.connection import reachable
from shared.errors import DeadlineTooNear, KeyReused, LaneFull
from shared.keys import Keys
from shared.lanes import Lane
from shared.scripts import Call

MAX_RETRY_AFTER_S = 60  # above it one SDK stops retrying and another ignores the header
KEEP_BEYOND_DEADLINE_MS = 600_000

CANCELLED = wire.Outcome(
    state="cancelled", error=wire.ErrorInfo(code="cancelled", message="The request was cancelled.")
)
EXPIRED = wire.Outcome(
    state="expired",
    error=wire.ErrorInfo(code="deadline_exceeded", message="The request did not end before its deadline."),
)


@dataclass(frozen=True, slots=True)
class Submission:
    """A request on its way into a lane."""

    id: str
    model: str
    lane: str
    request: wire.GenerateRequest
    cost_tokens: int
    """Estimate of prompt and output tokens, for the lane's bound."""
    channel: str = ""
    """The channel of the gateway that watches; empty: nobody does."""
    deadline_ms: int | None = None
    """Life of the request, if shorter than the lane's."""
    detached: bool = False
    """It runs to its end, whoever leaves."""
    tenant: str = ""
    """Whose it is: nobody else may see it."""
    meta: wire.Meta | None = None
    fingerprint: str = ""
    """Tells its content from another's. Set: the id was made of the client's own key, which it may use again."""


@dataclass(frozen=True, slots=True)
class Queued:
    """What became of a request on its way in."""

    ahead: int | None = None
    """Requests before it in its lane; None if it was in already."""
    starts_in_ms: int | None = None
    """Estimated, at the pace that was measured; None if nothing was."""
    joined: bool = False
    """It is the request of an earlier call with the same key."""
    cancelling: bool = False
    """That request is about to end as cancelled, and can be queued again then."""


@dataclass(frozen=True, slots=True)
class Record:
    """What Redis holds of a request."""

    state: wire.State
    attempt: int
    deaths: int
    tokens: int | None
    """Tokens in all; known once it has ended."""
    outcome: wire.Outcome | None


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that is, or lately was, served."""

    name: str
    seen_s_ago: float
    workers: tuple[dict[str, str], ...]
    """The fields of each live worker's hash; empty when nobody serves the model now."""


class Broker:
    """Typed calls for the gateway's transitions. BrokerUnavailable if Redis does not answer."""

    def __init__(self, redis: Redis, *, keep_ms: int) -> None:
        self.redis = redis
        self._keep_ms = keep_ms

    async def enqueue(self, submission: Submission, lane: Lane) -> Queued:
        """Queue it. LaneFull at the lane's bound, DeadlineTooNear if it would not start in time.

        Repeating it with the same id is harmless, and then the number ahead is not known. With a fingerprint a
        request that ended otherwise than done is queued again, and KeyReused says that it was another's.
        """
        names, name = Keys(submission.model), submission.lane
        deadline_ms = min(int(lane.deadline_s * 1000), submission.deadline_ms or int(lane.deadline_s * 1000))
        start_ms = min(int(lane.queue_timeout_s * 1000), deadline_ms)
        args: list[scripts.Value] = [submission.id, lane.max_queued, lane.max_queued_tokens, submission.cost_tokens]
        args += [start_ms, deadline_ms, KEEP_BEYOND_DEADLINE_MS, names.bell, name, int(bool(submission.fingerprint))]
        for field, value in _fields(submission).items():
            args += [field, value]
        touched = [names.stream(name), names.request(submission.id), names.stats(name)]
        async with reachable():
            verdict, *told = await scripts.run(self.redis, Call(scripts.ENQUEUE, touched, args))
        if verdict == b"CANCELLING":
            return Queued(cancelling=True)
        if verdict == b"DUP":
            if submission.fingerprint and told[1].decode() != submission.fingerprint:
                raise KeyReused("This idempotency key came with another request before.", param="Idempotency-Key")
            return Queued(joined=bool(submission.fingerprint))
        waiting, per_second = told[0], told[2 if verdict != b"OK" else 1] / 1000
        if verdict == b"FULL":
            raise LaneFull(
                f"lane {name} is full: {waiting} requests and {told[1]} tokens wait",
                retry_after_s=retry_after_s(bound=lane.max_queued, per_second=per_second),
            )
        if verdict == b"LATE":
            late_s = waiting / per_second - start_ms / 1000
            raise DeadlineTooNear(
                f"{waiting} requests wait in lane {name}, and {per_second:.3g} a second are started: "
                f"this one would not be within {start_ms / 1000:g} s",
                retry_after_s=min(MAX_RETRY_AFTER_S, max(1, math.ceil(late_s))),
            )
        return Queued(waiting, estimate_ms(waiting, per_second))

    async def cancel(
        self, model: str, lane: str, request_id: str, outcome: wire.Outcome = CANCELLED, *, leaves: str = ""
    ) -> str:
        """End it if it waits, tell its worker if it runs. 'settled', 'running', 'ended' or 'unknown'.

        `leaves` is the channel of a gateway that has stopped watching: if others watch, or the request is detached, it
        is 'kept'.
        """
        names = Keys(model)
        args: list[scripts.Value] = [request_id, outcome.state, wire.encode(outcome), self._keep_ms, names.prefix]
        args += [keys.CONTROL_PREFIX, wire.encode(wire.Control(id=request_id, expired=outcome is EXPIRED)), leaves]
        touched = [names.stream(lane), names.request(request_id), names.stats(lane)]
        async with reachable():
            reply: bytes = await scripts.run(self.redis, Call(scripts.CANCEL, touched, args))
        return reply.decode()

    async def watch(self, model: str, request_id: str, channel: str, *, detached: bool = False) -> str:
        """Have what it produces from now on told on this channel, too; what was produced before is in the log.

        Returns its state, 'cancelling' (it is not watched: it is about to end), or '' if nothing is known of it.
        """
        message = wire.encode(wire.Control(id=request_id, kind="watch"))
        args: list[scripts.Value] = [channel, keys.CONTROL_PREFIX, message, int(detached)]
        async with reachable():
            state: bytes = await scripts.run(self.redis, Call(scripts.WATCH, [Keys(model).request(request_id)], args))
        return state.decode()

    async def record(self, model: str, request_id: str) -> Record | None:
        """What is known of a request; None if nothing is (never accepted, forgotten, or data lost)."""
        fields = ["state", "attempt", "deaths", "tokens", "outcome"]
        async with reachable():
            found: list[Any] = await self.redis.hmget(Keys(model).request(request_id), fields)
        state, attempt, deaths, tokens, outcome = found
        if state is None:
            return None
        return Record(
            state=state.decode(),
            attempt=int(attempt or 0),
            deaths=int(deaths or 0),
            tokens=int(tokens) if tokens is not None else None,
            outcome=wire.decode(outcome, wire.Outcome) if outcome else None,
        )

    async def replay(self, model: str, request_id: str, after: int = 0) -> list[wire.Frame]:
        """The frames in the log beyond the first `after` tokens, in order."""
        async with reachable():
            entries: Any = await self.redis.xrange(Keys(model).log(request_id))
        frames = []
        for entry, fields in entries:
            if b"p" not in fields:
                continue
            attempt, position = (int(part) for part in entry.decode().split("-"))
            piece = wire.decode_members(fields[b"p"], wire.Piece)
            at = position - len(piece.ids)
            if at >= after:
                whole = structs.asdict(piece)
                frames.append(wire.Frame(id=request_id, attempt=attempt, at=at, **whole))
        return frames

    async def models(self) -> list[ServedModel]:
        """Every model that was served within the last day, and who serves it now."""
        async with reachable():
            seconds, micros = await self.redis.time()
            known: list[Any] = await self.redis.zrange(keys.MODELS, 0, -1, withscores=True)
            served = []
            for raw, seen_ms in known:
                name = raw.decode()
                workers = await self._live_workers(Keys(name))
                ago = max(0.0, seconds + micros / 1e6 - seen_ms / 1000)
                served.append(ServedModel(name=name, seen_s_ago=ago, workers=workers))
        return served

    async def lane_depths(self, model: str, lanes: list[str]) -> dict[str, int]:
        """Entries in each lane, waiting and running."""
        names = Keys(model)
        async with reachable(), self.redis.pipeline(transaction=False) as pipe:
            for lane in lanes:
                pipe.xlen(names.stream(lane))
            lengths = await pipe.execute()
        return dict(zip(lanes, lengths, strict=True))

    async def _live_workers(self, names: Keys) -> tuple[dict[str, str], ...]:
        ids: list[Any] = await self.redis.zrange(names.workers, 0, -1)
        if not ids:
            return ()
        async with self.redis.pipeline(transaction=False) as pipe:
            for raw in ids:
                pipe.hgetall(names.worker(raw.decode()))
            hashes: list[dict[bytes, bytes]] = await pipe.execute()
        return tuple(
            {"id": raw.decode(), **{k.decode(): v.decode() for k, v in fields.items()}}
            for raw, fields in zip(ids, hashes, strict=True)
            if fields
        )


def estimate_ms(ahead: int, per_second: float) -> int | None:
    """Time until so many requests have been started; None if the pace is not known."""
    if ahead == 0:
        return 0
    return math.ceil(ahead / per_second * 1000) if per_second > 0 else None


def _fields(submission: Submission) -> dict[str, scripts.Value]:
    """What the request hash holds from the start; what is not set is left out."""
    fields: dict[str, scripts.Value] = {"payload": wire.encode(submission.request)}
    if submission.meta is not None:
        fields["meta"] = wire.encode(submission.meta)
    if submission.detached:
        fields["detach"] = 1
    told = {"gw": submission.channel, "tenant": submission.tenant, "print": submission.fingerprint}
    return {**fields, **{name: value for name, value in told.items() if value}}


def retry_after_s(*, bound: int, per_second: float) -> int:
    """Seconds until about a twentieth of a full lane has drained, 1 to 60, at the rate that was measured.

    A lane that did not drain at all answers the longest.
    """
    if per_second <= 0:
        return MAX_RETRY_AFTER_S
    return min(MAX_RETRY_AFTER_S, max(1, math.ceil(max(1, bound / 20) / per_second)))
