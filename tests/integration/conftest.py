"""A pair of gateways before one scripted worker, for tests that leave one and come back at the other."""

from collections.abc import AsyncIterator

import httpx
import pytest

from shared.connection import connect_subscriber
from shared.sections import RedisSettings
from tests.support.fleet import Fleet, Gateway, free_port
from tests.support.resuming import caller, is_ready
from tests.support.waiting import wait_until
from tests.unit.gateway.scripted import scripted_worker


@pytest.fixture(scope="module")
def gateways(valkey, tmp_path_factory):
    """Two of them, with keys, so that what belongs to one tenant is nobody else's."""
    fleet = Fleet(valkey.url, tmp_path_factory.mktemp("gateways"))
    found = []
    for _ in range(2):
        port = free_port()
        env = {"GATEWAY__PORT": str(port), "GATEWAY__API_KEYS": "ours,theirs", "GATEWAY__DISCONNECT_GRACE_S": "1"}
        found.append(Gateway(fleet.start("gateway", **env), port))
    yield found
    fleet.stop()


@pytest.fixture
async def worker(gateways, redis, valkey):
    listener = connect_subscriber(RedisSettings(url=valkey.url))
    async with scripted_worker(redis, listener) as worker:
        for gateway in gateways:
            await wait_until(lambda gateway=gateway: is_ready(gateway), "the gateway to see the worker")
        yield worker
    await listener.aclose()


@pytest.fixture
async def here(gateways, worker) -> AsyncIterator[httpx.AsyncClient]:
    async with caller(gateways[0]) as http:
        yield http


@pytest.fixture
async def there(gateways, worker) -> AsyncIterator[httpx.AsyncClient]:
    async with caller(gateways[1]) as http:
        yield http
