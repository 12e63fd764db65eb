"""kill -9 of a worker in mid-stream: nobody notices more than a pause."""

import pytest

from tests.support.fleet import gather, stream_text
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.integration]

CLIENTS = 10
WORDS = 150


def prompt(number: int) -> str:
    return " ".join(f"{number}-{word}" for word in range(WORDS))


async def test_ten_streams_survive_the_death_of_their_worker(fleet):
    """Every client gets the text of an undisturbed run: none of it missing, none of it twice."""
    victim = await fleet.worker(WORKER__ECHO__STEP_MS="10")
    gateway = await fleet.gateway()
    async with gateway.client() as client:
        streams = [stream_text(client, "echo", prompt(number)) for number in range(CLIENTS)]

        async def kill_in_mid_stream():
            await wait_until(lambda: _streaming(gateway), "all clients to stream")
            await fleet.worker(WORKER__ECHO__STEP_MS="2")
            victim.kill()

        *texts, _ = await gather(*streams, kill_in_mid_stream())

        assert texts == [prompt(number) for number in range(CLIENTS)]
        survivor = fleet.processes[-1]
        assert len(survivor.events("request.resumed")) == CLIENTS


async def _streaming(gateway):
    return await gateway.metric("busway_generation_tokens_total") >= 3 * CLIENTS


async def test_streams_of_three_workers_killed_one_after_another_end_on_the_fourth(fleet):
    workers = [await fleet.worker(WORKER__ECHO__STEP_MS="15", WORKER__SLOTS="32") for _ in range(4)]
    gateway = await fleet.gateway()
    async with gateway.client() as client:
        streams = [stream_text(client, "echo", prompt(number)) for number in range(30)]

        async def kill_three():
            for count, victim in enumerate(workers[:3], 1):
                await wait_until(lambda count=count: _produced(gateway, 400 * count), "streams to go on")
                victim.kill()

        *texts, _ = await gather(*streams, kill_three())

        assert texts == [prompt(number) for number in range(30)]


async def _produced(gateway, tokens):
    return await gateway.metric("busway_generation_tokens_total") >= tokens
