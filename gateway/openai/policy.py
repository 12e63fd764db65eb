"""The policy for fields that are not built: refuse what would change the answer, let the rest pass."""

from typing import Any

from shared.errors import InvalidRequest

NEUTRAL: dict[str, tuple[Any, ...]] = {
    # name: the values that ask for nothing; any other is refused
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "prompt_logprobs": (),
    "typical_p": (1,),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
    "regex": (),
    "ebnf": (),
    "json_schema": (),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "documents": ([],),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "moderation": (),
    "web_search_options": (),
}

WITHOUT_EFFECT = frozenset({
    "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options", "metadata",
    "store", "parallel_tool_calls", "request_id", "cache_salt", "session_id", "guided_decoding_backend",
})  # fmt: skip
"""Fields that cannot change an answer; nobody needs to be told that they do nothing."""


def refuse_unsupported(fields: dict[str, Any]) -> None:
    """InvalidRequest for the first field whose value asks for something that is not built."""
    for name, neutral in NEUTRAL.items():
        if name in fields and not any(same(fields[name], value) for value in neutral):
            allowed = f"; only {_listed(neutral)} is accepted" if neutral else ""
            raise InvalidRequest(f"{name} is not supported{allowed}.", param=name, code="unsupported_parameter")


def same(value: Any, neutral: Any) -> bool:
    """Equality as JSON sees it: true is not 1, but 1.0 is."""
    if isinstance(value, bool) or isinstance(neutral, bool):
        return value is neutral
    return value == neutral


def _listed(values: tuple[Any, ...]) -> str:
    return " or ".join(str(value).lower() if isinstance(value, bool) else repr(value) for value in values)
