"""Encoder: a transformers encoder that turns batches of token ids into pooled vectors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from shared.errors import ConfigError
from shared.sections import WorkerSettings
from worker.engines.devices import LOADING_FAILURES, device_of, dtype_of
from worker.engines.embedding.recipe import Recipe, read

Vectors = np.ndarray[tuple[int, int], np.dtype[np.float32]]

FORWARD_TOKENS = {"cpu": 32}
"""A forward of its own costs about as much as so many tokens of padding (measured on two cores)."""
FORWARD_TOKENS_ELSEWHERE = 2048
PROBE_TOKENS = 7


class Encoder:
    """Tokenizer, network and recipe of one model."""

    def __init__(self, network: Any, tokenizer: Any, recipe: Recipe, *, max_model_len: int) -> None:
        """Checks that the network can run like this; ConfigError if it cannot."""
        self._network: Any = network
        self._tokenizer = tokenizer
        self._recipe = recipe
        self._device: torch.device = network.device
        self.dimensions: int = network.config.hidden_size
        self.vocab_size: int = network.get_input_embeddings().num_embeddings
        bounds = (max_model_len, recipe.max_tokens, tokenizer.model_max_length, _positions(network))
        self.max_tokens: int = min(bound for bound in bounds if bound)
        self.forward_tokens = FORWARD_TOKENS.get(self._device.type, FORWARD_TOKENS_ELSEWHERE)
        self._check()

    @classmethod
    def load(cls, source: str, settings: WorkerSettings) -> "Encoder":
        """The model at `source` on the device that the settings name."""
        if settings.threads:
            torch.set_num_threads(settings.threads)
        device = device_of(settings.device)
        recipe = read(source)
        logging.disable_progress_bar()
        try:
            network: Any = AutoModel.from_pretrained(source, dtype=dtype_of(settings.dtype, device))
            tokenizer = AutoTokenizer.from_pretrained(source)
        except LOADING_FAILURES as error:
            raise ConfigError(
                f"cannot load BUSWAY_WORKER__MODEL={settings.model}: {error} (the embedding engine takes the built-in "
                "name, a local folder with an encoder model, or a Hugging Face id that this machine can reach)"
            ) from error
        _refuse_unsuited(network, has_recipe=recipe is not None)
        return cls(network.to(device).eval(), tokenizer, recipe or Recipe(), max_model_len=settings.max_model_len)

    @property
    def is_normalised(self) -> bool:
        """Its vectors shall have length 1."""
        return self._recipe.is_normalised

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, with the special tokens that the model expects, uncut."""
        if not texts:
            return []
        ids: list[list[int]] = self._tokenizer(list(texts), truncation=False, verbose=False)["input_ids"]
        return ids

    @torch.inference_mode()
    def encode(self, batch: Sequence[Sequence[int]]) -> Vectors:
        """A vector for each row of ids, pooled but not yet of length 1; computed in float32 from the last layer on."""
        longest = max(map(len, batch))
        ids = torch.zeros((len(batch), longest), dtype=torch.long)
        mask = torch.zeros((len(batch), longest), dtype=torch.long)
        for row, one in enumerate(batch):
            ids[row, : len(one)] = torch.tensor(one, dtype=torch.long)
            mask[row, : len(one)] = 1
        ids, mask = ids.to(self._device), mask.to(self._device)
        hidden: Tensor = self._network(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        if self._recipe.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            weights = mask.unsqueeze(-1).float()
            pooled = (hidden * weights).sum(1) / weights.sum(1)
        return pooled.cpu().numpy()

    def close(self) -> None:
        """Let go of the weights."""
        self._network = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _check(self) -> None:
        """The longest input must run, and a short one beside it must come out as it does alone. Warms up, too."""
        short, long = ([(101 + 37 * n) % self.vocab_size for n in range(size)] for size in self._probe_sizes())
        try:
            alone, together = self.encode([short])[0], self.encode([long, short])[1]
        except (IndexError, RuntimeError, TypeError, AttributeError) as error:
            kind = type(self._network).__name__
            raise ConfigError(
                f"the embedding engine cannot run {kind} with {self.max_tokens} tokens: {error}"
            ) from error
        difference = float(np.linalg.norm(together - alone) / np.linalg.norm(alone))
        if not difference <= (1e-4 if self._network.dtype == torch.float32 else 0.1):
            raise ConfigError(f"a vector of this model depends on its neighbours: it is off by {difference:.2g}")

    def _probe_sizes(self) -> tuple[int, int]:
        return min(PROBE_TOKENS, self.max_tokens), self.max_tokens


def _positions(network: Any) -> int | None:
    """Tokens for which the model has positions. RoBERTa's kin count from beyond the padding token's."""
    config = network.config
    positions: int | None = getattr(config, "max_position_embeddings", None)
    table = getattr(getattr(network, "embeddings", None), "position_embeddings", None)
    first = getattr(table, "padding_idx", None)
    return positions if positions is None or first is None else positions - first - 1


def _refuse_unsuited(network: Any, *, has_recipe: bool) -> None:
    config, kind = network.config, type(network).__name__
    if config.is_encoder_decoder:
        raise ConfigError(f"{kind} is an encoder-decoder model; the embedding engine runs encoders only")
    if not has_recipe and any("CausalLM" in name for name in config.architectures or ()):
        raise ConfigError(f"{kind} is a language model, and nothing beside it says how it makes embeddings")
