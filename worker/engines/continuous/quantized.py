"""Linear layers with int8 weights: a quarter of the memory to read for each step, and answers that differ a little.

One scale for each output channel, symmetric, rounded to nearest; activations in bfloat16. A few rows are multiplied
by the packed weights as they are, which is bound by reading them; for many, as in prefill, the weights are
unpacked first, which is then the smaller part of the work.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, linear

from worker.engines.continuous.layers import replace_children

FEW_ROWS = 16
LARGEST = 127
KERNEL_SIZE = 64
COMPARED = 64


class Int8Linear(nn.Module):
    """Stands in for a linear layer."""

    packed: Tensor
    scale: Tensor
    scale16: Tensor
    bias: Tensor | None

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        weight = source.weight.detach().float()
        scale = (weight.abs().amax(dim=1) / LARGEST).clamp(min=1e-12)
        packed = (weight / scale[:, None]).round().clamp(-LARGEST, LARGEST).to(torch.int8)
        # The kernel does not check: other shapes are read past their end.
        self._suits_kernel = not any(size % KERNEL_SIZE for size in weight.shape)
        self.register_buffer("packed", packed)
        self.register_buffer("scale", scale)
        self.register_buffer("scale16", scale.bfloat16())
        self.register_buffer("bias", None if source.bias is None else source.bias.detach())

    def forward(self, given: Tensor) -> Tensor:
        rows = given.reshape(-1, given.shape[-1])
        if len(rows) <= FEW_ROWS and self._suits_kernel:
            few = torch.ops.aten._weight_int8pack_mm(rows.bfloat16(), self.packed, self.scale16).to(given.dtype)  # noqa: SLF001 - an operator
            found = few if self.bias is None else few + self.bias
        else:
            found = linear(rows, (self.packed * self.scale[:, None]).to(given.dtype), self.bias)
        return found.reshape(*given.shape[:-1], found.shape[-1])


@torch.inference_mode()
def quantize_and_compare(network: Any) -> dict[str, float]:
    """Quantize, and say what it did to the logits after some tokens: mean Kullback-Leibler divergence in nats, the
    largest difference, and how often the likeliest token stayed the same.
    """
    vocab_size = network.get_input_embeddings().num_embeddings
    ids = torch.tensor([[(101 + 37 * place) % vocab_size for place in range(COMPARED)]], device=network.device)
    exact = network(input_ids=ids, use_cache=False).logits[0].float()
    quantize(network)
    found = network(input_ids=ids, use_cache=False).logits[0].float()
    return {
        "kl": kl_div(found.log_softmax(-1), exact.log_softmax(-1), reduction="batchmean", log_target=True).item(),
        "largest_difference": (found - exact).abs().max().item(),
        "same_best": (found.argmax(-1) == exact.argmax(-1)).float().mean().item(),
    }


def quantize(network: Any) -> None:
    """Replace every linear layer of the network, in place."""
    replace_children(network, lambda child: Int8Linear(child) if isinstance(child, nn.Linear) else child)
