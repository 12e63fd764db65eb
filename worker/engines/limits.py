"""Limits: how many tokens a request may produce within the context."""

from shared.errors import InvalidRequest
from shared.wire import MAX_CHARS_PER_TOKEN, ErrorInfo, GenerateRequest, Outcome

TOO_LONG = "context_length_exceeded"
NO_TOKENS = "The prompt has no tokens."


def refuse_other_kind(request: GenerateRequest, *, embeds: bool) -> None:
    """InvalidRequest if it asks an embedding engine (`embeds`) for an answer, or any other one for embeddings."""
    if embeds and request.inputs is None:
        problem = "This model does not generate text; it makes embeddings."
        raise InvalidRequest(problem, param="model", code="unsupported_value")
    if not embeds and request.inputs is not None:
        problem = "This model does not make embeddings; it generates text."
        raise InvalidRequest(problem, param="model", code="unsupported_value")


def refuse_outsized(request: GenerateRequest, max_model_len: int) -> None:
    """InvalidRequest if there is no prompt, or it cannot fit, whatever its tokens are.

    Cutting a text into tokens takes time, up to seconds for megabytes, and the whole batch waits for it.
    """
    refuse_other_kind(request, embeds=False)
    contents = [message.get("content") or "" for message in request.messages or ()]
    chars = sum(map(len, contents)) if request.messages is not None else len(request.prompt or ())
    if len(contents) >= max_model_len or chars > MAX_CHARS_PER_TOKEN * max_model_len:
        param = request.source
        context = f"This model's maximum context length is {max_model_len} tokens."
        problem = f"The {param} with {chars} characters cannot fit."
        raise InvalidRequest(f"{context} {problem}", param=param, code=TOO_LONG)


def refuse_empty(request: GenerateRequest) -> None:
    """InvalidRequest if there is plainly nothing to go on from; a chat is never empty, its template adds tokens."""
    if request.messages is None and not request.prompt:
        raise InvalidRequest(NO_TOKENS, param=request.source)


def output_limit(request: GenerateRequest, prompt_tokens: int, max_model_len: int) -> int:
    """Tokens that the request may produce; InvalidRequest if its prompt is empty or does not fit."""
    param = request.source
    if prompt_tokens == 0:
        raise InvalidRequest(NO_TOKENS, param=param)
    context = f"This model's maximum context length is {max_model_len} tokens."
    if prompt_tokens > max_model_len or (prompt_tokens == max_model_len and request.sampling.max_tokens != 0):
        problem = f"However, the {param} resulted in {prompt_tokens} tokens, which leaves no room for an answer."
        raise InvalidRequest(f"{context} {problem}", param=param, code=TOO_LONG)
    wanted = request.sampling.max_tokens
    if wanted is None:
        return max_model_len - prompt_tokens
    if prompt_tokens + wanted > max_model_len:
        parts = f"({prompt_tokens} in the {param}, {wanted} in the completion)"
        problem = f"However, you requested {prompt_tokens + wanted} tokens {parts}."
        raise InvalidRequest(f"{context} {problem}", param=param, code=TOO_LONG)
    return wanted


def refusal(error: InvalidRequest) -> Outcome:
    """The outcome of a request that cannot be served as it is."""
    return Outcome(state="failed", error=ErrorInfo(code=error.code, message=error.message, param=error.param))
