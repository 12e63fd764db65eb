"""The continuous engine against the library whose model it runs."""

import pytest

from shared.sections import DEFAULT_MODEL
from shared.settings import load
from tests.support.engines import PROMPTS, SLOTS, chat
from worker.engine import Progressed, Work


@pytest.mark.model
def test_greedy_answers_are_those_of_transformers(continuous):
    """Token for token, although they come late, in pieces, and all at once."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from worker.engines.weights import ensure

    source = ensure(DEFAULT_MODEL, load().cache_dir)
    tokenizer = AutoTokenizer.from_pretrained(source)
    plain = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    told = {}
    for index, prompt in enumerate(PROMPTS):
        continuous.add(Work(str(index), chat(prompt, max_tokens=24)))
        told[str(index)] = []
        for _ in range(2):
            gather(continuous, told)
    while continuous.free_slots < SLOTS:
        gather(continuous, told)

    for index, prompt in enumerate(PROMPTS):
        chats = [{"role": "user", "content": prompt}]
        given = tokenizer.apply_chat_template(chats, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        expected = plain.generate(**given, do_sample=False, max_new_tokens=24)[0, given["input_ids"].shape[1] :]
        assert told[str(index)] == expected.tolist(), prompt


def gather(engine, told):
    for event in engine.step():
        if isinstance(event, Progressed):
            told[event.id] += event.ids
