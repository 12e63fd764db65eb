"""OpenAI's bodies into requests on the wire."""

import time
from typing import Any

from gateway.openai.schemas import Body, ChatBody, CompletionBody, Message
from shared import wire


def chat(body: ChatBody, seed: int) -> wire.GenerateRequest:
    """The chat as a worker needs it; `seed` counts where the body has none."""
    return wire.GenerateRequest(
        sampling=_sampling(body, seed),
        messages=tuple(_message(message) for message in body.messages),
        chat_template_kwargs=body.chat_template_kwargs,
    )


def completion(body: CompletionBody, seed: int) -> wire.GenerateRequest:
    """The prompt as a worker needs it; `seed` counts where the body has none."""
    return wire.GenerateRequest(sampling=_sampling(body, seed), prompt=body.prompt)


def model_card(name: str, max_model_len: int | None, *, created: int | None = None) -> dict[str, Any]:
    """A row of /v1/models."""
    card = {"id": name, "object": "model", "created": created or int(time.time()), "owned_by": "busway"}
    return card if max_model_len is None else {**card, "max_model_len": max_model_len}


def _sampling(body: Body, seed: int) -> wire.Sampling:
    return wire.Sampling(
        seed=seed if body.seed is None else body.seed,
        max_tokens=body.token_limit,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=max(0, body.top_k),
        stop=body.stop,
        ignore_eos=body.ignore_eos,
    )


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
