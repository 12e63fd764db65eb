"""What remains when a storm is over: nothing should."""

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
from redis.asyncio import Redis

from shared.broker import Broker
from shared.keys import Keys, control_channel
from shared.wire import TERMINAL
from tests.fault.storm.clients import MODEL
from tests.fault.storm.ledger import Ledger
from tests.fault.storm.parts import Keeper, Part
from tests.support.fleet import Process
from tests.support.stores import immortal_keys

LANES = ("interactive", "bulk")
POOL = 40
"""Connections to the broker that a gateway may open beyond those that it has at its start."""
EXPECTED_ERRORS = frozenset({"engine.stuck"})
"""What a process may log as an error: one that was stopped for long finds that it stood still."""


class Remains:
    """Looks at the broker and at the processes; each look is a list of complaints."""

    def __init__(self, redis: Redis, keeper: Keeper, urls: list[str], newer_ids: list[str]) -> None:
        self._redis = redis
        self._keeper = keeper
        self._urls = urls
        self._newer_ids = newer_ids
        self._keys = Keys(MODEL)
        self._broker = Broker(redis, keep_ms=1)
        self.descriptors = 0
        """What a gateway holds open at its start."""

    def measure(self) -> None:
        self.descriptors = max((len(descriptors(part)) for part in self._keeper.gateways), default=0)

    async def all(self) -> list[str]:
        """Complaints of everything; what is wrong now may be right in a moment."""
        looks: list[Callable[[], Awaitable[list[str]]]] = [
            self._lanes, self._requests, self._immortal, self._workers, self._channels, self._gateways,
        ]  # fmt: skip
        return [complaint for look in looks for complaint in await look()]

    async def _lanes(self) -> list[str]:
        lengths = {lane: await self._redis.xlen(self._keys.stream(lane)) for lane in LANES}
        tokens = {lane: await self._redis.hget(self._keys.stats(lane), "tokens") for lane in LANES}
        found = [f"lane {lane} holds {length} entries" for lane, length in lengths.items() if length]
        return found + [f"lane {lane} counts {int(some)} tokens" for lane, some in tokens.items() if int(some or 0)]

    async def _requests(self) -> list[str]:
        states: Counter[str] = Counter()
        async for key in self._redis.scan_iter(self._keys.request("*"), count=1000):
            state = await self._redis.hget(key, "state")
            states[(state or b"none").decode()] += 1
        return [f"{count} requests are {state}" for state, count in states.items() if state not in TERMINAL]

    async def _immortal(self) -> list[str]:
        return [f"{key.decode()} lives for ever" for key in await immortal_keys(self._redis)]

    async def _workers(self) -> list[str]:
        found, ids = [], [raw.decode() for raw in await self._redis.zrange(self._keys.workers, 0, -1)]
        if len(ids) != len(self._keeper.workers):
            found.append(f"{len(ids)} workers are known, {len(self._keeper.workers)} run")
        for worker in ids:
            told = await self._redis.hgetall(self._keys.worker(worker))
            if told.get(b"free_slots") != told.get(b"slots"):
                found.append(f"worker {worker} has {told.get(b'free_slots')} of {told.get(b'slots')} slots free")
        return found

    async def _channels(self) -> list[str]:
        """Those of the processes that live, each with one listener; the bell with all workers."""
        ids = [raw.decode() for raw in await self._redis.zrange(self._keys.workers, 0, -1)]
        channels = [raw.decode() for raw in await self._redis.pubsub_channels()]
        gateways = [one for one in channels if one.startswith("bw:gw:")]
        expected = {self._keys.bell, *map(control_channel, ids), *gateways}
        found = [f"channels {sorted(set(channels) ^ expected)}"] if set(channels) != expected else []
        if len(gateways) != len(self._urls):
            found.append(f"{len(gateways)} gateways listen: {gateways}")
        for channel, count in await self._redis.pubsub_numsub(*channels):
            wanted = len(ids) if channel.decode() == self._keys.bell else 1
            found += [f"{count} listen to {channel.decode()}"] if count != wanted else []
        return found

    async def _gateways(self) -> list[str]:
        found = []
        async with httpx.AsyncClient(trust_env=False) as http:
            for url in self._urls:
                try:
                    ready, metrics = await http.get(f"{url}/ready"), await http.get(f"{url}/metrics")
                except httpx.HTTPError as error:
                    found.append(f"{url} does not answer: {error!r}")
                    continue
                found += [f"{url} is not ready: {ready.text}"] if ready.status_code != 200 else []
                lines = [line for line in metrics.text.splitlines() if line.startswith("busway_requests_in_flight{")]
                in_flight = sum(float(line.rsplit(" ", 1)[1]) for line in lines)
                found += [f"{url} follows {in_flight:g} requests"] if in_flight else []
        for part in self._keeper.gateways:
            opened = descriptors(part)
            if len(opened) > self.descriptors + POOL:
                found.append(f"{part.name} holds {len(opened)} descriptors, {self.descriptors} at its start: {opened}")
        return found

    async def contradictions(self, ledger: Ledger) -> list[str]:
        """Where the broker's own record says otherwise than the clients saw, or a newer version was misunderstood."""
        found = []
        for entry in ledger.entries:
            if not entry.is_accepted:
                continue
            record = await self._broker.record(MODEL, entry.id)
            if record is None or record.state not in TERMINAL:
                found.append(f"request {entry.id} is {record and record.state}")
            elif entry.is_over and not entry.error and (record.state, record.tokens) != ("done", entry.ask.words):
                found.append(f"request {entry.id} was told whole, and is {record.state} at {record.tokens} tokens")
        for request_id in self._newer_ids:
            record = await self._broker.record(MODEL, request_id)
            error = record.outcome.error if record and record.outcome else None
            if error is None or "newer version" not in error.message:
                found.append(f"{request_id} of a newer version ended as {record}")
        return found


def descriptors(part: Part) -> list[str]:
    """What the files are that a process holds open; empty where the system does not tell."""
    found = []
    for link in Path(f"/proc/{part.pid}/fd").glob("*"):
        try:
            found.append(str(link.readlink()))
        except OSError:  # it was closed while we looked
            continue
    return found


def complaints_in_logs(processes: list[Process]) -> list[str]:
    """Errors that processes logged: a defect says so there, if nowhere else."""
    found = []
    for process in processes:
        for line in process.log.read_text(errors="replace").splitlines():
            told = json.loads(line) if line.startswith("{") else {"event": line, "level": "raw"}
            if told.get("level") in {"error", "critical", "raw"} and told["event"] not in EXPECTED_ERRORS:
                found.append(f"{process.name}: {line[:1500]}")
    return found
