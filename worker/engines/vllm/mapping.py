"""Mapping: what a request is in vLLM's words. Pure, and without vLLM."""

from typing import Any

from shared.wire import GenerateRequest, Sampling


def must_repeat(request: GenerateRequest) -> bool:
    """The next token depends on more than the tokens before it."""
    sampling = request.sampling
    return request.guide is not None or bool(sampling.frequency_penalty or sampling.presence_penalty)


def sampling_fields(request: GenerateRequest, *, limit: int, produced: int) -> dict[str, Any]:
    """VLLM's SamplingParams, by name, for an answer of `limit` tokens of which `produced` are in the prompt."""
    sampling: Sampling = request.sampling
    return {
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "logit_bias": dict(sampling.logit_bias) or None,
        "stop_token_ids": list(sampling.stop_token_ids),
        "min_tokens": max(0, sampling.min_tokens - produced),
        "max_tokens": limit - produced,
        "ignore_eos": sampling.ignore_eos,
        "logprobs": sampling.logprobs,
        "prompt_logprobs": sampling.logprobs if request.echo and not produced else None,
        "detokenize": False,
    }


def guide_fields(request: GenerateRequest) -> dict[str, str] | None:
    """VLLM's StructuredOutputsParams, by name."""
    guide = request.guide
    return None if guide is None else {"json" if guide.kind == "json_schema" else guide.kind: guide.text}
