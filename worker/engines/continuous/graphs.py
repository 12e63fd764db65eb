"""StaticDecode: decode steps of fixed shapes, each of which a CUDA device replays as one recorded graph.

A step that only decodes is padded to one of a few shapes: a number of rows, and of positions that are attended to. All
slots are read, those that do not decode too. The padding repeats the last decode: it writes the same numbers to the
same place, and its logits are dropped.
"""

from collections.abc import Callable
from collections.abc import Sequence as Series

import torch
from torch import Tensor

from shared.errors import ConfigError
from worker.engines.continuous.attention import KeyValues, Packing
from worker.engines.continuous.chunks import Chunk

SHORTEST = 128
Forward = Callable[[Tensor, Packing, Tensor], Tensor]
"""(ids, packing, rows whose logits are wanted) -> logits."""


class StaticDecode:
    """One shape for every size of batch and length, rounded up to a power of two."""

    def __init__(self, forward: Forward, storage: KeyValues, device: torch.device) -> None:
        """Records all shapes on CUDA, in slots that must be free; ConfigError if the model cannot be recorded.

        Elsewhere the same steps run as they are.
        """
        self._forward = forward
        self._storage = storage
        self._rows = _sizes(1, storage.slots)
        self._lengths = _sizes(SHORTEST, storage.length)
        self._inputs = {rows: torch.zeros(3, rows, dtype=torch.long, device=device) for rows in self._rows}
        self._recorded: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        if device.type == "cuda":
            try:
                with torch.cuda.device(device):
                    self._record()
            except RuntimeError as error:
                raise ConfigError(
                    f"the model's steps cannot be recorded: {error} (BUSWAY_WORKER__CUDA_GRAPHS=false runs it eagerly)"
                ) from error

    @torch.inference_mode()
    def run(self, chunks: Series[Chunk]) -> Tensor:
        """A row of logits for each of the chunks, which are decodes. The next call may write over it."""
        # Each field in a row of its own: ids, slots, positions. One copy brings them to the device.
        columns = [(*one.sequence.tokens(one.start, 1), one.sequence.slot, one.start) for one in chunks]
        rows = next(size for size in self._rows if size >= len(columns))
        length = next(size for size in self._lengths if size >= max(one.end for one in chunks))
        columns += columns[-1:] * (rows - len(columns))
        inputs = self._inputs[rows]
        inputs.copy_(torch.tensor(columns).T)
        if recorded := self._recorded.get((rows, length)):
            graph, logits = recorded
            graph.replay()
        else:
            logits = self._step(inputs, length)
        return logits[: len(chunks)]

    def _step(self, inputs: Tensor, length: int) -> Tensor:
        """Made of `inputs` alone, and never waits for the device: so it can be recorded."""
        ids, slots, positions = inputs
        storage, device = self._storage, inputs.device
        ends = torch.zeros(storage.slots, dtype=torch.long, device=device)
        ends[slots] = positions
        packing = Packing(
            storage, slots, positions, len(slots),
            low=0, high=storage.slots, length=length, rows=slots,
            allowed=(torch.arange(length, device=device) <= ends[:, None])[:, None, None],
            prefills=(), lone=None,
        )  # fmt: skip
        return self._forward(ids, packing, torch.arange(len(slots), device=device))

    @torch.inference_mode()
    def _record(self) -> None:
        """The largest first: the others fit into its memory."""
        pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
        for rows in reversed(self._rows):
            for length in reversed(self._lengths):
                self._warm_up(rows, length, stream)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool):
                    logits = self._step(self._inputs[rows], length)
                self._recorded[rows, length] = graph, logits

    def _warm_up(self, rows: int, length: int, stream: torch.cuda.Stream) -> None:
        """Libraries choose and allocate at their first call, which must not be recorded."""
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step(self._inputs[rows], length)
        torch.cuda.current_stream().wait_stream(stream)


def _sizes(least: int, most: int) -> list[int]:
    """Powers of two times `least` below `most`, and `most`."""
    sizes = []
    while least < most:
        sizes.append(least)
        least *= 2
    return [*sizes, most]
