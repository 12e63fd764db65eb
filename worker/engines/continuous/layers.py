"""Layers of a network, put in each other's places."""

from collections.abc import Callable

from torch import nn


def replace_children(network: nn.Module, by: Callable[[nn.Module], nn.Module]) -> None:
    """Put in each module's place, at every depth, what `by` makes of it; the module itself stays."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if (other := by(child)) is not child:
                setattr(module, name, other)
