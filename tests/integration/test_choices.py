"""Several choices, prompts, log-probabilities and embeddings over HTTP, with the real client."""

import asyncio

import openai
import pytest

from shared.keys import Keys
from tests.support.fleet import gather
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

WORDS = "the quick brown fox jumps"


async def test_choices_of_a_stream_are_told_apart_and_counted_once(fleet):
    """B027, B069."""
    await fleet.worker(WORKER__ECHO__STEP_MS="2")
    gateway = await fleet.gateway()
    async with gateway.client() as client:
        stream = await client.chat.completions.create(
            model="echo",
            messages=[{"role": "user", "content": WORDS}],
            n=3,
            stream=True,
            stream_options={"include_usage": True},
        )
        texts, reasons, usage = {0: "", 1: "", 2: ""}, [], None
        async for chunk in stream:
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                if choice.finish_reason:
                    reasons.append((choice.index, choice.finish_reason))

    assert set(texts.values()) == {WORDS}
    assert sorted(reasons) == [(0, "stop"), (1, "stop"), (2, "stop")]
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 15)


async def test_prompts_and_their_choices_stand_in_order(fleet):
    await fleet.worker()
    gateway = await fleet.gateway()
    async with gateway.client() as client:
        answer = await client.completions.create(model="echo", prompt=["a b", "c d e"], n=2, max_tokens=9)

    assert [(one.index, one.text) for one in answer.choices] == [(0, "a b"), (1, "a b"), (2, "c d e"), (3, "c d e")]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 10)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_the_slots_of_all_its_choices(fleet, stream):
    await fleet.worker(WORKER__SLOTS="8", WORKER__ECHO__STEP_MS="50")
    gateway = await fleet.gateway()
    async with gateway.client() as client:
        asked = client.completions.create(model="echo", prompt=WORDS, n=8, max_tokens=500, stream=stream,
                                          extra_body={"ignore_eos": True})  # fmt: skip
        task = asyncio.create_task(asked)
        await wait_until(lambda: _in_flight(gateway, 8), "all choices to be in flight")
        await asyncio.sleep(0.2)
        if stream:
            await (await task).close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await wait_until(lambda: _in_flight(gateway, 0), "all of them to be gone")
        whole = await client.completions.create(model="echo", prompt=WORDS, n=8)

    assert len(whole.choices) == 8
    assert await gateway.metric("busway_cancels_sent_total", reason="disconnect") == 8


async def _in_flight(gateway, count):
    return await gateway.metric("busway_lane_depth") == count


async def test_a_lane_without_room_for_all_choices_takes_none(fleet, redis):
    gateway = await fleet.gateway(needs_model=False, LANES__INTERACTIVE__MAX_QUEUED="4")
    worker = await fleet.worker(WORKER__SLOTS="1", WORKER__ECHO__STEP_MS="20", LANES__INTERACTIVE__MAX_QUEUED="4")
    async with gateway.client() as client:
        await wait_until(lambda: _served(client), "the model to be listed")
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(model="echo", prompt=WORDS, n=9)
        assert caught.value.param == "n", "it would not fit into an empty lane"
        filling = [
            asyncio.create_task(client.completions.create(model="echo", prompt=f"{WORDS} " * 20)) for _ in range(3)
        ]
        await wait_until(lambda: _waiting(redis, 3), "others to be there")
        with pytest.raises(openai.RateLimitError):
            await client.completions.create(model="echo", prompt=WORDS, n=4)
        await asyncio.gather(*filling)
        answer = await client.completions.create(model="echo", prompt=WORDS, n=2)

    assert [one.text for one in answer.choices] == [WORDS] * 2
    assert worker.status is None


async def _waiting(redis, count):
    return await redis.xlen(Keys("echo").stream("interactive")) == count


async def _served(client):
    return bool((await client.models.list()).data)


async def test_log_probabilities_and_the_prompt_come_back_streamed_and_whole(fleet):
    await fleet.worker()
    gateway = await fleet.gateway()
    async with gateway.client() as client:
        told = {"model": "echo", "prompt": WORDS, "max_tokens": 2, "logprobs": 1, "echo": True}
        whole = await client.completions.create(**told)
        chunks = [chunk async for chunk in await client.completions.create(**told, stream=True)]
        chat = await client.chat.completions.create(
            model="echo", messages=[{"role": "user", "content": "a b"}], logprobs=True, top_logprobs=1
        )

    [choice] = whole.choices
    assert choice.text == "".join(one.choices[0].text for one in chunks) == f"{WORDS}the quick"
    tokens = ["the", " quick", " brown", " fox", " jumps", "the", " quick"]
    assert choice.logprobs.tokens == tokens
    assert choice.logprobs.token_logprobs == [None] + [0.0] * 6
    assert [t for one in chunks if one.choices[0].logprobs for t in one.choices[0].logprobs.tokens] == tokens
    assert [one.token for one in chat.choices[0].logprobs.content] == ["a", " b"]


@pytest.mark.parametrize("stream", [True, False])
async def test_what_cannot_be_followed_is_a_400_and_costs_nobody_anything(fleet, stream):
    """B053, B060: bad guides, tokens that are none, while others stream."""
    await fleet.worker(WORKER__ECHO__STEP_MS="10")
    gateway = await fleet.gateway()
    deep = '{"type":"object","properties":{"a":' * 2000 + "{}" + "}}" * 2000
    async with gateway.client() as client:
        others = [client.completions.create(model="echo", prompt=WORDS) for _ in range(3)]

        async def refused(**extra):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.completions.create(model="echo", prompt="x", stream=stream, extra_body=extra)
            return caught.value.param

        params = [
            refused(guided_json=deep), refused(guided_regex="(" * 5000), refused(logit_bias={"-1": 1}),
            refused(guided_grammar="start: " + "(" * 60_000), refused(guided_regex="a"), refused(n=500),
        ]  # fmt: skip
        *answers, a, b, c, d, e, f = await gather(*others, *params)

    assert [one.choices[0].text for one in answers] == [WORDS] * 3
    assert (a, b, c, d) == ("guided_json", "guided_regex", "logit_bias", "guided_grammar")
    assert (e, f) == ("response_format", "n"), "the echo engine follows no grammar"


@pytest.mark.model
async def test_embeddings_through_the_gateway_are_what_the_client_expects(fleet):
    await fleet.worker(WORKER__ENGINE="embedding", WORKER__THREADS="1")
    gateway = await fleet.gateway()
    async with gateway.client() as client:
        model = "all-MiniLM-L6-v2"
        texts = [f"text number {number}" for number in range(70)]  # more than one part
        packed = await client.embeddings.create(model=model, input=texts)
        floats = await client.embeddings.create(model=model, input=texts[:2], encoding_format="float")
        with pytest.raises(openai.BadRequestError, match="does not generate"):
            await client.chat.completions.create(model=model, messages=[{"role": "user", "content": "x"}])

    assert [one.index for one in packed.data] == list(range(70))
    for one, other in zip(packed.data, floats.data, strict=False):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert sum(value * value for value in one.embedding) == pytest.approx(1, abs=1e-4)
    assert packed.usage.total_tokens == packed.usage.prompt_tokens > 70
