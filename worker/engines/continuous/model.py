"""Model: a causal language model that runs packed steps over the slots."""

from collections.abc import Sequence as Series
from typing import Any

import structlog
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from shared.errors import ConfigError
from shared.sections import WorkerSettings
from worker.engines.continuous.attention import NAME, Blocks, KeyValues, Packing, pack
from worker.engines.continuous.chunks import Chunk
from worker.engines.continuous.faster import speed_up
from worker.engines.continuous.graphs import StaticDecode
from worker.engines.continuous.quantized import Int8Linear, quantize_and_compare
from worker.engines.continuous.sequence import Sequence
from worker.engines.devices import LOADING_FAILURES, device_of, dtype_of

LAYER_TYPES = {"full_attention", "sliding_attention"}  # the latter is refused where its window is too short
LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}
PROBE_TOKENS = 12

log = structlog.get_logger()


class Model:
    """The network, its storage, and the one way in which they run."""

    def __init__(self, network: Any, *, slots: int, max_model_len: int, static: bool = False) -> None:
        """Checks that the network can run like this, against itself; ConfigError if it cannot.

        `static`: decode in steps of fixed shapes, which CUDA replays as recorded graphs.
        """
        config = network.config.get_text_config()
        self.max_model_len = min(max_model_len, getattr(config, "max_position_embeddings", None) or max_model_len)
        _refuse_unsuited(network, config, self.max_model_len)
        self.vocab_size: int = network.get_input_embeddings().num_embeddings
        self._network: Any = network
        self._device: torch.device = network.device
        self._storage = KeyValues(slots, self.max_model_len)
        expected = self._probe_plainly()
        speed_up(network)
        network.set_attn_implementation(NAME)
        self._static: StaticDecode | None = None
        self._check(expected, config.num_hidden_layers)
        if static:
            self._static = StaticDecode(self._run, self._storage, self._device)
            self._check(expected, config.num_hidden_layers)

    @classmethod
    def load(cls, source: str, settings: WorkerSettings) -> "Model":
        """The model at `source` on the device that the settings name."""
        if settings.threads:
            torch.set_num_threads(settings.threads)
        device = device_of(settings.device)
        if settings.quantization == "int8" and device.type != "cpu":
            raise ConfigError(f"BUSWAY_WORKER__QUANTIZATION=int8: the device is {device.type}, and only CPUs run it")
        if settings.cuda_graphs and device.type != "cuda":
            raise ConfigError(f"BUSWAY_WORKER__CUDA_GRAPHS=true: the device is {device.type}, and only CUDA has graphs")
        logging.disable_progress_bar()
        try:
            network: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype_of(settings.dtype, device))
        except LOADING_FAILURES as error:
            raise ConfigError(
                f"cannot load BUSWAY_WORKER__MODEL={settings.model}: {error} (it takes the built-in name, a local "
                "folder with a model, or a Hugging Face id that this machine can reach or has in its cache)"
            ) from error
        network.to(device).eval()
        if settings.quantization == "int8":
            told = quantize_and_compare(network)
            log.info("model.quantized", **{name: round(value, 5) for name, value in told.items()})
        return cls(network, slots=settings.slots, max_model_len=settings.max_model_len, static=settings.cuda_graphs)

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens with which the model ends an answer."""
        ends = self._network.generation_config.eos_token_id
        return frozenset(ends if isinstance(ends, list | tuple) else () if ends is None else (ends,))

    @torch.inference_mode()
    def forward(self, chunks: Series[Chunk]) -> Tensor:
        """Run the chunks as one sequence of tokens; of each, in turn, as many rows of logits as it wants."""
        if self._static is not None and all(chunk.is_decode for chunk in chunks):
            return self._static.run(chunks)
        packing = pack(chunks, self._storage, self._device)
        ids = [token for chunk in chunks for token in chunk.sequence.tokens(chunk.start, chunk.count)]
        wanted, end = [], 0
        for chunk in chunks:
            end += chunk.count
            wanted += range(end - chunk.wanted, end)
        on_device = [torch.tensor(numbers, dtype=torch.long, device=self._device) for numbers in (ids, wanted)]
        return self._run(on_device[0], packing, on_device[1])

    def _run(self, ids: Tensor, packing: Packing, wanted: Tensor) -> Tensor:
        output = self._network(
            input_ids=ids[None],
            position_ids=packing.positions[None],
            use_cache=False,
            logits_to_keep=wanted,
            packing=packing,
        )
        logits: Tensor = output.logits[0]
        return logits

    def blocks(self, count: int, size: int) -> Blocks:
        """Room for `count` stretches of `size` tokens beside the slots."""
        return Blocks(self._storage, count, size)

    def close(self) -> None:
        """Let go of the weights and the storage."""
        self._network = self._static = None
        self._storage.layers.clear()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def _probe_plainly(self) -> Tensor:
        """The last logits of some tokens, computed by transformers alone."""
        ids = torch.tensor([self._probe()], device=self._device)
        logits: Tensor = self._network(input_ids=ids, use_cache=False).logits[0, -1]
        return logits

    def _probe(self) -> list[int]:
        length = min(PROBE_TOKENS, self.max_model_len)
        return [(101 + 37 * index) % self.vocab_size for index in range(length)]

    def _check(self, expected: Tensor, layers: int) -> None:
        """The same tokens in chunks must give the same logits. Allocates the storage, and warms up."""
        ids = self._probe()
        probe: Any = Sequence("probe", "", 0, ids, None, 1, (), None)  # type: ignore[arg-type]
        middle, last = len(ids) // 2, len(ids) - 1
        self.forward([Chunk(probe, 0, middle)])
        if len(self._storage.layers) != layers:
            raise ConfigError(f"only {len(self._storage.layers)} of the model's {layers} layers are plain attention")
        self.forward([Chunk(probe, middle, last - middle)])
        found = self.forward([Chunk(probe, last, 1)])[0].float()
        difference = ((found - expected.float()).norm() / expected.float().norm()).item()
        # Coarser types differ by rounding alone; a mechanism that we leave out differs by its whole effect.
        is_rounded = any(isinstance(module, Int8Linear) for module in self._network.modules())
        bound = 1e-3 if found.dtype == expected.dtype and not is_rounded else 0.3
        if not difference <= bound:
            raise ConfigError(
                f"the model's logits are off by {difference:.2g} of their size in the continuous engine, so its "
                "attention does something that this engine does not support"
            )


def _refuse_unsuited(network: Any, config: Any, max_model_len: int) -> None:
    kind = type(network).__name__
    if config.is_encoder_decoder:
        raise ConfigError(f"{kind} is an encoder-decoder model; the continuous engine runs decoders only")
    if not getattr(network, "_supports_attention_backend", False):
        raise ConfigError(f"transformers lets no other attention into {kind}, so the continuous engine cannot run it")
    if strange := set(getattr(config, "layer_types", None) or ()) - LAYER_TYPES:
        raise ConfigError(f"{kind} has layers that the continuous engine does not support: {sorted(strange)}")
    rope = getattr(config, "rope_parameters", None) or {}
    trained = rope.get("original_max_position_embeddings") or getattr(config, "max_position_embeddings", max_model_len)
    if rope.get("rope_type") in LENGTH_DEPENDENT_ROPE and max_model_len > trained:
        raise ConfigError(
            f"{kind} turns its positions by the longest request's length, which would change the others' answers; "
            f"with BUSWAY_WORKER__MAX_MODEL_LEN={trained} it can run"
        )
