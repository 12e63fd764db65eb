"""What an operator, or a client that comes back, may know of one request."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis

from shared import scripts, wire
from shared.broker import estimate_ms
from shared.connection import reachable
from shared.keys import Keys
from shared.scripts import Call

MOST_COUNTED = 1_000
"""Entries that are counted ahead of a request at most; the place of one further back is reckoned."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a request is."""

    model: str
    lane: str
    state: str
    tenant: str
    meta: wire.Meta | None
    """None for a part that is not the first."""


@dataclass(frozen=True, slots=True)
class Inspection:
    """One request (or part of one), as Redis has it now. Times in ms."""

    id: str
    model: str
    lane: str
    state: wire.State
    attempts: int
    deaths: int
    tokens: int
    """Produced so far."""
    worker: str
    """Who runs it; empty: nobody."""
    watched: bool
    """Some gateway follows it."""
    detached: bool
    cancelling: bool
    """Its cancel is on its way to the worker."""
    ahead: int | None
    """Requests that wait before it; None if it does not wait. Reckoned from `MOST_COUNTED` on: those that were
    cancelled behind it then count as if they had been ahead."""
    waiting: int
    """Requests that wait in its lane."""
    starts_in_ms: int | None
    age_ms: int
    queued_ms: int | None
    """How long it waited for its first worker; None if it has not been started."""
    queue_timeout_in_ms: int | None
    deadline_in_ms: int | None
    """Time left; None once it has ended."""
    outcome: wire.Outcome | None


class Inspector:
    """Reads; never changes anything. BrokerUnavailable if Redis does not answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def find(self, request_id: str, models: Sequence[str]) -> Found | None:
        """The request of this id among the models'; None if there is none."""
        async with reachable(), self._redis.pipeline(transaction=False) as pipe:
            for model in models:
                pipe.hmget(Keys(model).request(request_id), ["lane", "state", "tenant", "meta"])
            rows: list[Any] = await pipe.execute() if models else []
        for model, (lane, state, tenant, meta) in zip(models, rows, strict=True):
            if lane is not None:
                known = wire.decode(meta, wire.Meta) if meta else None
                return Found(model, lane.decode(), state.decode(), (tenant or b"").decode(), known)
        return None

    async def inspect(self, model: str, lane: str, request_id: str) -> Inspection | None:
        """None if nothing is known of it."""
        names = Keys(model)
        touched = [names.stream(lane), names.request(request_id), names.stats(lane), names.log(request_id)]
        async with reachable():
            reply = await scripts.run(self._redis, Call(scripts.INSPECT, touched, [MOST_COUNTED]))
        now, ahead, waiting, rate_mhz, logged, pairs = reply
        fields = dict(zip((name.decode() for name in pairs[::2]), pairs[1::2], strict=True))
        if not fields:
            return None
        state = fields["state"].decode()
        waits, ended = state in {"queued", "parked"}, state in wire.TERMINAL
        outcome = fields.get("outcome")
        return Inspection(
            id=request_id,
            model=model,
            lane=lane,
            state=state,
            attempts=int(fields.get("attempt", 0)),
            deaths=int(fields.get("deaths", 0)),
            tokens=int(fields["tokens"]) if "tokens" in fields else logged,
            worker=fields.get("owner", b"").decode() if state == "running" else "",
            watched=bool(fields.get("gw")),
            detached="detach" in fields,
            cancelling="cx" in fields and not ended,
            ahead=ahead if waits else None,
            waiting=waiting,
            starts_in_ms=estimate_ms(ahead, rate_mhz / 1000) if waits else None,
            age_ms=now - int(fields["queued"]),
            queued_ms=int(fields["waited"]) if "waited" in fields else None,
            queue_timeout_in_ms=int(fields["expires"]) - now if state == "queued" else None,
            deadline_in_ms=None if ended else int(fields["deadline"]) - now,
            outcome=wire.decode(outcome, wire.Outcome) if outcome else None,
        )
