"""One storm from its first process to its verdict."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from shared.connection import connect
from shared.sections import RedisSettings
from shared.tasks import stop
from tests.fault.storm import plan
from tests.fault.storm.breaker import Breaker
from tests.fault.storm.clients import Scene
from tests.fault.storm.clock import Clock, UnsteadyValkey
from tests.fault.storm.ledger import MAX_DEATHS, Ledger
from tests.fault.storm.parts import Keeper, Part
from tests.fault.storm.remains import Remains, complaints_in_logs
from tests.support.fleet import Fleet, free_port
from tests.support.proxy import Proxy, proxied
from tests.support.waiting import wait_until

WORKERS = 3
GATEWAYS = 2
CLIENTS = 16
ENDS_WITHIN_S = 60
"""After the last fault: what is under way."""
SETTLES_WITHIN_S = 40
"""After the last client: what nobody waits for any more."""
SETTINGS = {
    "BUSWAY_REDIS__TIMEOUT_S": "1",
    "BUSWAY_REDIS__ORPHAN_GRACE_S": f"{plan.ORPHAN_GRACE_S:g}",
    "BUSWAY_REDIS__REPLAY_TTL_S": "86400",
    "BUSWAY_GATEWAY__DISCONNECT_GRACE_S": f"{plan.DISCONNECT_GRACE_S:g}",
    "BUSWAY_GATEWAY__DRAIN_S": "1.5",
    "BUSWAY_GATEWAY__KEEPALIVE_S": "2",
    "BUSWAY_GATEWAY__HEADER_HOLD_S": "1",
    "BUSWAY_WORKER__LEASE_S": f"{plan.LEASE_S:g}",
    "BUSWAY_WORKER__DRAIN_S": "1.5",
    "BUSWAY_WORKER__SLOTS": "5",
    "BUSWAY_WORKER__MAX_DEATHS": f"{MAX_DEATHS}",
    "BUSWAY_WORKER__ECHO__STEP_MS": "15",
}


class Storm:
    """What there is for one storm."""

    def __init__(self, seed: int, seconds: float, folder: Path, say: Callable[[str], None]) -> None:
        self._seed = seed
        self._seconds = seconds
        self._folder = folder
        self._say = say
        self._ledger = Ledger()
        self._keeper = Keeper()
        self._valkey = UnsteadyValkey(folder / "valkey", Clock(folder))

    async def run(self) -> dict[str, object]:
        """The figures. All processes have ended when it returns or raises."""
        self._valkey.start()
        try:
            async with proxied(self._valkey.socket) as proxy:
                fleet = Fleet(proxy.url, self._folder, SETTINGS)
                keeping = None
                try:
                    urls = self._populate(fleet)
                    keeping = asyncio.create_task(self._keeper.run())
                    return await self._blow(proxy, fleet, urls)
                finally:
                    await stop([keeping] if keeping else [])
                    fleet.stop()
        finally:
            self._valkey.stop()

    def _populate(self, fleet: Fleet) -> list[str]:
        """The URLs of the gateways."""
        ports = [free_port() for _ in range(GATEWAYS)]
        for number in range(WORKERS):
            self._keeper.workers.append(Part(f"worker {number}", lambda: fleet.start("worker")))
        for number, port in enumerate(ports):
            start = lambda port=port: fleet.start("gateway", GATEWAY__PORT=str(port))  # noqa: E731
            self._keeper.gateways.append(Part(f"gateway {number}", start))
        return [f"http://127.0.0.1:{port}" for port in ports]

    async def _blow(self, proxy: Proxy, fleet: Fleet, urls: list[str]) -> dict[str, object]:
        redis = connect(RedisSettings(url=self._valkey.url))
        breaker = Breaker(self._keeper, self._valkey, proxy, redis, self._ledger)
        remains = Remains(redis, self._keeper, urls, breaker.newer_ids)
        try:
            await wait_until(lambda: _is_calm(remains.all), "the fleet to be complete", timeout_s=60)
            remains.measure()
            self._say(f"seed {self._seed}: {WORKERS} workers, {GATEWAYS} gateways, {CLIENTS} clients")
            await self._clients_in_the_wind(breaker, urls)
            with suppress(AssertionError):
                await wait_until(lambda: _is_calm(remains.all), "nothing to be left", timeout_s=SETTLES_WITHIN_S)
            left_over = await remains.all() + await remains.contradictions(self._ledger)
        finally:
            await redis.aclose()
        told = {"seed": self._seed, "seconds": self._seconds, **self._ledger.summary(), "kills": dict(breaker.done)}
        strange = self._keeper.strange + complaints_in_logs(fleet.processes)
        return {**told, "left_over": left_over, "strange": strange, "clock_was_set": self._valkey.clock.can_be_set}

    async def _clients_in_the_wind(self, breaker: Breaker, urls: list[str]) -> None:
        scene = Scene.of(self._seed, urls, self._ledger)
        crowd = asyncio.create_task(scene.crowd(CLIENTS))
        began = time.monotonic()
        try:
            await breaker.run(plan.faults(self._seed, self._seconds))
            await asyncio.wait([crowd], timeout=max(0.0, began + self._seconds - time.monotonic()))
            scene.is_open = False
            await asyncio.wait([crowd], timeout=ENDS_WITHIN_S)
            self._ledger.close()
            if crowd.done():
                crowd.result()
        finally:
            await stop([crowd])
            await scene.http.aclose()


async def _is_calm(look: Callable[[], Awaitable[list[str]]]) -> bool:
    return not await look()


def is_bad(figures: dict[str, object]) -> bool:
    """Something was lost, told twice or wrongly, left behind or broken."""
    faults = ("lost", "duplicated", "differing", "unexplained", "left_over", "strange")
    return any(figures[fault] for fault in faults)
