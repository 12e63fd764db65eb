"""Fixtures that many tests share: one real broker for the session, emptied for each test."""

import pytest

from shared.cli.valkey import Valkey
from shared.connection import connect
from shared.sections import RedisSettings
from tests.support.fleet import Fleet
from tests.support.stores import emptied


@pytest.fixture(scope="session")
def valkey(tmp_path_factory):
    """A real server for the whole session."""
    server = Valkey(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def redis(valkey):
    """A client of the real server, empty at the start; no unbounded key may be left without a TTL."""
    async with emptied(connect(RedisSettings(url=valkey.url))) as client:
        yield client


@pytest.fixture
def fleet(valkey, redis, tmp_path):
    """Real processes around the real broker; all of them are gone afterwards."""
    started = Fleet(valkey.url, tmp_path)
    yield started
    started.stop()
