"""OpenAI's bodies into requests on the wire."""

import json

from gateway.openai import translate
from gateway.openai.schemas import ChatBody, CompletionBody, parse
from shared import wire


def chat_of(**fields) -> wire.GenerateRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return translate.chat(parse(json.dumps(body).encode(), ChatBody)[0], seed=7)


def completion_of(**fields) -> wire.GenerateRequest:
    return translate.completion(
        parse(json.dumps({"model": "m", "prompt": "hi", **fields}).encode(), CompletionBody)[0], 7
    )


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
