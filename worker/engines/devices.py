"""Devices: what the settings' `device` and `dtype` mean to torch."""

import torch

from shared.errors import ConfigError

LOADING_FAILURES = (OSError, ValueError, ImportError, LookupError, RuntimeError)
"""How `from_pretrained` fails on what is no model, or cannot be had."""


def device_of(name: str) -> torch.device:
    """The device; `auto` takes a GPU if there is one. ConfigError if there is none of that name."""
    try:
        device = torch.device(name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    except RuntimeError as error:
        raise ConfigError(f"BUSWAY_WORKER__DEVICE={name}: {error}") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"BUSWAY_WORKER__DEVICE={name}: torch sees {torch.cuda.device_count()} such devices")
    return device


def dtype_of(name: str, device: torch.device) -> torch.dtype:
    """The type of the weights; `auto` is float32 on a CPU, bfloat16 elsewhere. ConfigError if there is none."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise ConfigError(f"BUSWAY_WORKER__DTYPE={name}: not a floating-point type of torch")
    return dtype
