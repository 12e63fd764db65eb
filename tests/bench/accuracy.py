"""What clients get against what transformers says: `python -m tests.bench.accuracy [--json FILE]`.

A real fleet, 50 prompts, all at once and among sampled strangers: greedy texts and log-probabilities against
`transformers` alone. Then seeded sampling: each answer alone, among others, and cut by a `kill -9` of its worker.
Exit status 1 if a text differs or a log-probability is off by 1e-3.
"""

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from shared.cli.valkey import Valkey
from shared.sections import DEFAULT_MODEL
from shared.settings import load
from tests.bench.rig import arguments, report, say
from tests.support.fleet import Fleet, gather
from tests.support.waiting import wait_until
from worker.engines.weights import ensure

PROMPTS, TOKENS, TOP, SEEDED = 50, 24, 5, 12
BOUND = 1e-3
SUBJECTS = ("the sea", "a queue of people", "the number {}", "an old clock", "bread", "a fast train", "winter in town")
FORMS = ("Tell me about {}.", "Write a story that begins with {}.", "Why do people like {}?", "List facts on {}:")
ENV = {"WORKER__ENGINE": "continuous", "WORKER__SLOTS": "16", "WORKER__MAX_MODEL_LEN": "512", "WORKER__LEASE_S": "4"}


def prompt(number: int) -> str:
    """Of different lengths, no two alike."""
    subject = SUBJECTS[number % len(SUBJECTS)].format(number)
    return f"({number}) " + "Once more. " * (number % 9) + FORMS[number % len(FORMS)].format(subject)


def references(source: str) -> list[dict[str, Any]]:
    """Text, token log-probabilities and the likeliest tokens' ones, by `generate`, one prompt at a time."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(source)
    tokenizer: Any = AutoTokenizer.from_pretrained(source)
    found = []
    for number in range(PROMPTS):
        given = tokenizer(prompt(number), return_tensors="pt")
        with torch.inference_mode():
            out = model.generate(
                **given, max_new_tokens=TOKENS, do_sample=False, return_dict_in_generate=True, output_logits=True
            )
        ids = out.sequences[0, given["input_ids"].shape[1] :]
        rows = torch.stack(out.logits)[:, 0].float().log_softmax(dim=-1)
        told = {
            "text": tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False),
            "logprobs": rows.gather(1, ids[:, None])[:, 0].tolist(),
            "top": rows.topk(TOP).values.tolist(),
        }
        found.append(told)
    return found


async def greedy(client: AsyncOpenAI, number: int) -> Any:
    answer = await client.completions.create(
        model=DEFAULT_MODEL, prompt=prompt(number), max_tokens=TOKENS, temperature=0, logprobs=TOP
    )
    return answer.choices[0]


async def sampled(client: AsyncOpenAI, number: int, seen: list[str] | None = None) -> str:
    parts = [] if seen is None else seen
    stream = await client.completions.create(
        model=DEFAULT_MODEL, prompt=prompt(number), max_tokens=2 * TOKENS, temperature=0.9, top_p=0.95, seed=number,
        frequency_penalty=0.4, stream=True, extra_body={"ignore_eos": True},
    )  # fmt: skip
    async for chunk in stream:
        parts += [choice.text for choice in chunk.choices if choice.text]
    return "".join(parts)


async def seeded(fleet: Fleet, client: AsyncOpenAI, victim: Any) -> dict[str, int]:
    """How many answers are the same alone, among strangers, and after their worker was killed."""
    alone = [await sampled(client, number) for number in range(SEEDED)]
    crowd = await gather(*(sampled(client, number) for number in (*range(SEEDED), *range(100, 120))))
    seen: list[list[str]] = [[] for _ in range(SEEDED)]

    async def kill() -> None:
        await wait_until(lambda: min(map(len, seen)) >= 5, "all clients to have some text", timeout_s=120)
        victim.kill()
        await fleet.worker(**ENV)

    *cut, _ = await gather(*(sampled(client, number, seen[number]) for number in range(SEEDED)), kill())
    return {
        "seeded": SEEDED,
        "batched_equal": sum(one == other for one, other in zip(alone, crowd[:SEEDED], strict=True)),
        "resumed_equal": sum(one == other for one, other in zip(alone, cut, strict=True)),
        "resumed": len(fleet.processes[-1].events("request.resumed")),
    }


def gaps(expected: dict[str, Any], found: Any) -> list[float]:
    """Differences of the chosen tokens' log-probabilities, and of the likeliest ones' at each place."""
    chosen = [abs(a - b) for a, b in zip(expected["logprobs"], found.logprobs.token_logprobs, strict=False)]
    for row, top in zip(expected["top"], found.logprobs.top_logprobs, strict=False):
        ours = sorted(top.values(), reverse=True)[:TOP]  # two tokens may read the same and share a key
        chosen += [abs(row[0] - ours[0])]
        if len(ours) == TOP:
            chosen += [abs(a - b) for a, b in zip(row, ours, strict=True)]
    return chosen


async def run(folder: Path, source: str) -> dict[str, Any]:
    expected = references(source)
    valkey = Valkey(folder)
    valkey.start()
    fleet = Fleet(valkey.url, folder)
    try:
        victim = await fleet.worker(**ENV)
        gateway = await fleet.gateway()
        async with gateway.client(timeout=600) as client:
            strangers = [sampled(client, number) for number in range(200, 220)]
            answers = (await gather(*(greedy(client, n) for n in range(PROMPTS)), *strangers))[:PROMPTS]
            report: dict[str, Any] = {
                "prompts": PROMPTS,
                "greedy_equal": sum(a["text"] == b.text for a, b in zip(expected, answers, strict=True)),
                "largest_logprob_gap": max(max(gaps(a, b)) for a, b in zip(expected, answers, strict=True)),
            }
            return report | await seeded(fleet, client, victim)
    finally:
        fleet.stop()
        valkey.stop()


def main() -> int:
    options = arguments(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(run(Path(folder), ensure(DEFAULT_MODEL, load().cache_dir)))
    say(json.dumps(found, indent=2))
    report(found, options.json)
    equal = found["greedy_equal"] == PROMPTS and found["batched_equal"] == found["resumed_equal"] == SEEDED
    return 0 if equal and found["largest_logprob_gap"] < BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
