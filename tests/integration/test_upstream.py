"""The upstream engine between two real fleets: what happens to the inner one is seen, or not, at the outer one."""

import openai
import pytest

from shared.cli.valkey import Valkey
from tests.support.fleet import Fleet, gather, stream_text
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

WORDS = " ".join(f"word-{number}" for number in range(150))


@pytest.fixture
def inner(tmp_path):
    """A fleet on a broker of its own."""
    folder = tmp_path / "inner"
    folder.mkdir()
    broker = Valkey(folder / "valkey")
    broker.start()
    started = Fleet(broker.url, folder)
    yield started
    started.stop()
    broker.stop()


async def relay(fleet, gateway):
    """A worker of the outer fleet that asks this gateway of the inner one."""
    return await fleet.worker(
        WORKER__ENGINE="upstream",
        WORKER__MODEL="served",
        WORKER__SLOTS="4",
        WORKER__UPSTREAM__URL=f"{gateway.url}/v1",
        WORKER__UPSTREAM__MODEL="echo",
    )


async def in_flight(gateway):
    return await gateway.metric("busway_requests_in_flight")


async def test_a_client_that_leaves_is_felt_upstream(fleet, inner):
    await inner.worker(WORKER__ECHO__STEP_MS="20")
    upstream = await inner.gateway(GATEWAY__DISCONNECT_GRACE_S="0")
    await relay(fleet, upstream)
    gateway = await fleet.gateway(GATEWAY__DISCONNECT_GRACE_S="0")
    async with gateway.client() as client:
        stream = await client.chat.completions.create(
            model="served", messages=[{"role": "user", "content": WORDS}], stream=True
        )
        await anext(aiter(stream))
        assert await in_flight(upstream) == 1

        await stream.close()

        await wait_until(lambda: is_cancelled(upstream), "the upstream to be rid of the request")
    assert await in_flight(upstream) == 0


async def is_cancelled(gateway):
    return await gateway.metric("busway_cancels_sent_total", reason="disconnect") == 1


async def test_an_upstream_that_is_killed_in_mid_stream_is_replaced_by_another(fleet, inner):
    await inner.worker(WORKER__ECHO__STEP_MS="10", WORKER__SLOTS="32")
    upstreams = [await inner.gateway(), await inner.gateway()]
    workers = [await relay(fleet, upstream) for upstream in upstreams]
    gateway = await fleet.gateway()
    seen = [[], [], []]
    async with gateway.client() as client:
        streams = [stream_text(client, "served", f"{n} {WORDS}", seen[n]) for n in range(3)]

        async def kill_the_busiest():
            await wait_until(lambda: min(map(len, seen)) >= 5, "all clients to have some text")
            busy = [await in_flight(one) for one in upstreams]
            upstreams[busy.index(max(busy))].process.kill()
            return workers[busy.index(max(busy))], max(busy)

        *texts, (worker, hit) = await gather(*streams, kill_the_busiest())

    assert texts == [f"{n} {WORDS}" for n in range(3)]
    assert hit >= 1
    assert worker.status is None
    assert worker.events("upstream.failed")
    assert worker.events("upstream.away")


async def test_a_refusal_of_the_upstream_reaches_the_client(fleet, inner):
    await inner.worker(WORKER__MAX_MODEL_LEN="20")
    await relay(fleet, await inner.gateway())
    gateway = await fleet.gateway()
    async with gateway.client() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="served", messages=[{"role": "user", "content": WORDS}])

    assert refused.value.code == "context_length_exceeded"
    assert "20 tokens" in refused.value.message
