"""Everything is restarted under load, one after the other, as a deployment does it: no client sees an error."""

import asyncio
import itertools
import signal

import httpx
import pytest

from tests.fault.drills import Seen, stream, words
from tests.support.fleet import Gateway, gather
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.integration]

CLIENTS = 6
PACE = {"WORKER__ECHO__STEP_MS": "5", "WORKER__DRAIN_S": "1"}


class Balancer:
    """As much of a load balancer as a rollout needs: what one gateway does not take goes to another."""

    def __init__(self, gateways: list[Gateway]) -> None:
        self.gateways = gateways
        self._turns = itertools.count()

    async def ask(self, http: httpx.AsyncClient, expected: str, **fields) -> Seen:
        while True:
            gateway = self.gateways[next(self._turns) % len(self.gateways)]
            seen = Seen(expected)
            try:
                await stream(At(http, gateway.url), seen, **fields)
            except httpx.ConnectError:
                continue  # its port is closed
            if "draining" in seen.error and not seen.text:
                continue
            return seen


class At:
    """A client whose paths belong to one gateway."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url

    def stream(self, method: str, path: str, **options):
        return self._http.stream(method, self._url + path, **options)


async def stopped(process) -> None:
    process.signal(signal.SIGTERM)
    await wait_until(lambda: process.status is not None, f"{process.name} to stop", timeout_s=60)
    assert process.status == 0, process.log.read_text()[-2000:]


async def test_a_rolling_restart_is_not_noticed(own_fleet, broker):
    workers = [await own_fleet.worker(**PACE) for _ in range(2)]
    balancer = Balancer([await own_fleet.gateway(), await own_fleet.gateway()])
    over, seen = asyncio.Event(), []

    async def client(number: int) -> None:
        async with httpx.AsyncClient(timeout=60) as http:
            for turn in itertools.count():
                lane = {"service_tier": "flex"} if turn % 2 else {}
                seen.append(await balancer.ask(http, words(number * 10_000 + turn, 60), **lane))
                if over.is_set():
                    return

    async def roll() -> None:
        await wait_until(lambda: len(seen) >= CLIENTS, "the load to run")
        for worker in workers:
            await stopped(worker)
            await own_fleet.worker(**PACE)
        for place in range(2):
            await stopped(balancer.gateways[place].process)
            balancer.gateways[place] = await own_fleet.gateway()
        broker.stop()
        broker.start()
        before = len(seen)
        await wait_until(lambda: len(seen) >= before + CLIENTS, "the load to go on")
        over.set()

    await gather(roll(), *(client(number) for number in range(CLIENTS)))

    assert [(one.error, one.text) for one in seen if not one.is_exact] == []
