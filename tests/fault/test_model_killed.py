"""kill -9 of a worker that runs the real model."""

import pytest

from shared.sections import DEFAULT_MODEL
from tests.support.fleet import gather, stream_text
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.integration, pytest.mark.model, pytest.mark.timeout(600)]

CLIENTS = 10
ENV = {"WORKER__ENGINE": "continuous", "WORKER__SLOTS": "16", "WORKER__MAX_MODEL_LEN": "256", "WORKER__LEASE_S": "4"}


def ask(client, number, seen=None):
    """Greedy for even numbers, seeded sampling for odd ones."""
    return stream_text(
        client,
        DEFAULT_MODEL,
        f"Tell me a story about the number {number}.",
        seen,
        max_tokens=40,
        temperature=number % 2,
        seed=number,
    )


async def test_a_second_worker_goes_on_with_the_same_words(fleet):
    """Ten clients, greedy and sampled, see exactly the text of an undisturbed run."""
    victim = await fleet.worker(**ENV)
    gateway = await fleet.gateway()
    seen = [[] for _ in range(CLIENTS)]
    async with gateway.client(timeout=300) as client:
        undisturbed = await gather(*(ask(client, number) for number in range(CLIENTS)))

        async def kill_in_mid_stream():
            await wait_until(lambda: min(map(len, seen)) >= 5, "all clients to have some text", timeout_s=120)
            victim.kill()
            await fleet.worker(**ENV)

        *texts, _ = await gather(
            *(ask(client, number, seen[number]) for number in range(CLIENTS)), kill_in_mid_stream()
        )

    assert texts == undisturbed
    assert len(fleet.processes[-1].events("request.resumed")) == CLIENTS
