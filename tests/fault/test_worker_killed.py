"""kill -9 of a worker in mid-stream: nobody notices more than a pause."""

import pytest

from tests.support.fleet import gather, stream_text
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.integration]

CLIENTS = 10
WORDS = 150  # at the paces below: longer than a worker takes to start


def prompt(number: int) -> str:
    return " ".join(f"{number}-{word}" for word in range(WORDS))


async def test_ten_streams_survive_the_death_of_their_worker(fleet):
    """Every client gets the text of an undisturbed run: none of it missing, none of it twice."""
    victim = await fleet.worker(WORKER__ECHO__STEP_MS="10")
    gateway = await fleet.gateway()
    seen = [[] for _ in range(CLIENTS)]
    async with gateway.client() as client:
        streams = [stream_text(client, "echo", prompt(number), seen[number]) for number in range(CLIENTS)]

        async def kill_in_mid_stream():
            await wait_until(lambda: min(map(len, seen)) >= 3, "all clients to have some text")
            await fleet.worker(WORKER__ECHO__STEP_MS="2")
            victim.kill()

        *texts, _ = await gather(*streams, kill_in_mid_stream())

    assert texts == [prompt(number) for number in range(CLIENTS)]
    survivor = fleet.processes[-1]
    assert len(survivor.events("request.resumed")) == CLIENTS
