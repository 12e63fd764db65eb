"""Attention: a packed step's queries against the keys and values in the slots."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from shared.errors import ConfigError
from worker.engines.continuous.chunks import Chunk

NAME = "busway_slots"
ROUND_TO = 32
"""Attended lengths are multiples of it, so that few shapes occur."""
# What a model may hand to its attention function and we would have to honour, but do not.
UNSUPPORTED = ("softcap", "s_aux", "sinks", "position_bias", "indices", "block_indices", "cu_seq_lens_q")


class KeyValues:
    """Keys and values of every layer, one contiguous [slots, kv_heads, length, head_dim] each.

    A layer's storage is allocated when it first runs (while the model is loaded) and never again.
    """

    def __init__(self, slots: int, length: int) -> None:
        self.slots = slots
        self.length = length
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The storage of a layer whose new keys and values look like these."""
        if index not in self.layers:
            # Zeros, since a row that belongs to no sequence is read (and dropped): it must be finite.
            made = [new.new_zeros(self.slots, new.shape[1], self.length, new.shape[3]) for new in (key, value)]
            self.layers[index] = (made[0], made[1])
        return self.layers[index]


class Blocks:
    """Copies of stretches of slots, `count` of them, each [kv_heads, size, head_dim] in every layer."""

    def __init__(self, storage: KeyValues, count: int, size: int) -> None:
        """Takes the layers that `storage` has by now: all of them, once the model has run."""
        self._size = size
        self._layers = [
            (source, source.new_zeros(count, source.shape[1], size, source.shape[3]))
            for layer in storage.layers.values()
            for source in layer
        ]

    def save(self, slot: int, blocks: Sequence[int], start: int) -> None:
        """Keep what the slot holds from position `start` on, in these blocks one after the other."""
        count = len(blocks)
        for source, kept in self._layers:
            held = source[slot, :, start : start + count * self._size]
            kept[list(blocks)] = held.reshape(held.shape[0], count, self._size, -1).transpose(0, 1)

    def load(self, blocks: Sequence[int], slot: int) -> None:
        """Let the slot begin with these blocks."""
        length = len(blocks) * self._size
        for source, kept in self._layers:
            source[slot, :, :length] = kept[list(blocks)].transpose(0, 1).reshape(source.shape[1], length, -1)


@dataclass(frozen=True, slots=True)
class Prefill:
    """A stretch of one sequence's tokens in a packed step."""

    first: int
    last: int
    slot: int
    length: int
    """Of the sequence, up to the stretch's end."""
    allowed: Tensor


@dataclass(frozen=True, slots=True)
class Packing:
    """Where a packed step's tokens belong. The decodes come first, by slot; each prefill follows."""

    storage: KeyValues
    slots: Tensor
    positions: Tensor
    decodes: int
    low: int
    high: int
    """Decodes read the storage of slots `low` to `high`, those in between that do not decode too."""
    length: int
    """Positions that a decode may attend to, rounded up."""
    rows: Tensor | None
    """Of each decode, in `low` to `high`; None if they are all of them."""
    allowed: Tensor | None
    """None: a decode may attend to all `length` positions."""
    prefills: tuple[Prefill, ...]
    lone: tuple[int, int] | None
    """Slot and position of the only token; None if there are more."""


def pack(chunks: Sequence[Chunk], storage: KeyValues, device: torch.device) -> Packing:
    """The packing of these chunks, in the order in which `chunks.arrange` returns them."""
    slots = torch.tensor([chunk.sequence.slot for chunk in chunks for _ in range(chunk.count)])
    positions = torch.tensor([at for chunk in chunks for at in range(chunk.start, chunk.end)])
    decodes = sum(chunk.is_decode for chunk in chunks)
    low = high = length = 0
    rows = allowed = None
    if decodes:
        low, high = int(slots[0]), int(slots[decodes - 1]) + 1
        length = int(positions[:decodes].max()) + 1
    if decodes > 1:
        length = min(-(-length // ROUND_TO) * ROUND_TO, storage.length)
        ends = torch.zeros(high - low, dtype=torch.long)
        ends[slots[:decodes] - low] = positions[:decodes]
        allowed = (torch.arange(length) <= ends[:, None])[:, None, None].to(device)
        rows = None if decodes == high - low else (slots[:decodes] - low).to(device)
    prefills, first = [], decodes
    for chunk in chunks[decodes:]:
        last = first + chunk.count
        causal = (torch.arange(chunk.end) <= positions[first:last, None]).to(device)
        prefills.append(Prefill(first, last, chunk.sequence.slot, chunk.end, causal))
        first = last
    on_device = slots.to(device), positions.to(device)
    lone = (int(slots[0]), int(positions[0])) if len(slots) == 1 else None
    return Packing(storage, *on_device, decodes, low, high, length, rows, allowed, tuple(prefills), lone)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    _mask: Tensor | None,
    scaling: float | None = None,
    **given: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: [1, heads, tokens, head_dim] in, [1, tokens, heads, head_dim] out."""
    if "packing" not in given:
        raise ConfigError("the model hands its attention nothing on, so the continuous engine cannot run it")
    packing: Packing = given["packing"]
    _refuse_unsupported(packing, given)
    keys, values = packing.storage.layer(module.layer_idx, key, value)
    if packing.lone is not None:
        slot, position = packing.lone
        keys[slot, :, position] = key[0, :, 0]
        values[slot, :, position] = value[0, :, 0]
    else:
        keys[packing.slots, :, packing.positions] = key[0].transpose(0, 1)
        values[packing.slots, :, packing.positions] = value[0].transpose(0, 1)
    parts = []
    if packing.decodes:
        parts.append(_decode(packing, query, keys, values, scaling))
    parts += [_prefill(prefill, query, keys, values, scaling) for prefill in packing.prefills]
    output = parts[0] if len(parts) == 1 else torch.cat(parts)
    return output[None], None


def _refuse_unsupported(packing: Packing, given: dict[str, Any]) -> None:
    window = given.get("sliding_window")
    if window is not None and window < packing.storage.length:
        raise ConfigError(
            f"the model attends to the last {window} tokens only, which the continuous engine cannot do; "
            f"with BUSWAY_WORKER__MAX_MODEL_LEN={window} it can run it"
        )
    for name in UNSUPPORTED:
        if given.get(name) is not None:
            raise ConfigError(f"the model's attention uses {name}, which the continuous engine does not support")


def _decode(packing: Packing, query: Tensor, keys: Tensor, values: Tensor, scaling: float | None) -> Tensor:
    """All decodes at once, over a view of the slots that they span."""
    heads, width, kv_heads = query.shape[1], query.shape[3], keys.shape[1]
    queries = query[0, :, : packing.decodes].transpose(0, 1)
    if packing.rows is not None:
        spread = queries.new_zeros(packing.high - packing.low, heads, width)
        spread[packing.rows] = queries
        queries = spread
    # The query heads that share a key head stand where further queries would: nothing is repeated.
    queries = queries.reshape(-1, kv_heads, heads // kv_heads, width)
    output = scaled_dot_product_attention(
        queries,
        keys[packing.low : packing.high, :, : packing.length],
        values[packing.low : packing.high, :, : packing.length],
        attn_mask=packing.allowed,
        scale=scaling,
    ).reshape(-1, heads, values.shape[3])
    return output if packing.rows is None else output[packing.rows]


def _prefill(prefill: Prefill, query: Tensor, keys: Tensor, values: Tensor, scaling: float | None) -> Tensor:
    """A stretch of a prompt against all of its sequence so far."""
    heads, width, kv_heads = query.shape[1], query.shape[3], keys.shape[1]
    count, slot = prefill.last - prefill.first, prefill.slot
    queries = query[0, :, prefill.first : prefill.last].reshape(1, kv_heads, -1, width)
    output = scaled_dot_product_attention(
        queries,
        keys[slot : slot + 1, :, : prefill.length],
        values[slot : slot + 1, :, : prefill.length],
        attn_mask=prefill.allowed.repeat(heads // kv_heads, 1),
        scale=scaling,
    )
    return output.reshape(heads, count, values.shape[3]).transpose(0, 1)


AttentionInterface.register(NAME, attend)
