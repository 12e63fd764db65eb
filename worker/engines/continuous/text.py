"""Text: the passage between a request's words and the model's tokens."""

import inspect
from collections.abc import Sequence
from typing import Any

from jinja2 import TemplateError

from shared.errors import ConfigError, InvalidRequest
from shared.wire import GenerateRequest
from worker.engines.stops import StopMatcher

INCOMPLETE = "\ufffd"
# A template is code of the model's authors that runs on the caller's values: these are how it fails on them.
TEMPLATE_FAILURES = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
TEMPLATE_SWITCHES = {"add_generation_prompt", "continue_final_message", "tools", "documents"}


class Codec:
    """A transformers tokenizer, as far as an engine needs it."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self.grammars: Any = _for_grammars(tokenizer, vocab_size)
        """The tokenizer as llguidance sees it; None if that cannot read it."""
        self._raw: dict[int, bytes] = {}
        parameters = inspect.signature(tokenizer.apply_chat_template).parameters
        self._reserved = set(parameters) - TEMPLATE_SWITCHES

    @classmethod
    def load(cls, source: str, vocab_size: int) -> "Codec":
        """The tokenizer of the model at `source`."""
        from transformers import AutoTokenizer

        try:
            return cls(AutoTokenizer.from_pretrained(source), vocab_size)
        except (OSError, ValueError, ImportError, LookupError) as error:
            raise ConfigError(f"cannot load a tokenizer from {source}: {error}") from error

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokenizer's end of text, if it has one."""
        end: int | None = self._tokenizer.eos_token_id
        return frozenset() if end is None else frozenset({end})

    def encode(self, request: GenerateRequest) -> list[int]:
        """The request's prompt; InvalidRequest if there is no way to write it."""
        if request.messages is not None:
            # The template writes the special tokens itself; adding them again would double the first one.
            return self._ids(self._render(request), add_special_tokens=False)
        if isinstance(request.prompt, str):
            return self._ids(request.prompt, add_special_tokens=True)
        ids = list(request.prompt or ())
        if any(not 0 <= token < self._vocab_size for token in ids):
            raise InvalidRequest(f"A token id is outside of 0 to {self._vocab_size - 1}.", param=request.source)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def spell(self, ids: Sequence[int]) -> str:
        """The text of these tokens, special ones included."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def raw(self, token: int) -> bytes:
        """The bytes of one token, which may be a part of a character; a special token's are its name."""
        known = self._raw.get(token)
        if known is None:
            known = self.spell([token]).encode() if self.grammars is None else self.grammars.decode_bytes([token])
            self._raw[token] = known
        return known

    def _ids(self, text: str, *, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"]
        return ids

    def _render(self, request: GenerateRequest) -> str:
        if not self._tokenizer.chat_template:
            problem = "This model has no chat template; ask it through completions."
            raise InvalidRequest(problem, param="messages", code="unsupported_value")
        if taken := self._reserved.intersection(request.chat_template_kwargs):
            problem = f"chat_template_kwargs may not set {', '.join(sorted(taken))}."
            raise InvalidRequest(problem, param="chat_template_kwargs")
        values = {"add_generation_prompt": True, **request.chat_template_kwargs}
        try:
            text: str = self._tokenizer.apply_chat_template(list(request.messages or ()), tokenize=False, **values)
        except TEMPLATE_FAILURES as error:
            raise InvalidRequest(f"The model's chat template refuses this: {error}", param="messages") from error
        return text


def _for_grammars(tokenizer: Any, vocab_size: int) -> Any:
    if not getattr(tokenizer, "is_fast", False):
        return None
    from llguidance.hf import from_tokenizer

    return from_tokenizer(tokenizer, n_vocab=vocab_size)


class TextStream:
    """The text of one answer, token by token: whole characters only, and nothing of a stop string."""

    def __init__(self, codec: Codec, stops: tuple[str, ...]) -> None:
        self._codec = codec
        self._stops = StopMatcher(stops)
        # Decoded anew with each token: those of the last release, which give the new ones their context
        # (a word's leading blank depends on it), and those that came since.
        self._window: list[int] = []
        self._context = 0
        self._context_text = ""

    @property
    def is_stopped(self) -> bool:
        """A stop string is complete."""
        return self._stops.is_stopped

    def feed(self, token: int, *, is_matched: bool = True) -> str:
        """The text that this token released; with `is_matched` False, no stop string may begin in it."""
        self._window.append(token)
        text = self._codec.decode(self._window)
        if len(text) <= len(self._context_text) or text.endswith(INCOMPLETE):
            return ""
        released = self._release(text)
        return self._stops.feed(released) if is_matched else released

    def flush(self) -> str:
        """The text that was kept back, incomplete characters included; the answer is over."""
        text = self._codec.decode(self._window)
        return self._stops.feed(self._release(text)) + self._stops.flush()

    def _release(self, text: str) -> str:
        new = text[len(self._context_text) :]
        del self._window[: self._context]
        self._context = len(self._window)
        self._context_text = self._codec.decode(self._window)
        return new
