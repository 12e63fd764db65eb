"""Desks over each store that the contract must hold on; the real engine, loaded once."""

import fakeredis
import pytest

from shared.connection import connect
from shared.lanes import defaults
from shared.settings import RedisSettings, WorkerSettings, load
from tests.support.desk import Desk
from tests.support.engines import MAX_MODEL_LEN, SLOTS
from tests.support.stores import emptied


def client_of(store: str, request: pytest.FixtureRequest):
    if store == "fakeredis":
        return fakeredis.FakeAsyncRedis(protocol=2)
    return connect(RedisSettings(url=request.getfixturevalue("valkey").url))


@pytest.fixture(params=["valkey", "fakeredis"])
async def desk(request):
    """On a real server, and on the emulation: what passes on both uses no exotic command."""
    async with emptied(client_of(request.param, request)) as client:
        yield Desk(client)


@pytest.fixture
async def real_desk(request):
    """On the real server only: processes, memory, persistence and pub/sub connections are nothing to emulate."""
    async with emptied(client_of("valkey", request)) as client:
        yield Desk(client)


@pytest.fixture(scope="session")
def continuous():
    pytest.importorskip("torch")
    from worker.engines.continuous.engine import ContinuousEngine

    # One thread: several wait for each other at every operation, which takes for ever on a machine that is busy.
    settings = WorkerSettings(slots=SLOTS, max_model_len=MAX_MODEL_LEN, prefill_chunk_tokens=24, threads=1)
    made = ContinuousEngine.load(settings, load().cache_dir, defaults())
    yield made
    made.close()


@pytest.fixture(params=["echo", pytest.param("continuous", marks=pytest.mark.model)])
def engine(request):
    """An engine with nothing in it, before and after the test."""
    if request.param == "echo":
        from worker.engines.echo import EchoEngine

        made = EchoEngine(WorkerSettings(engine="echo", slots=SLOTS, max_model_len=MAX_MODEL_LEN))
    else:
        made = request.getfixturevalue("continuous")
    yield made
    assert made.free_slots == made.slots, "a test left a request in the engine"
    assert made.step() == []
