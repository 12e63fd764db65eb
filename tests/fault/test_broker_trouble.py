"""Redis in trouble: everybody recovers alone, and who waits gets the answer or a clear error."""

import asyncio
import signal

import httpx
import pytest

from shared.connection import connect
from shared.keys import Keys
from shared.sections import RedisSettings
from tests.fault.drills import Seen, caller, stream, words
from tests.support.fleet import gather
from tests.support.proxy import proxied
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.integration]

STREAMS = 12


@pytest.fixture
async def admin(broker):
    async with connect(RedisSettings(url=broker.url)) as client:
        yield client


def prompts(count: int = 150) -> list[Seen]:
    return [Seen(words(number, count)) for number in range(STREAMS)]


def begun(seen: list[Seen]) -> bool:
    return all(len(one.times) >= 3 for one in seen)


async def test_a_server_that_takes_no_writes_for_a_while_costs_only_time(own_fleet, admin):
    """As after a failover, when the old primary has become a replica."""
    for _ in range(2):
        await own_fleet.worker(WORKER__ECHO__STEP_MS="10")
    gateway = await own_fleet.gateway()
    seen = prompts()
    async with caller(gateway) as http:

        async def demote() -> None:
            await wait_until(lambda: begun(seen), "all streams to have begun")
            await admin.replicaof("127.0.0.1", "1")
            refused = await http.post("/v1/chat/completions", json=ask("hello"))
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "redis_unavailable")
            assert "retry-after" in refused.headers
            assert (await http.get("/health")).status_code == 200
            await admin.replicaof("NO", "ONE")

        await gather(demote(), *(stream(http, one) for one in seen))

    assert [one.text for one in seen if not one.is_exact] == []


def ask(text: str) -> dict:
    return {"model": "echo", "messages": [{"role": "user", "content": text}]}


async def test_a_worker_cut_off_from_redis_stops_and_others_go_on(own_fleet, broker):
    """Its connections stay open and carry nothing: no error tells it."""
    async with proxied(broker.socket) as proxy:
        cut_off = await own_fleet.worker(REDIS__URL=proxy.url, REDIS__TIMEOUT_S="1", WORKER__ECHO__STEP_MS="10")
        gateway = await own_fleet.gateway()
        seen = prompts()
        async with caller(gateway) as http:

            async def cut() -> None:
                await wait_until(lambda: begun(seen), "all streams to have begun")
                await own_fleet.worker(WORKER__ECHO__STEP_MS="10")
                proxy.deafen()

            await gather(cut(), *(stream(http, one) for one in seen))

            assert [one.text for one in seen if not one.is_exact] == []
            await wait_until(lambda: is_registered(broker, 2), "the one that was cut off to be back")
    assert cut_off.status is None


async def is_registered(broker, count: int) -> bool:
    async with connect(RedisSettings(url=broker.url)) as client:
        return await client.zcard(Keys("echo").workers) == count


async def test_a_gateway_cut_off_from_redis_catches_up(own_fleet, broker):
    async with proxied(broker.socket) as proxy:
        await own_fleet.worker(WORKER__ECHO__STEP_MS="10")
        gateway = await own_fleet.gateway(REDIS__URL=proxy.url, REDIS__TIMEOUT_S="1")
        seen = prompts(300)
        async with caller(gateway) as http:

            async def cut() -> None:
                await wait_until(lambda: begun(seen), "all streams to have begun")
                proxy.deafen()

            await gather(cut(), *(stream(http, one) for one in seen))

    assert [one.text for one in seen if not one.is_exact] == []


async def test_lost_data_is_a_clear_error_and_new_requests_are_served(own_fleet, admin):
    """B096: FLUSHALL while idle and while loaded."""
    await own_fleet.worker(WORKER__ECHO__STEP_MS="20")
    gateway = await own_fleet.gateway()
    await admin.flushall()
    seen = prompts()
    async with caller(gateway) as http:
        assert await answered(http, "after a flush while idle")

        async def flush() -> None:
            await wait_until(lambda: begun(seen), "all streams to have begun")
            await admin.flushall()
            await wait_until(lambda: answered(http, "after a flush under load"), "a new request to be served")

        await gather(flush(), *(stream(http, one) for one in seen))

    assert {one.error for one in seen} == {"request_lost"}
    assert all(one.expected.startswith(one.text) for one in seen)


async def answered(http: httpx.AsyncClient, text: str) -> bool:
    answer = await http.post("/v1/chat/completions", json=ask(text))
    return answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"] == text


async def test_after_many_restarts_every_worker_still_takes_requests(own_fleet, broker):
    """B108: a worker that reconnects goes on consuming."""
    workers = [await own_fleet.worker(WORKER__SLOTS="1", WORKER__ECHO__STEP_MS="20") for _ in range(3)]
    gateway = await own_fleet.gateway()
    for _ in range(5):
        broker.kill()
        await asyncio.sleep(0.3)  # the pace of the trouble, not a wait
        broker.start()
    async with caller(gateway) as http:
        await wait_until(lambda: answered(http, "back"), "the fleet to serve again")
        seen = [Seen(words(number, 30)) for number in range(20)]
        await gather(*(stream(http, one) for one in seen))

    assert [one.text for one in seen if not one.is_exact] == []
    for worker in workers:
        worker.signal(signal.SIGTERM)
    for worker in workers:
        await wait_until(lambda worker=worker: worker.status == 0, "a worker to stop well")
        assert worker.events("worker.stopped")[0]["tokens"] > 0, "it took something after the restarts"


async def test_many_streams_need_few_connections(own_fleet, admin):
    """B113: waiting for a connection is no error, and their number is bounded."""
    await own_fleet.worker(WORKER__SLOTS="512", WORKER__ECHO__STEP_MS="5")
    gateway = await own_fleet.gateway()
    seen = [Seen(words(number, 20)) for number in range(500)]
    async with caller(gateway) as http:
        most = 0

        async def count() -> None:
            nonlocal most
            while not all(one.finishes for one in seen):
                most = max(most, len(await admin.client_list()))
                await asyncio.sleep(0.05)

        await gather(count(), *(stream(http, one) for one in seen))

    assert [one.error for one in seen if not one.is_exact] == []
    assert most < 64


async def test_a_request_that_waits_longer_than_a_lease_runs_once(own_fleet):
    """B100, B101: neither waiting nor running long makes a request look lost."""
    worker = await own_fleet.worker(WORKER__SLOTS="1", WORKER__LEASE_S="0.5", WORKER__ECHO__STEP_MS="30")
    gateway = await own_fleet.gateway()
    seen = [Seen(words(number, 60)) for number in range(3)]
    async with caller(gateway) as http:
        await gather(*(stream(http, one) for one in seen))

    assert [one.text for one in seen if not one.is_exact] == []
    assert worker.events("request.resumed") == []
