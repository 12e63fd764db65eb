"""OpenAI's bodies into requests on the wire."""

import json

from gateway.openai import translate
from gateway.openai.schemas import ChatBody, CompletionBody, EmbeddingsBody, parse
from shared import wire


def chat_of(**fields) -> wire.GenerateRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return translate.chat(parse(json.dumps(body).encode(), ChatBody)[0], 7, None)[0]


def completion_of(**fields) -> wire.GenerateRequest:
    return completions_of(**fields)[0]


def completions_of(**fields) -> tuple[wire.GenerateRequest, ...]:
    raw = json.dumps({"model": "m", "prompt": "hi", **fields}).encode()
    return translate.completion(parse(raw, CompletionBody)[0], 7, None)


def test_sampling_is_carried_over():
    request = chat_of(
        temperature=0, top_p=0.5, top_k=-1, stop="x", max_completion_tokens=9, ignore_eos=True, seed=-3, max_tokens=4
    )

    assert request.sampling == wire.Sampling(
        seed=-3, max_tokens=9, temperature=0.0, top_p=0.5, top_k=0, stop=("x",), ignore_eos=True
    )


def test_a_request_without_seed_gets_the_one_that_was_drawn():
    assert chat_of().sampling.seed == 7
    assert chat_of(seed=0).sampling.seed == 0


def test_developers_are_the_system_and_silence_is_empty_text():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    request = chat_of(
        messages=[
            {"role": "developer", "content": "be brief", "name": "boss"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "4", "tool_call_id": "c"},
        ]
    )

    assert request.messages == (
        {"role": "system", "content": "be brief", "name": "boss"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "c"},
    )


def test_a_completion_carries_its_prompt_as_it_is():
    assert (completion_of().prompt, completion_of().messages) == ("hi", None)
    assert completion_of(prompt=[1, 2]).prompt == (1, 2)
    assert completion_of().sampling.max_tokens == 16


def test_every_translation_survives_the_wire():
    for request in (chat_of(chat_template_kwargs={"a": [1, None]}), completion_of(prompt=[1, 2]), completion_of()):
        assert wire.decode(wire.encode(request), wire.GenerateRequest) == request


def test_every_sampling_field_is_carried_over():
    given = {
        "min_p": 0.1, "frequency_penalty": 0.5, "presence_penalty": -1, "repetition_penalty": 1.2,
        "stop_token_ids": [4, 5], "min_tokens": 3, "logit_bias": {"7": -100, "9": 2.5}, "logprobs": 4, "echo": True,
    }  # fmt: skip
    request = completion_of(**given)

    sampling = request.sampling
    assert (sampling.min_p, sampling.frequency_penalty, sampling.presence_penalty) == (0.1, 0.5, -1.0)
    assert (sampling.repetition_penalty, sampling.stop_token_ids, sampling.min_tokens) == (1.2, (4, 5), 3)
    assert (sampling.logit_bias, sampling.logprobs, request.echo) == (((7, -100.0), (9, 2.5)), 4, True)
    assert chat_of(logprobs=True).sampling.logprobs == 0
    assert chat_of(logprobs=True, top_logprobs=3).sampling.logprobs == 3
    assert chat_of().sampling.logprobs is None


def test_choices_are_seeded_apart_and_the_first_is_that_of_a_request_for_one():
    seeds = [one.sampling.seed for one in completions_of(prompt=["a", "b"], n=3, seed=2**63 - 2)]

    assert [one.prompt for one in completions_of(prompt=["a", "b"], n=3)] == ["a"] * 3 + ["b"] * 3
    assert seeds[0] == completion_of(seed=2**63 - 2).sampling.seed
    assert seeds[:3] == seeds[3:] and len(set(seeds)) == 3
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)


def test_many_inputs_are_embedded_in_parts():
    raw = json.dumps({"model": "m", "input": ["x"] * 65 + [[1, 2]], "dimensions": 8}).encode()
    first, second = translate.embeddings(parse(raw, EmbeddingsBody)[0])

    assert (len(first.inputs), second.inputs, second.dimensions) == (64, ("x", (1, 2)), 8)
    assert wire.decode(wire.encode(first), wire.GenerateRequest) == first
