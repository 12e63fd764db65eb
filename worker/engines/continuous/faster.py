"""Layers that compute the same in less time, for float32 on a CPU.

Measured with SmolLM2-135M on two cores with AVX-512, all linear layers of a step (ms, MKL / packed by oneDNN):
1 row 21 / 27, 4 rows 37 / 30, 8 rows 45 / 34, 16 rows 45 / 40, 64 rows 67 / 70. So a few rows, as in decoding,
run on packed weights, and one row or many on the weights as they are; both are kept.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm

from worker.engines.continuous.layers import replace_children

PACKED_ROWS = range(2, 33)
SAME_NORM = frozenset({"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "Phi3RMSNorm"})
"""Classes of transformers that compute weight * x / sqrt(mean(x^2) + eps), which torch has as one operation."""


class PackedLinear(nn.Module):
    """A linear layer that also keeps its weights in oneDNN's order."""

    weight: Tensor
    packed: Tensor
    bias: Tensor | None

    def __init__(self, source: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", source.weight.detach())
        reorder = torch.ops.mkldnn._reorder_linear_weight  # noqa: SLF001 - an operator
        self.register_buffer("packed", reorder(self.weight, None))
        self.register_buffer("bias", None if source.bias is None else source.bias.detach())

    def forward(self, given: Tensor) -> Tensor:
        rows = given.numel() // given.shape[-1]
        if rows not in PACKED_ROWS:
            return linear(given, self.weight, self.bias)
        multiply = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - an operator
        return multiply(given, self.packed, self.bias, "none", [], "")


class FusedNorm(nn.Module):
    """Root mean square normalisation in one operation."""

    weight: Tensor

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.register_buffer("weight", source.weight.detach())
        self._epsilon: float = source.variance_epsilon

    def forward(self, given: Tensor) -> Tensor:
        return rms_norm(given, self.weight.shape, self.weight, self._epsilon)


def speed_up(network: Any) -> None:
    """Replace what can be replaced, in place. Anything but float32 on a CPU stays as it is."""
    if network.device.type != "cpu" or network.dtype != torch.float32 or not torch.backends.mkldnn.is_available():
        return
    replace_children(network, _faster)


def _faster(child: nn.Module) -> nn.Module:
    if isinstance(child, nn.Linear):
        return PackedLinear(child)
    return FusedNorm(child) if type(child).__name__ in SAME_NORM else child
