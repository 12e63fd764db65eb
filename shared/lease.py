"""The broker as a worker sees it: take requests, say what they produced, keep them, let them go."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from shared import keys, scripts, wire
from shared.broker import CANCELLED, EXPIRED
from shared.connection import reachable
from shared.errors import WireError
from shared.keys import Keys
from shared.scripts import Call

DEAD_LETTERS_KEPT = 1_000
MODELS_KEPT_S = 86_400

POISONED = wire.Outcome(
    state="failed",
    error=wire.ErrorInfo(code="worker_lost", message="Every worker that ran this request died; it was given up."),
)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A request that this worker owns, as one attempt."""

    lane: str
    entry: str
    id: str
    attempt: int
    request: wire.GenerateRequest | None
    """None if the payload or the log cannot be read here (a newer version); the request must be failed."""
    deadline_ms: int
    """Time left, from the moment of the call."""
    queued_ms: int
    """Time it waited before its first attempt."""
    deaths: int
    """Workers that died while they ran it."""
    position: int
    """Tokens that the log holds."""
    prior_ids: tuple[int, ...]
    """These tokens."""


@dataclass(frozen=True, slots=True)
class Room:
    """What a worker will take from one lane: its share first, and at most `cap`."""

    lane: str
    quota: int
    cap: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch brought, and what it left."""

    assignments: list[Assignment]
    waiting: dict[str, int]
    """Requests that still wait, by lane."""
    head_age_ms: dict[str, int]
    """Age of the oldest of them; 0 where nothing waits."""
    again: bool
    """Dead entries used the call up before it had all it asked for."""


@dataclass(frozen=True, slots=True)
class Emission:
    """A piece that a step produced for one owned request."""

    held: Assignment
    at: int
    piece: wire.Piece


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of one owned request."""

    held: Assignment
    tokens: int
    outcome: wire.Outcome


@dataclass(frozen=True, slots=True)
class Reported:
    """What the broker said to a report."""

    refused: tuple[Assignment, ...] = ()
    """No longer ours."""
    unwatched: tuple[Assignment, ...] = ()
    """Nobody reads these now: their next pieces may come in larger portions."""
    orphans: tuple[Assignment, ...] = ()
    """Whoever wanted these will not come back: cancel them."""


@dataclass(frozen=True, slots=True)
class Beat:
    """What a heartbeat found."""

    lost: tuple[Assignment, ...]
    """No longer ours: drop them without a word."""
    cancelled: tuple[Assignment, ...]


class Lease:
    """Typed calls for a worker's transitions on one model. BrokerUnavailable if Redis does not answer."""

    def __init__(
        self, redis: Redis, *, model: str, worker_id: str, keep_ms: int, grace_ms: int, alone_after: int = 2
    ) -> None:
        """`grace_ms`: a gateway that has been gone for longer will not come back for its requests.

        `alone_after`: a request that so many workers died of is given to one that runs nothing else.
        """
        self.redis = redis
        self.worker_id = worker_id
        self.keys = Keys(model)
        self._keep_ms = keep_ms
        self._grace_ms = grace_ms
        self._alone_after = alone_after
        self._ends: list[scripts.Value] = [keep_ms, wire.encode(EXPIRED), wire.encode(CANCELLED)]

    async def fetch(self, rooms: Sequence[Room], total: int) -> Fetched:
        """Up to `total` requests, lanes in the order of `rooms`."""
        args: list[scripts.Value] = [
            self.worker_id,
            self.keys.prefix,
            total,
            *self._ends,
            self._grace_ms,
            self._alone_after,
        ]
        for room in rooms:
            args += [room.quota, room.cap]
        lanes = [room.lane for room in rooms]
        async with reachable():
            reply = await scripts.run(self.redis, Call(scripts.FETCH, self._lane_keys(lanes), args))
        opened, waiting, ages, again = reply
        return Fetched(
            assignments=self._assignments(opened, lanes),
            waiting=dict(zip(lanes, waiting, strict=True)),
            head_age_ms=dict(zip(lanes, ages, strict=True)),
            again=bool(again),
        )

    def is_suspect(self, held: Assignment) -> bool:
        """It may be what the workers died of, and must run alone."""
        return held.deaths >= self._alone_after

    async def claim(self, lanes: Sequence[str], total: int, *, lease_ms: int, max_deaths: int) -> list[Assignment]:
        """Up to `total` requests whose owner has been silent for a lease, at most one suspect among them.

        Those that killed too many are given up.
        """
        args: list[scripts.Value] = [self.worker_id, self.keys.prefix, total, *self._ends, wire.encode(POISONED)]
        args += [self._grace_ms, lease_ms, max_deaths, DEAD_LETTERS_KEPT, self._alone_after]
        touched = [*self._lane_keys(lanes), self.keys.dead_letters]
        async with reachable():
            opened = await scripts.run(self.redis, Call(scripts.CLAIM, touched, args))
        return self._assignments(opened, lanes)

    async def report(self, emissions: Sequence[Emission], endings: Sequence[Ending]) -> Reported:
        """Log and publish the pieces, then end what ended, in one round trip."""
        calls = [self._emit(emissions)] if emissions else []
        calls += [self._finish(ending) for ending in endings]
        if not calls:
            return Reported()
        async with reachable():
            replies = await scripts.run_all(self.redis, calls)
        named = [tuple(emissions[number - 1].held for number in some) for some in replies.pop(0)] if emissions else []
        refused, unwatched, orphans = named or ((), (), ())
        refused += tuple(ending.held for ending, kept in zip(endings, replies, strict=True) if not kept)
        return Reported(refused, unwatched, orphans)

    async def begin(self, held: Assignment) -> bool:
        """Say that a suspect is about to run; until then it cannot be blamed. False if it is no longer ours."""
        args: list[scripts.Value] = [held.attempt, self.worker_id]
        async with reachable():
            return bool(await scripts.run(self.redis, Call(scripts.BEGIN, [self.keys.request(held.id)], args)))

    async def park(self, held: Assignment) -> bool:
        """Hand it over to any worker, with what its log holds. False if it was no longer ours."""
        touched = [self.keys.stream(held.lane), self.keys.request(held.id), self.keys.stats(held.lane)]
        args = [held.entry, held.attempt, self.keys.bell, held.lane, self.worker_id]
        async with reachable():
            return bool(await scripts.run(self.redis, Call(scripts.PARK, touched, args)))

    async def beat(
        self, fields: dict[str, str | int], held: Sequence[Assignment], lanes: Sequence[str], *, ttl_ms: int
    ) -> Beat:
        """Say that this worker lives (`fields` describe it) and renew the lease on what it holds."""
        numbers = {lane: number for number, lane in enumerate(lanes, 1)}
        has_suspect = any(self.is_suspect(one) for one in held)
        args: list[scripts.Value] = [self.worker_id, ttl_ms, self.keys.prefix, int(has_suspect), len(fields)]
        for pair in fields.items():
            args += pair
        for one in held:
            args += [numbers[one.lane], one.entry, one.id, one.attempt]
        touched = [self.keys.worker(self.worker_id), self.keys.workers, *(self.keys.stream(lane) for lane in lanes)]
        async with reachable():
            now, lost, cancelled = await scripts.run(self.redis, Call(scripts.HEARTBEAT, touched, args))
            async with self.redis.pipeline(transaction=False) as pipe:
                pipe.zadd(keys.MODELS, {self.keys.model: now})
                pipe.zremrangebyscore(keys.MODELS, "-inf", now - MODELS_KEPT_S * 1000)
                pipe.expire(keys.MODELS, MODELS_KEPT_S)
                # When memory is full this listing may go stale; what the heartbeat found must still be heard.
                await pipe.execute(raise_on_error=False)
        return Beat(tuple(held[n - 1] for n in lost), tuple(held[n - 1] for n in cancelled))

    async def leave(self) -> None:
        """Take this worker's name off the books. Its consumer records are dropped by `claim`, once they are empty."""
        async with reachable(), self.redis.pipeline(transaction=False) as pipe:
            pipe.delete(self.keys.worker(self.worker_id))
            pipe.zrem(self.keys.workers, self.worker_id)
            await pipe.execute()

    def _lane_keys(self, lanes: Sequence[str]) -> list[str]:
        return [*(self.keys.stream(lane) for lane in lanes), *(self.keys.stats(lane) for lane in lanes)]

    def _assignments(self, opened: list[Any], lanes: Sequence[str]) -> list[Assignment]:
        return [_assignment(lanes[int(number) - 1], fields) for number, *fields in opened]

    def _emit(self, emissions: Sequence[Emission]) -> Call:
        args: list[scripts.Value] = [self.keys.prefix, self._grace_ms, self.worker_id]
        for emission in emissions:
            held, piece = emission.held, emission.piece
            assert piece.ids, "a piece without tokens has no place in the log"
            args += [held.id, held.attempt, emission.at, len(piece.ids), wire.encode_members(piece)]
        return Call(scripts.EMIT, [self.keys.log(emission.held.id) for emission in emissions], args)

    def _finish(self, ending: Ending) -> Call:
        held = ending.held
        touched = [self.keys.stream(held.lane), self.keys.request(held.id), self.keys.log(held.id)]
        args: list[scripts.Value] = [held.id, held.entry, held.attempt, ending.tokens]
        args += [ending.outcome.state, wire.encode(ending.outcome), self._keep_ms, self.worker_id]
        return Call(scripts.FINISH, touched, args)


def _assignment(lane: str, opened: list[Any]) -> Assignment:
    """From what `open` in prelude.lua returns, the lane's number left off."""
    entry, request_id, attempt, payload, deadline_ms, queued_ms, deaths, position, logged = opened
    try:
        request = wire.decode(payload, wire.GenerateRequest)
        pieces = [wire.decode_members(members, wire.Piece) for members in logged]
    except WireError:
        request, pieces = None, []
    prior_ids = tuple(token for piece in pieces for token in piece.ids)
    if len(prior_ids) != position:
        request = None
    return Assignment(
        lane=lane,
        entry=entry.decode(),
        id=request_id.decode(),
        attempt=attempt,
        request=request,
        deadline_ms=deadline_ms,
        queued_ms=queued_ms,
        deaths=deaths,
        position=position,
        prior_ids=prior_ids,
    )
