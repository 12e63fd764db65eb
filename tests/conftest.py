"""Fixtures that many tests share: one real broker for the session, emptied for each test."""

import pytest

from shared.cli.valkey import Valkey
from shared.connection import connect
from shared.settings import RedisSettings
from tests.support.fleet import Fleet


@pytest.fixture(scope="session")
def valkey(tmp_path_factory):
    """A real server for the whole session."""
    server = Valkey(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def redis(valkey):
    """A client of the real server, which is empty at the start; afterwards no key may be left without a TTL.

    Lane streams are the one exception: they and their groups stay for the life of a fleet.
    """
    client = connect(RedisSettings(url=valkey.url))
    await client.flushall()
    yield client
    immortal = [
        key
        async for key in client.scan_iter()
        if await client.ttl(key) == -1 and b":q:" not in key and b":lane:" not in key
    ]
    await client.flushall()
    await client.aclose()
    assert immortal == [], f"keys without a TTL: {immortal}"


@pytest.fixture
def fleet(valkey, redis, tmp_path):
    """Real processes around the real broker; all of them are gone afterwards."""
    started = Fleet(valkey.url, tmp_path)
    yield started
    started.stop()
