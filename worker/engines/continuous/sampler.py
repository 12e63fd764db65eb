"""Sampler: which token comes next."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from shared.wire import Sampling

GREEDY_BELOW = 1e-5
CANDIDATES = (512, 8192)
"""So many of the best tokens top_k and top_p look at, before all: ordering a whole vocabulary is 30 times slower."""
BLOCK = 64
MASK64 = 2**64 - 1


def draw(seed: int, position: int) -> float:
    """The random number in [0, 1) of an answer's token at `position`: a function of these two alone.

    So a request gets the same answer in any batch, and goes on in it after its worker died.
    """
    state = _mix(_mix(seed & MASK64) + (position + 1) * 0x9E3779B97F4A7C15)
    return (state >> 12) * 2.0**-52


def _mix(state: int) -> int:
    """The finaliser of SplitMix64."""
    state &= MASK64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK64
    return state ^ (state >> 31)


def choose(logits: Tensor, samplings: Sequence[Sampling], positions: Sequence[int]) -> list[int]:
    """One token for each row of `logits`; `positions` counts the tokens of each answer so far."""
    tokens = logits.argmax(dim=-1)
    rows = [row for row, sampling in enumerate(samplings) if sampling.temperature >= GREEDY_BELOW]
    if rows:
        draws = [draw(samplings[row].seed, positions[row]) for row in rows]
        drawn = logits if len(rows) == len(samplings) else logits[rows]
        tokens[rows] = _sample(drawn, [samplings[row] for row in rows], draws)
    ids: list[int] = tokens.tolist()
    return ids


def _sample(logits: Tensor, samplings: Sequence[Sampling], draws: Sequence[float]) -> Tensor:
    """A token for each row. What a row gets depends on nothing in the other rows."""
    scores = logits.float() / logits.new_tensor([one.temperature for one in samplings], dtype=torch.float32)[:, None]
    uniform = torch.tensor(draws, dtype=torch.float64, device=logits.device)[:, None]
    tokens = torch.empty(len(samplings), dtype=torch.long, device=logits.device)
    cut = [row for row, one in enumerate(samplings) if one.top_p < 1 or one.top_k > 0]
    if whole := sorted(set(range(len(samplings))).difference(cut)):
        tokens[whole] = _pick(torch.softmax(scores[whole], dim=-1), uniform[whole])
    for size in (*CANDIDATES, scores.shape[-1]):
        fitting = [row for row in cut if samplings[row].top_k <= size or size == scores.shape[-1]]
        if fitting:
            tokens[fitting], is_missed = _cut(
                scores[fitting], [samplings[row] for row in fitting], uniform[fitting], size
            )
            decided = {row for row, missed in zip(fitting, is_missed, strict=True) if not missed}
            cut = [row for row in cut if row not in decided]
    return tokens


def _pick(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Inverse of the cumulative distribution, in the order of the vocabulary.

    In float32 the sum over a large vocabulary would be off by more than a rare token's probability, and in
    float64 it is slow: so it is taken over blocks, and token by token in one block only.
    """
    blocks = pad(probabilities, (0, -probabilities.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    sums = blocks.sum(dim=-1, dtype=torch.float64)
    cumulative = sums.cumsum(dim=-1)
    target = uniform * cumulative[:, -1:]
    block = torch.searchsorted(cumulative, target, right=True)
    rest = (target - cumulative.gather(1, block) + sums.gather(1, block)).clamp(min=0)
    inside = blocks[torch.arange(len(blocks), device=block.device), block[:, 0]].cumsum(dim=-1, dtype=torch.float64)
    last_possible = (inside < inside[:, -1:]).sum(dim=-1, keepdim=True)
    place = torch.searchsorted(inside, rest, right=True).minimum(last_possible)
    return (block * BLOCK + place)[:, 0]


def _cut(scores: Tensor, samplings: Sequence[Sampling], uniform: Tensor, size: int) -> tuple[Tensor, list[bool]]:
    """A token of each row's top_k and top_p, and whether its `size` best tokens are too few to tell."""
    size = min(size, scores.shape[-1])
    best = scores.topk(size, dim=-1)
    cumulative = (best.values - scores.logsumexp(dim=-1, keepdim=True)).exp().cumsum(dim=-1, dtype=torch.float64)
    ks = torch.tensor([one.top_k if 0 < one.top_k < size else size for one in samplings], device=scores.device)[:, None]
    has_k = torch.tensor([one.top_k > 0 for one in samplings], device=scores.device)[:, None]
    # top_p is a share of what top_k left.
    whole = torch.where(has_k, cumulative.gather(1, ks - 1), 1.0)
    wanted = cumulative.new_tensor([one.top_p for one in samplings])[:, None] * whole
    kept = torch.minimum((cumulative < wanted).sum(dim=-1, keepdim=True) + 1, ks)
    is_missed = (~has_k & (cumulative[:, -1:] < wanted))[:, 0]
    rank = torch.searchsorted(cumulative, uniform * cumulative.gather(1, kept - 1), right=True)
    tokens = best.indices.gather(1, rank.minimum(kept - 1))[:, 0]
    return tokens, is_missed.tolist() if size < scores.shape[-1] else [False] * len(samplings)
