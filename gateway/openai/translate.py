"""OpenAI's bodies into requests on the wire."""

import time
from typing import Any

from msgspec import structs

from gateway.openai.schemas import INT64, Body, ChatBody, CompletionBody, EmbeddingsBody, Message
from shared import wire

INPUTS_PER_PART = 64


def chat(body: ChatBody, seed: int, guide: wire.Guide | None) -> tuple[wire.GenerateRequest, ...]:
    """The chat as workers need it, once for each choice; `seed` counts where the body has none."""
    messages = tuple(_message(message) for message in body.messages)
    return tuple(
        wire.GenerateRequest(
            sampling=sampling, messages=messages, chat_template_kwargs=body.chat_template_kwargs, guide=guide
        )
        for sampling in _samplings(body, seed)
    )


def completion(body: CompletionBody, seed: int, guide: wire.Guide | None) -> tuple[wire.GenerateRequest, ...]:
    """The prompts as workers need them, each once for each choice; `seed` counts where the body has none."""
    return tuple(
        wire.GenerateRequest(sampling=sampling, prompt=prompt, guide=guide, echo=body.echo)
        for prompt in body.prompt
        for sampling in _samplings(body, seed)
    )


def embeddings(body: EmbeddingsBody) -> tuple[wire.GenerateRequest, ...]:
    """The inputs as workers need them, in parts that none of them has to hold for long."""
    inputs = body.input
    return tuple(
        wire.GenerateRequest(
            sampling=wire.Sampling(seed=0, max_tokens=0),
            inputs=inputs[first : first + INPUTS_PER_PART],
            first_input=first,
            dimensions=body.dimensions,
        )
        for first in range(0, len(inputs), INPUTS_PER_PART)
    )


def model_card(name: str, max_model_len: int | None, *, created: int | None = None) -> dict[str, Any]:
    """A row of /v1/models."""
    card = {"id": name, "object": "model", "created": created or int(time.time()), "owned_by": "busway"}
    return card if max_model_len is None else {**card, "max_model_len": max_model_len}


def _samplings(body: Body, seed: int) -> list[wire.Sampling]:
    """One for each choice. The first is that of a request for one alone; the others' seeds follow it."""
    first = wire.Sampling(
        seed=seed if body.seed is None else body.seed,
        max_tokens=body.token_limit,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=max(0, body.top_k),
        min_p=body.min_p,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=body.logit_bias,
        stop=body.stop,
        stop_token_ids=body.stop_token_ids,
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        logprobs=body.told,
    )
    seeds = [(first.seed + choice + INT64) % (2 * INT64) - INT64 for choice in range(body.n)]
    return [structs.replace(first, seed=one) for one in seeds]


def _message(message: Message) -> dict[str, Any]:
    role = "system" if message.role == "developer" else message.role
    turn: dict[str, Any] = {"role": role, "content": message.content or ""}
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_calls:
        turn["tool_calls"] = [call.model_dump() for call in message.tool_calls]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn
