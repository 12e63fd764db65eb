"""Embeddings as OpenAI writes them."""

import base64
import sys
from array import array
from collections.abc import Sequence
from typing import Any, Literal

from gateway.openai import sse
from gateway.openai.dialects import Answered
from shared.errors import WireError

FLOAT_BYTES = 4


class Embeddings:
    """Writes the vectors of several parts as one body."""

    def __init__(self, model: str, inputs: Sequence[int], encoding_format: Literal["float", "base64"]) -> None:
        """`inputs`: how many of them each part has."""
        self._model = model
        self._inputs = inputs
        self._encoding_format = encoding_format

    def body(self, answered: Sequence[Answered]) -> bytes:
        """The whole answer."""
        data: list[dict[str, Any]] = []
        for count, (_, outcome, _) in zip(self._inputs, answered, strict=True):
            size = len(outcome.embeddings) // count
            if size == 0 or size * count != len(outcome.embeddings) or size % FLOAT_BYTES:
                raise WireError(f"{len(outcome.embeddings)} bytes are not the vectors of {count} inputs")
            for place in range(count):
                raw = outcome.embeddings[place * size : (place + 1) * size]
                data.append({"object": "embedding", "index": len(data), "embedding": self._vector(raw)})
        tokens = sum(outcome.usage.prompt_tokens for _, outcome, _ in answered if outcome.usage)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return sse.encode({"object": "list", "data": data, "model": self._model, "usage": usage})

    def _vector(self, raw: bytes) -> str | list[float]:
        if self._encoding_format == "base64":
            return base64.b64encode(raw).decode()
        numbers = array("f", raw)
        if sys.byteorder == "big":
            numbers.byteswap()
        return numbers.tolist()
