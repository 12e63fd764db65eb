"""Desks over each store that the contract must hold on; engines that take a while to start, started once."""

import asyncio
import importlib.util

import fakeredis
import pytest

from shared.cli.valkey import Valkey
from shared.connection import connect
from shared.lanes import defaults
from shared.sections import RedisSettings, WorkerSettings
from shared.settings import load
from tests.support.desk import Desk
from tests.support.engines import MAX_MODEL_LEN, SLOTS
from tests.support.fleet import Fleet
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


@pytest.fixture(scope="session")
def embedding():
    pytest.importorskip("torch")
    from worker.engines.embedding.engine import EmbeddingEngine

    settings = WorkerSettings(engine="embedding", slots=SLOTS, embed_batch_tokens=256, threads=1)
    made = EmbeddingEngine.load(settings, load().lanes, load().cache_dir)
    yield made
    made.close()


@pytest.fixture(scope="session")
def upstream(tmp_path_factory):
    """Relays to a gateway with a worker whose echo answers, on a broker of their own: tests empty the other one."""
    from worker.engines.upstream.engine import UpstreamEngine

    folder = tmp_path_factory.mktemp("upstream")
    broker = Valkey(folder / "valkey")
    broker.start()
    fleet = Fleet(broker.url, folder, {"BUSWAY_WORKER__MAX_MODEL_LEN": str(MAX_MODEL_LEN)})

    async def start():
        await fleet.worker(WORKER__SLOTS="32", WORKER__ECHO__STEP_MS="4")
        return await fleet.gateway()

    gateway = asyncio.run(start())
    settings = WorkerSettings(
        engine="upstream",
        model="echo",
        slots=SLOTS,
        max_model_len=MAX_MODEL_LEN,
        upstream={"url": f"{gateway.url}/v1"},
    )
    made = UpstreamEngine(settings)
    yield made
    made.close()
    fleet.stop()
    broker.stop()


@pytest.fixture(scope="session")
def vllm():
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vllm is not installed: it pins builds of torch and transformers of its own (busway[vllm])")
    from worker.engines.vllm.engine import VllmEngine

    settings = WorkerSettings(engine="vllm", slots=SLOTS, max_model_len=MAX_MODEL_LEN, dtype="float32")
    made = VllmEngine.load(settings, load().cache_dir)
    yield made
    made.close()


ENGINES = [
    "echo",
    pytest.param("continuous", marks=pytest.mark.model),
    pytest.param("upstream", marks=pytest.mark.integration),
    pytest.param("vllm", marks=pytest.mark.model),
]


@pytest.fixture(params=ENGINES)
def engine(request):
    """An engine with nothing in it, before and after the test."""
    if request.param == "echo":
        from worker.engines.echo import EchoEngine

        made = EchoEngine(WorkerSettings(engine="echo", slots=SLOTS, max_model_len=MAX_MODEL_LEN))
    else:
        made = request.getfixturevalue(request.param)
    yield made
    assert made.free_slots == made.slots, "a test left a request in the engine"
    assert made.step() == []
