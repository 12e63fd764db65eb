"""A desk: one model's broker and workers over one store, and what can be seen of them from outside."""

from redis.asyncio import Redis

from shared import wire
from shared.broker import Broker, Submission
from shared.keys import GROUP, Keys
from shared.lanes import Lane
from shared.lease import Assignment, Emission, Ending, Lease, Room

MODEL = "m"
LANES = ["interactive", "bulk"]
KEEP_MS = 60_000
LEASE_MS = 30_000
GRACE_MS = 10_000
MANY = 10_000
HOUR_MS = 3_600_000

DONE = wire.Outcome(state="done", reason="stop", usage=wire.Usage(prompt_tokens=3, completion_tokens=2))
FAILED = wire.Outcome(state="failed", error=wire.ErrorInfo(code="internal_error", message="It broke."))


def request(prompt: str = "hello") -> wire.GenerateRequest:
    return wire.GenerateRequest(sampling=wire.Sampling(seed=7), prompt=prompt)


def submission(request_id: str, *, lane: str = "interactive", cost: int = 10, channel: str = "", **more) -> Submission:
    return Submission(
        id=request_id, model=MODEL, lane=lane, request=request(request_id), cost_tokens=cost, channel=channel, **more
    )


def piece(*ids: int) -> wire.Piece:
    return wire.Piece(ids=ids, text="".join(f"<{token}>" for token in ids))


class Desk:
    """Typed calls with the boring arguments filled in."""

    def __init__(self, redis: Redis):
        self.redis = redis
        self.keys = Keys(MODEL)
        self.broker = Broker(redis, keep_ms=KEEP_MS)

    def lease(self, worker: str) -> Lease:
        return Lease(self.redis, model=MODEL, worker_id=worker, keep_ms=KEEP_MS, grace_ms=GRACE_MS)

    async def enqueue(
        self, *ids: str, lane: str = "interactive", bounds: Lane | None = None, **more
    ) -> list[int | None]:
        """Queue each; the number of requests that were ahead of each."""
        bounds = bounds or Lane(max_queued=MANY)
        return [(await self.broker.enqueue(submission(one, lane=lane, **more), bounds)).ahead for one in ids]

    async def fetch(self, worker: str = "w1", total: int = MANY, **rooms: tuple[int, int]) -> list[Assignment]:
        """Each lane by (quota, cap); a lane that is not named may give everything."""
        asked = [Room(lane, *rooms.get(lane, (MANY, MANY))) for lane in LANES]
        return await self._begun(worker, (await self.lease(worker).fetch(asked, total)).assignments)

    async def hold(self, *ids: str, worker: str = "w1", **more) -> list[Assignment]:
        """Queue them and have the worker take all that waits."""
        await self.enqueue(*ids, **more)
        return await self.fetch(worker)

    async def claim(
        self,
        worker: str = "w2",
        total: int = MANY,
        *,
        lease_ms: int = LEASE_MS,
        max_deaths: int = 3,
        begins: bool = True,
    ) -> list[Assignment]:
        claimed = await self.lease(worker).claim(LANES, total, lease_ms=lease_ms, max_deaths=max_deaths)
        return await self._begun(worker, claimed) if begins else claimed

    async def _begun(self, worker: str, held: list[Assignment]) -> list[Assignment]:
        """A suspect among them has had its turn."""
        for one in held:
            if self.lease(worker).is_suspect(one):
                assert await self.lease(worker).begin(one)
        return held

    async def emit(self, worker: str, held: Assignment, at: int, *ids: int) -> bool:
        """Whether the piece was taken."""
        return not (await self.lease(worker).report([Emission(held, at, piece(*ids))], [])).refused

    async def finish(self, worker: str, held: Assignment, tokens: int = 0, outcome: wire.Outcome = DONE) -> bool:
        """Whether it ended so."""
        return not (await self.lease(worker).report([], [Ending(held, tokens, outcome)])).refused

    async def park(self, worker: str, held: Assignment) -> bool:
        return await self.lease(worker).park(held)

    async def beat(self, worker: str, *held: Assignment):
        return await self.lease(worker).beat({"slots": 4}, held, LANES, ttl_ms=LEASE_MS)

    async def cancel(self, request_id: str, lane: str = "interactive", *, leaves: str = "") -> str:
        return await self.broker.cancel(MODEL, lane, request_id, leaves=leaves)

    async def watch(self, request_id: str, channel: str) -> bool:
        return await self.broker.watch(MODEL, request_id, channel)

    async def state(self, request_id: str) -> str | None:
        record = await self.broker.record(MODEL, request_id)
        return record and record.state

    async def waiting(self) -> dict[str, int]:
        """Requests that wait in each lane, as the scripts count them."""
        return (await self.lease("nobody").fetch([Room(lane, 0, 0) for lane in LANES], 0)).waiting

    async def waiting_tokens(self, lane: str = "interactive") -> int:
        return int(await self.redis.hget(self.keys.stats(lane), "tokens") or 0)

    async def positions(self, request_id: str) -> list[str]:
        """The ids in the log, markers included."""
        return [entry.decode() for entry, _ in await self.redis.xrange(self.keys.log(request_id))]

    async def silence(self, *held: Assignment, owner: str = "w1") -> None:
        """Have their owner look as if it had said nothing for ten leases."""
        for one in held:
            stream = self.keys.stream(one.lane)
            await self.redis.xclaim(stream, GROUP, owner, 0, [one.entry], idle=10 * LEASE_MS, justid=True)

    async def be_gone(self, channel: str, for_ms: int = 2 * GRACE_MS, *, last_ms: int = 0) -> None:
        """Have nobody listened on a gateway's channel for so long, and have that been seen last so long ago."""
        now = await self.now_ms()
        await self.redis.hset(f"{self.keys.prefix}gone", channel, f"{now - for_ms}-{now - last_ms}")
        await self.redis.pexpire(f"{self.keys.prefix}gone", KEEP_MS)

    async def pace(self, served: float, busy_ms: int, *, lane: str = "interactive", ago_ms: int = -HOUR_MS) -> None:
        """So many left the lane in so long while others waited, and nobody since; by default time stands still."""
        mark = await self.now_ms() - ago_ms
        await self.redis.set(f"{self.keys.prefix}alive_since", 1, px=KEEP_MS)
        await self.redis.hset(self.keys.stats(lane), mapping={"served": served, "busy": busy_ms, "mark": mark})

    async def now_ms(self) -> int:
        seconds, micros = await self.redis.time()
        return seconds * 1000 + micros // 1000

    async def set(self, request_id: str, **fields: int | str) -> None:
        """Change fields of the request hash: how a test makes a deadline pass."""
        await self.redis.hset(self.keys.request(request_id), mapping=fields)
