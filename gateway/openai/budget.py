"""The budget: what a request may take of a model's context, and what it counts for in a lane."""

import math
from collections.abc import Sequence

from shared.errors import InvalidRequest
from shared.wire import MAX_CHARS_PER_TOKEN, GenerateRequest

CHARS_PER_TOKEN = 4
OUTPUT_TOKENS_GUESSED = 256
MOST_TOLD = 200_000
CONTEXT_GUESSED = 32_768
"""For a model that no live worker tells of."""


def cost_tokens(request: GenerateRequest, context: int | None) -> int:
    """Estimate of prompt and output tokens, for the bound of a lane; never more than the context can hold."""
    wanted = request.sampling.max_tokens
    estimate = 1 + prompt_tokens(request) + (OUTPUT_TOKENS_GUESSED if wanted is None else wanted)
    most = CONTEXT_GUESSED if context is None else context
    return min(estimate, most * len(request.inputs or (0,)))


def refuse_too_long(request: GenerateRequest, context: int | None, *, limit_field: str) -> None:
    """InvalidRequest for what no tokenizer could make fit. What only one can tell is left to the worker."""
    if context is None or request.inputs is not None:
        return  # each input has the context for itself, and its worker names the one that is too long
    least, wanted = max(1, _least_prompt_tokens(request)), request.sampling.max_tokens
    wanted = 1 if wanted is None else wanted
    if least + wanted <= context:
        return
    field = request.source
    param = limit_field if 1 + wanted > context else field
    raise InvalidRequest(
        f"This model's maximum context length is {context} tokens. However, you requested at least {least + wanted} "
        f"tokens (at least {least} in the {field}, {wanted} in the completion).",
        param=param,
        code="context_length_exceeded",
    )


def refuse_too_much_told(requests: Sequence[GenerateRequest], context: int | None) -> None:
    """InvalidRequest if the log-probabilities of all choices would be more than one answer should carry."""
    most, told = CONTEXT_GUESSED if context is None else context, 0
    for request in requests:
        sampling = request.sampling
        if sampling.logprobs is not None:
            tokens = most if sampling.max_tokens is None else min(sampling.max_tokens, most)
            tokens += prompt_tokens(request) if request.echo else 0
            told += min(tokens, most) * (1 + sampling.logprobs)
    if told > MOST_TOLD:
        raise InvalidRequest(
            f"Up to {told} log-probabilities are asked for, {MOST_TOLD} at most are told in one answer: set a lower "
            "limit of tokens, or ask for fewer choices or alternatives.",
            param="logprobs",
        )


def longest_prompt(request: GenerateRequest) -> int:
    """The tokens of its prompt, or of the longest of its inputs, by estimate."""
    if request.inputs is not None:
        return max(_text_tokens(one, CHARS_PER_TOKEN) for one in request.inputs)
    return prompt_tokens(request)


def _least_prompt_tokens(request: GenerateRequest) -> int:
    """Every turn of a chat has a token of its own."""
    return max(len(request.messages or ()), prompt_tokens(request, MAX_CHARS_PER_TOKEN))


def prompt_tokens(request: GenerateRequest, chars_per_token: int = CHARS_PER_TOKEN) -> int:
    """The tokens of the prompt, if a token had so many characters."""
    if request.inputs is not None:
        return sum(_text_tokens(one, chars_per_token) for one in request.inputs)
    if request.messages is not None:
        return math.ceil(_chars(request.messages) / chars_per_token)
    return _text_tokens(request.prompt or "", chars_per_token)


def _text_tokens(text: str | tuple[int, ...], chars_per_token: int) -> int:
    return len(text) if isinstance(text, tuple) else math.ceil(len(text) / chars_per_token)


def _chars(value: object) -> int:
    """Characters of all texts in messages, whatever field of theirs holds them; their names are ours."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_chars(one) for one in value.values())
    return sum(_chars(one) for one in value) if isinstance(value, list | tuple) else 0
