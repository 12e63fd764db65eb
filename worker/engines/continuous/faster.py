"""Layers that compute the same in less time, for float32 on a CPU.

Measured with SmolLM2-135M on two cores with AVX-512, all linear layers of a step, least of many turns in ms:

| rows | 1 | 2 | 4 | 8 | 16 | 32 | 64 | 128 |
|---|---|---|---|---|---|---|---|---|
| MKL | 21 | 24 | 40 | 51 | 53 | 54 | 106 | 137 |
| packed by oneDNN | 28 | 28 | 32 | 38 | 47 | 51 | 89 | 121 |
| packed, siblings as one | 25 | 27 | 28 | 33 | 43 | 54 | 82 | 119 |

So a few rows, as in decoding, run on packed weights, and one row on the weights as they are; both are kept. Many rows
do too: what the layers gain there, reading the shares of siblings loses again.
"""

from collections.abc import Sequence as Series
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm

from worker.engines.continuous.layers import replace_children

PACKED_ROWS = range(2, 33)
SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names that transformers gives to layers of a module that all take the same input."""
SAME_NORM = frozenset({"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "Phi3RMSNorm"})
"""Classes of transformers that compute weight * x / sqrt(mean(x^2) + eps), which torch has as one operation."""


class Packed:
    """The weights of linear layers with one input, joined and in oneDNN's order.

    All of them are computed when the first is asked; the others' shares wait until they are asked about the very same
    tensor. Asked about another, it computes anew: slower, and never wrong.
    """

    def __init__(self, sources: Series[nn.Linear]) -> None:
        self._sizes = [source.out_features for source in sources]
        reorder = torch.ops.mkldnn._reorder_linear_weight  # noqa: SLF001 - an operator
        self._weights: Tensor = reorder(torch.cat([source.weight.detach() for source in sources]), None)
        self._bias: Tensor | None = None
        if any(source.bias is not None for source in sources):
            zeros = [source.weight.new_zeros(source.out_features) for source in sources]
            pairs = zip(sources, zeros, strict=True)
            self._bias = torch.cat([zero if one.bias is None else one.bias.detach() for one, zero in pairs])
        self._given: Tensor | None = None
        self._waiting: dict[int, Tensor] = {}

    def share(self, place: int, given: Tensor) -> Tensor:
        """The output of the layer at this place in `sources`."""
        if given is not self._given or place not in self._waiting:
            multiply = torch.ops.mkldnn._linear_pointwise  # noqa: SLF001 - an operator
            whole = multiply(given, self._weights, self._bias, "none", [], "")
            if len(self._sizes) == 1:
                return whole
            self._given, self._waiting = given, dict(enumerate(whole.split(self._sizes, dim=-1)))
        found = self._waiting.pop(place)
        if not self._waiting:
            self._given = None
        return found


class PackedLinear(nn.Module):
    """A linear layer that also keeps its weights packed, perhaps with those of its siblings."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, source: nn.Linear, packed: Packed, place: int = 0) -> None:
        super().__init__()
        self.register_buffer("weight", source.weight.detach())
        self.register_buffer("bias", None if source.bias is None else source.bias.detach())
        self._packed = packed
        self._place = place

    def forward(self, given: Tensor) -> Tensor:
        if given.numel() // given.shape[-1] not in PACKED_ROWS:
            return linear(given, self.weight, self.bias)
        return self._packed.share(self._place, given)


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
    for module in list(network.modules()):
        for names in _groups(module):
            sources = [getattr(module, name) for name in names]
            packed = Packed(sources)
            for place, (name, source) in enumerate(zip(names, sources, strict=True)):
                setattr(module, name, PackedLinear(source, packed, place))
    replace_children(network, lambda child: FusedNorm(child) if type(child).__name__ in SAME_NORM else child)


def _groups(module: nn.Module) -> list[tuple[str, ...]]:
    """The linear layers right in this module, those that take the same input together."""
    children = {name: child for name, child in module.named_children() if isinstance(child, nn.Linear)}
    groups = [
        names
        for names in SIBLINGS
        if children.keys() >= set(names) and len({children[name].in_features for name in names}) == 1
    ]
    alone = children.keys() - {name for names in groups for name in names}
    return [*groups, *((name,) for name in alone)]
