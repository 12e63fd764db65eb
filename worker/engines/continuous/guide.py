"""Guides: answers that must match a JSON schema, a regular expression or a grammar, by llguidance."""

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher
from torch import Tensor

from shared import guides, wire
from shared.errors import InvalidRequest

COMPILERS = 2
KEPT = 64


class Guide:
    """One answer's way through a grammar. Compiled elsewhere; it takes tokens before it is ready, and catches up."""

    def __init__(self, compiled: Future[LLMatcher], vocab_size: int) -> None:
        self._compiled = compiled
        self._vocab_size = vocab_size
        self._matcher: Any = None
        self._behind: list[int] = []

    @property
    def is_compiled(self) -> bool:
        return self._compiled.done()

    @property
    def is_open(self) -> bool:
        return self._matcher is not None

    def wait(self, timeout_s: float) -> None:
        """Until it is compiled, or the time is up."""
        wait([self._compiled], timeout_s)

    def open(self) -> None:
        """Begin, once it is compiled; InvalidRequest if the grammar is wrong or too large."""
        failure = self._compiled.exception()
        if isinstance(failure, InvalidRequest):  # a new one for each request: raising one again and again grows it
            raise InvalidRequest(failure.message, param=failure.param, code=failure.code)
        matcher = self._compiled.result().deep_copy()
        if self._behind and not matcher.consume_tokens(self._behind):
            raise InvalidRequest("The answer so far does not fit its grammar.", param=guides.PARAM)
        self._matcher = matcher

    @property
    def is_over(self) -> bool:
        """The grammar is complete, and nothing may follow."""
        return self._matcher is not None and self._matcher.is_stopped() and not self._matcher.is_error()

    def take(self, token: int) -> None:
        """The answer goes on with this token, one of those allowed."""
        if self._matcher is None:
            self._behind.append(token)
        else:
            self._matcher.consume_token(token)

    def allowed(self) -> Tensor:
        """Whether each token of the vocabulary may come next; InvalidRequest if none can be found."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise InvalidRequest(f"The grammar cannot be followed: {self._matcher.get_error()}", param=guides.PARAM)
        flags = np.unpackbits(bits, bitorder="little")[: self._vocab_size]
        allowed = torch.zeros(self._vocab_size, dtype=torch.bool)
        allowed[: len(flags)] = torch.from_numpy(flags).bool()
        return allowed


class Guides:
    """Compiles grammars in threads of its own, so that no step waits, and keeps those last used."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        """`tokenizer` is llguidance's; None if the model's tokenizer is of no use to it."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._threads = ThreadPoolExecutor(max_workers=COMPILERS, thread_name_prefix="guides")
        self._kept: OrderedDict[wire.Guide, Future[LLMatcher]] = OrderedDict()

    def start(self, asked: wire.Guide) -> Guide:
        """A guide that will be ready soon; InvalidRequest if this model can have none."""
        if self._tokenizer is None:
            problem = "This model's tokenizer cannot be guided."
            raise InvalidRequest(problem, param=guides.PARAM, code="unsupported_value")
        compiled = self._kept.pop(asked, None)
        if compiled is None:
            compiled = self._threads.submit(self._compile, asked)
        self._kept[asked] = compiled
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return Guide(compiled, self._vocab_size)

    def close(self) -> None:
        """Let go of the threads; a compilation that runs is bounded by its limits."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _compile(self, asked: wire.Guide) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, guides.grammar_of(asked), log_level=0)
        if matcher.is_error():
            raise InvalidRequest(f"The grammar cannot be used: {matcher.get_error()}", param=guides.PARAM)
        return matcher
