"""Gateways, workers and the real openai client together, on the echo engine."""

import httpx
import pytest

from tests.support.fleet import free_port, gather, stream_text
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

SENTENCE = "the quick brown fox jumps over the lazy dog"


async def answer(client, prompt, **options):
    """The non-streamed completion."""
    return await client.chat.completions.create(model="echo", messages=[{"role": "user", "content": prompt}], **options)


async def test_twenty_requests_at_once_in_both_lanes_streamed_and_not(fleet):
    await fleet.worker()
    gateway = await fleet.gateway()
    async with gateway.client() as client:
        tiers = ["default", "flex"] * 5
        streamed = [stream_text(client, "echo", f"{n} {SENTENCE}", service_tier=tier) for n, tier in enumerate(tiers)]
        whole = [answer(client, f"{n} {SENTENCE}", service_tier=tier) for n, tier in enumerate(tiers)]

        results = await gather(*streamed, *whole)

        expected = [f"{n} {SENTENCE}" for n in range(10)]
        assert results[:10] == expected
        assert [one.choices[0].message.content for one in results[10:]] == expected
        assert [one.service_tier for one in results[10:]] == tiers


async def test_two_hundred_streams_over_two_gateways_and_two_workers(fleet):
    for _ in range(2):
        await fleet.worker(WORKER__SLOTS="32")
    gateways = [await fleet.gateway() for _ in range(2)]

    async with gateways[0].client() as first, gateways[1].client() as second:
        clients = [first, second]
        texts = await gather(*(stream_text(clients[n % 2], "echo", f"{n} {SENTENCE}") for n in range(200)))

    assert texts == [f"{n} {SENTENCE}" for n in range(200)]
    for gateway in gateways:
        assert await gateway.metric("busway_requests_total", outcome="stop") == 100
        assert await gateway.metric("busway_cancels_sent_total") == 0


async def test_bulk_moves_while_interactive_keeps_every_slot_busy(fleet):
    await fleet.worker(WORKER__SLOTS="2", WORKER__ECHO__STEP_MS="2")
    gateway = await fleet.gateway()
    async with gateway.client() as client:
        order = []

        async def ask(tier):
            order.append((await answer(client, SENTENCE, service_tier=tier)).service_tier)

        await gather(*(ask("default") for _ in range(60)), *(ask("flex") for _ in range(4)))

        last_interactive = len(order) - 1 - order[::-1].index("default")
        assert order.count("flex") == 4
        assert order.index("flex") < last_interactive, "bulk moved only when interactive was done"


async def test_a_client_that_leaves_frees_its_slot_streamed_or_not(fleet):
    await fleet.worker(WORKER__SLOTS="2", WORKER__ECHO__STEP_MS="5")
    gateway = await fleet.gateway()
    messages = [{"role": "user", "content": SENTENCE}]
    endless = {"model": "echo", "messages": messages, "max_tokens": 2000, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=gateway.url) as plain, gateway.client() as client:
        async with plain.stream("POST", "/v1/chat/completions", json={**endless, "stream": True}) as response:
            async for line in response.aiter_lines():
                if "quick" in line:
                    break
        with pytest.raises(httpx.ReadTimeout):
            await plain.post("/v1/chat/completions", json=endless, timeout=0.5)

        await wait_until(lambda: _cancels(gateway, 2), "two cancels")
        assert (await answer(client, SENTENCE)).choices[0].message.content == SENTENCE


async def _cancels(gateway, count):
    return await gateway.metric("busway_cancels_sent_total") == count


async def test_the_first_request_that_a_gateway_takes_is_answered(fleet):
    """Whoever shares a port with gateways that are ready meets one that has only just started."""
    await fleet.worker()
    for _ in range(4):
        port = free_port()
        fleet.start("gateway", GATEWAY__PORT=str(port))
        body = {"model": "echo", "messages": [{"role": "user", "content": SENTENCE}]}

        async def answered(port=port, body=body):
            async with httpx.AsyncClient() as plain:
                try:
                    return await plain.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=body)
                except httpx.ConnectError:
                    return None  # it does not listen yet

        response = await wait_until(answered, "the first answer")
        assert response.status_code == 200


async def test_a_killed_gateway_s_clients_are_served_by_the_other(fleet):
    await fleet.worker()
    first, second = [await fleet.gateway() for _ in range(2)]
    async with first.client() as client:
        assert await stream_text(client, "echo", SENTENCE) == SENTENCE

    first.process.kill()

    async with second.client() as client:
        assert await stream_text(client, "echo", SENTENCE) == SENTENCE
