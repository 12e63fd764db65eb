"""The continuous engine on a CUDA device, in bfloat16. A few minutes on any GPU; skipped without one."""

import sys
import time

import pytest
from msgspec import structs

torch = pytest.importorskip("torch")

from shared.lanes import defaults  # noqa: E402
from shared.sections import DEFAULT_MODEL, WorkerSettings  # noqa: E402
from shared.settings import load  # noqa: E402
from tests.support.engines import PROMPTS, chat, run  # noqa: E402
from worker.engine import Work  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.model,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

TOLERANCE = 0.25
"""Of a log-probability: bfloat16 has eight bits."""


@pytest.fixture(scope="module")
def engine():
    from worker.engines.continuous.engine import ContinuousEngine

    settings = WorkerSettings.model_validate({"slots": 32, "max_model_len": 512, "device": "cuda"})
    made = ContinuousEngine.load(settings, load().cache_dir, defaults())
    yield made
    made.close()


def test_log_probabilities_come_close_to_those_of_transformers(engine):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from worker.engines.weights import ensure

    source = ensure(DEFAULT_MODEL, load().cache_dir)
    tokenizer = AutoTokenizer.from_pretrained(source)
    plain = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).to("cuda")

    works = [Work(str(n), chat(text, logprobs=0, max_tokens=24)) for n, text in enumerate(PROMPTS)]
    for number, one in run(engine, works).items():
        messages = [{"role": "user", "content": PROMPTS[int(number)]}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        with torch.inference_mode():
            rows = plain(torch.tensor([ids + one.ids], device="cuda")).logits[0].log_softmax(-1)
        for place, (token, told) in enumerate(zip(one.ids, one.logprobs, strict=True), len(ids)):
            assert told.logprob == pytest.approx(float(rows[place - 1, token]), abs=TOLERANCE)


def test_seeded_answers_are_the_same_when_asked_again(engine):
    works = [Work(str(n), chat(text, temperature=0.9, seed=n)) for n, text in enumerate(PROMPTS)]

    assert [one.ids for one in run(engine, works).values()] == [one.ids for one in run(engine, works).values()]


def test_a_full_batch_runs(engine):
    works = [Work(str(n), chat(f"Count from {n}.", max_tokens=128, ignore_eos=True)) for n in range(32)]
    began = time.perf_counter()
    told = run(engine, works)
    taken_s = time.perf_counter() - began

    assert all(len(one.ids) == 128 for one in told.values())
    sys.stdout.write(f"{32 * 128 / taken_s:.0f} tokens/s at 32 requests\n")


def test_a_guided_answer_is_what_its_schema_says(engine):
    from shared.wire import Guide

    work = Work("guided", structs.replace(chat(max_tokens=32), guide=Guide(kind="regex", text="(yes|no)")))

    assert run(engine, [work])["guided"].text in {"yes", "no"}
