"""The real model, end to end: gateway, queue, worker, SmolLM2."""

import asyncio

import pytest

from shared.sections import DEFAULT_MODEL
from shared.settings import Settings
from tests.support.fleet import gather, stream_text

pytestmark = [pytest.mark.integration, pytest.mark.model, pytest.mark.timeout(600)]

PROMPTS = [
    "What is the capital of France?",
    "Name three colours.",
    "Write one sentence about the sea.",
    "What is 2 + 2?",
    "Who wrote Hamlet?",
    "Explain what a queue is in one sentence.",
    "Say hello in Spanish.",
    "List two animals that can fly.",
    "What do bees make?",
    "Give me a word that rhymes with cat.",
]
TOKENS = 24


def expected(prompt: str) -> str:
    """What `generate` of transformers says, alone and greedy."""
    import torch

    from worker.engines import weights

    folder = weights.ensure(DEFAULT_MODEL, Settings().cache_dir)
    model, tokenizer = _reference(folder)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.inference_mode():
        out = model.generate(**ids, max_new_tokens=TOKENS, do_sample=False)
    return tokenizer.decode(out[0, ids["input_ids"].shape[1] :], skip_special_tokens=True)


def _reference(folder, cache={}):  # noqa: B006 - loaded once
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if folder not in cache:
        cache[folder] = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    return cache[folder]


async def test_streamed_and_whole_answers_in_both_lanes_are_those_of_generate(fleet):
    """Ten prompts, streamed and not, all in one batch: each text is exactly what the library alone says."""
    await fleet.worker(WORKER__ENGINE="continuous", WORKER__SLOTS="8")
    gateway = await fleet.gateway()
    async with gateway.client(timeout=300) as client:
        greedy = {"temperature": 0, "max_tokens": TOKENS}
        streamed = [stream_text(client, DEFAULT_MODEL, prompt, **greedy) for prompt in PROMPTS]
        whole = [
            client.chat.completions.create(
                model=DEFAULT_MODEL,
                messages=[{"role": "user", "content": prompt}],
                service_tier="flex",
                **greedy,
            )
            for prompt in PROMPTS
        ]

        results = await gather(*streamed, *whole)

    truth = await asyncio.to_thread(lambda: [expected(prompt) for prompt in PROMPTS])
    assert results[: len(PROMPTS)] == truth
    assert [one.choices[0].message.content for one in results[len(PROMPTS) :]] == truth
