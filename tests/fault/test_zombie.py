"""A worker that is stopped for longer than its lease, and then goes on as if nothing had happened."""

import asyncio
import signal

import pytest

from shared.keys import Keys
from tests.support.fleet import gather, stream_text
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.integration]

CLIENTS = 6
WORDS = 25
PACE = {"WORKER__ECHO__STEP_MS": "150"}
"""Almost always a signal finds the worker within a step, whose tokens it then has to tell."""
ROUNDS = 3


def prompt(number: int) -> str:
    return " ".join(f"{number}-{word}" for word in range(WORDS))


async def test_a_zombie_changes_no_client_s_text_and_counts_what_it_was_refused(fleet, redis):
    gateway = await fleet.gateway(needs_model=False)
    refused = 0
    async with gateway.client() as client:
        for _ in range(ROUNDS):  # by chance it is stopped between two steps, and then has nothing to tell
            refused = refused or await refused_to_a_zombie(fleet, client, redis)

    assert refused > 0


async def test_a_worker_that_stood_still_for_many_leases_goes_on(fleet, redis):
    """Its step took as long as if its engine hung, but the engine is well."""
    worker = await fleet.worker(WORKER__LEASE_S="0.5", **PACE)
    gateway, seen = await fleet.gateway(), []

    async def stop_and_wake():
        await wait_until(lambda: len(seen) >= 2, "the client to have some text")
        worker.signal(signal.SIGSTOP)
        since, _ = await redis.time()
        await wait_until(lambda: is_past(redis, since + 3), "many leases to be over")
        worker.signal(signal.SIGCONT)

    async with gateway.client() as client:
        text, _ = await gather(stream_text(client, "echo", prompt(0), seen), stop_and_wake())

    assert text == prompt(0)
    assert worker.status is None


async def test_a_worker_whose_engine_hangs_ends(fleet):
    worker = await fleet.worker(WORKER__LEASE_S="0.5", WORKER__ECHO__STEP_MS="60000")
    gateway = await fleet.gateway()
    async with gateway.client() as client:
        stream = asyncio.create_task(stream_text(client, "echo", prompt(0)))

        await wait_until(lambda: worker.status is not None, "the process to end")

        stream.cancel()
    assert worker.status == 1


async def is_past(redis, seconds: int) -> bool:
    now, _ = await redis.time()
    return now >= seconds


async def refused_to_a_zombie(fleet, client, redis) -> int:
    """What a worker says was refused to it after another had taken over; all clients get their texts."""
    zombie, seen = await fleet.worker(**PACE), [[] for _ in range(CLIENTS)]
    streams = [stream_text(client, "echo", prompt(number), seen[number]) for number in range(CLIENTS)]

    async def stop_and_wake():
        await wait_until(lambda: min(map(len, seen)) >= 2, "all clients to have some text")
        heir = await fleet.worker(**PACE)
        zombie.signal(signal.SIGSTOP)
        await wait_until(lambda: len(heir.events("request.resumed")) == CLIENTS, "another worker to take over")
        zombie.signal(signal.SIGCONT)
        return heir

    *texts, heir = await gather(*streams, stop_and_wake())
    told = await wait_until(lambda: heartbeat(redis, zombie), "the zombie to be without work")

    assert texts == [prompt(number) for number in range(CLIENTS)]
    for worker in (zombie, heir):
        assert worker.status is None
        worker.kill()
    return int(told[b"refused"])


async def heartbeat(redis, worker) -> dict[bytes, bytes]:
    """What an idle worker says of itself; empty while it has work or is silent."""
    async for key in redis.scan_iter(Keys("echo").worker(f"*:{worker.child.pid}:*")):
        told = await redis.hgetall(key)
        if told.get(b"free_slots") == told.get(b"slots"):
            return told
    return {}
