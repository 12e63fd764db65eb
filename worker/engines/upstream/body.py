"""Body: a request as an OpenAI server reads it. Pure."""

import json
from typing import Any

from shared.errors import InvalidRequest
from shared.wire import GenerateRequest, Guide, Prompt, Sampling

# Fields that OpenAI itself lacks and its imitators have; sent only if they say something.
BEYOND = {
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "stop_token_ids": (),
    "min_tokens": 0,
    "ignore_eos": False,
}


def path(request: GenerateRequest) -> str:
    """Where it is sent, below the base URL."""
    return "/chat/completions" if request.messages is not None else "/completions"


def body(request: GenerateRequest, model: str, max_model_len: int) -> dict[str, Any]:
    """What is sent. The answer is always streamed, with its usage at the end.

    A completion without a limit would get a small one from an OpenAI server; so it gets what the context leaves,
    if that is known: the tokens of a text are not.
    """
    sampling = request.sampling
    told: dict[str, Any] = {"model": model, "stream": True, "stream_options": {"include_usage": True}}
    if request.messages is not None:
        told["messages"] = list(request.messages)
        if request.chat_template_kwargs:
            told["chat_template_kwargs"] = request.chat_template_kwargs
    elif isinstance(request.prompt, str):
        told["prompt"] = request.prompt
    else:
        told["prompt"] = list(request.prompt or ())
        told["max_tokens"] = max(1, max_model_len - len(told["prompt"]))
    told |= _sampling(sampling) | _logprobs(sampling, is_chat=request.messages is not None)
    if request.guide is not None:
        told |= _guide(request.guide)
    return told


def prompt_of(request: GenerateRequest) -> Prompt | None:
    """The prompt, if it is to be told back. We tell it: within a stream it could not be told from the answer.

    InvalidRequest if it cannot be told, because nobody here knows its tokens.
    """
    if not request.echo:
        return None
    if not isinstance(request.prompt, str) or request.sampling.logprobs is not None:
        problem = "This model echoes only prompts that are text, and without their log-probabilities."
        raise InvalidRequest(problem, param="echo", code="unsupported_value")
    return Prompt(request.prompt)


def _sampling(sampling: Sampling) -> dict[str, Any]:
    told: dict[str, Any] = {"temperature": sampling.temperature, "top_p": sampling.top_p, "seed": sampling.seed}
    for name in ("frequency_penalty", "presence_penalty"):
        if value := getattr(sampling, name):
            told[name] = value
    for name, neutral in BEYOND.items():
        if (value := getattr(sampling, name)) != neutral:
            told[name] = list(value) if isinstance(value, tuple) else value
    if sampling.max_tokens is not None:
        told["max_tokens"] = sampling.max_tokens
    if sampling.stop:
        told["stop"] = list(sampling.stop)
    if sampling.logit_bias:
        told["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias}
    return told


def _logprobs(sampling: Sampling, *, is_chat: bool) -> dict[str, Any]:
    if sampling.logprobs is None:
        return {}
    if not is_chat:
        return {"logprobs": sampling.logprobs}
    return {"logprobs": True} | ({"top_logprobs": sampling.logprobs} if sampling.logprobs else {})


def _guide(guide: Guide) -> dict[str, Any]:
    """A schema as OpenAI takes it; what OpenAI does not have, as vLLM takes it."""
    if guide.kind == "json_schema":
        schema = {"name": "answer", "schema": json.loads(guide.text), "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}
    return {"structured_outputs": {guide.kind: guide.text}}
