"""Sampler: which token comes next, and how likely it was. Vectorised over the batch.

In this order, as vLLM has it: log-probabilities of what the model says; logit bias; penalties (repetition, then
frequency and presence); tokens that may not come yet; what a guide allows; temperature; min_p; top_k; top_p; the draw.
What a row gets depends on nothing in the other rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from shared.wire import Sampling
from worker.engines.continuous.rows import Pick, Row

GREEDY_BELOW = 1e-5
LEAST_LOGPROB = -9999.0
"""Told instead of minus infinity, which JSON cannot say."""
BLOCK = 64
MOST_TRIALS = 64
MASK64 = 2**64 - 1
GOLDEN, ODD = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95


def state(seed: int, position: int, trial: int = 0) -> int:
    """Where the random numbers of an answer's token at `position` begin: a function of these alone.

    So a request gets the same answer in any batch, and goes on in it after its worker died.
    """
    return _mix(_mix(seed & MASK64) + (position + 1) * GOLDEN + trial * ODD)


def _mix(number: int) -> int:
    """The finaliser of SplitMix64."""
    number &= MASK64
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK64
    return number ^ (number >> 31)


def uniform(states: Tensor, count: int) -> Tensor:
    """`count` numbers in (0, 1) for each of the [rows] int64 states: SplitMix64, which wraps as int64 does."""
    steps = torch.arange(1, count + 1, device=states.device) * _signed(GOLDEN)
    numbers = states[:, None] + steps
    numbers = (numbers ^ (numbers >> 30 & (1 << 34) - 1)) * _signed(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> 27 & (1 << 37) - 1)) * _signed(0x94D049BB133111EB)
    numbers ^= numbers >> 31 & (1 << 33) - 1
    return ((numbers >> 12 & (1 << 52) - 1).double() + 0.5) * 2.0**-52


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def choose(logits: Tensor, rows: Sequence[Row]) -> list[Pick]:
    """One token for each row of `logits` [rows, vocabulary], which may be changed in place.

    All of it in float32: a small penalty would be lost in the rounding of a coarser type.
    """
    logits = logits.float()
    told = likelihoods(logits, [row.sampling.logprobs for row in rows])
    _bias(logits, rows)
    _penalise(logits, rows)
    _restrict(logits, rows)
    tokens = torch.empty(len(rows), dtype=torch.long, device=logits.device)
    drawn = [number for number, row in enumerate(rows) if row.sampling.temperature >= GREEDY_BELOW]
    if greedy := [number for number, row in enumerate(rows) if row.sampling.temperature < GREEDY_BELOW]:
        tokens[greedy] = _part(logits, greedy).argmax(dim=-1)
    if drawn:
        tokens[drawn] = _sample(_part(logits, drawn), [rows[number] for number in drawn])
    ids: list[int] = tokens.tolist()
    return [one.of(token) if one else Pick(token) for one, token in zip(told, ids, strict=True)]


# Log-probabilities ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """One row's log-probabilities, and the likeliest of them."""

    row: Tensor
    top: tuple[tuple[int, float], ...]

    def of(self, token: int) -> Pick:
        logprob = float(self.row[token])
        return Pick(token, max(LEAST_LOGPROB, logprob), self.top)  # what is no number, too


def likelihoods(logits: Tensor, wanted: Sequence[int | None]) -> list[Likelihoods | None]:
    """For each row that wants them: log-probabilities at temperature 1, and so many of the likeliest."""
    rows = [number for number, count in enumerate(wanted) if count is not None]
    found: list[Likelihoods | None] = [None] * len(wanted)
    if not rows:
        return found
    logprobs = (logits if len(rows) == len(wanted) else logits[rows]).float().log_softmax(dim=-1)
    most = max(wanted[row] or 0 for row in rows)
    best = logprobs.topk(most, dim=-1)
    ids, values = best.indices.tolist(), best.values.nan_to_num(LEAST_LOGPROB).clamp(min=LEAST_LOGPROB).tolist()
    for place, row in enumerate(rows):
        count = wanted[row] or 0
        top = tuple(zip(ids[place][:count], values[place][:count], strict=True))
        found[row] = Likelihoods(logprobs[place], top)
    return found


# What changes the logits ---------------------------------------------------------------------------


def _penalise(logits: Tensor, rows: Sequence[Row]) -> None:
    """OpenAI's frequency and presence penalties on the answer, and CTRL's repetition penalty on prompt and answer."""
    with_tally = [(number, row.tally, row.sampling) for number, row in enumerate(rows) if row.tally is not None]
    if not with_tally:
        return
    lengths = torch.tensor([len(tally.ids) for _, tally, _ in with_tally])

    def spread(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32).repeat_interleave(lengths).to(logits.device)

    index = torch.tensor([number for number, _, _ in with_tally]).repeat_interleave(lengths).to(logits.device)
    named = [token for _, tally, _ in with_tally for token in tally.ids]
    ids = torch.tensor(named, dtype=torch.long, device=logits.device)
    counts = torch.tensor([count for _, tally, _ in with_tally for count in tally.counts], device=logits.device)
    repetition = spread([sampling.repetition_penalty for _, _, sampling in with_tally])
    values = logits[index, ids].float()
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= spread([sampling.frequency_penalty for _, _, sampling in with_tally]) * counts
    values -= spread([sampling.presence_penalty for _, _, sampling in with_tally]) * (counts > 0)
    logits[index, ids] = values.to(logits.dtype)


def _bias(logits: Tensor, rows: Sequence[Row]) -> None:
    biases = [(number, *pair) for number, row in enumerate(rows) for pair in row.sampling.logit_bias]
    if biases:
        numbers, ids, values = zip(*biases, strict=True)
        added = torch.tensor(values, dtype=logits.dtype, device=logits.device)
        index = (torch.tensor(numbers, device=logits.device), torch.tensor(ids, device=logits.device))
        logits.index_put_(index, added, accumulate=True)


def _restrict(logits: Tensor, rows: Sequence[Row]) -> None:
    """Take out what may not come. Where a guide leaves nothing but muted tokens, the guide wins."""
    for number, row in enumerate(rows):
        if row.allowed is not None:
            logits[number].masked_fill_(~row.allowed.to(logits.device), -torch.inf)
        if row.muted:
            muted = list(row.muted)
            before = logits[number, muted]
            logits[number, muted] = -torch.inf
            if row.allowed is not None and torch.isneginf(logits[number].amax()):
                logits[number, muted] = before


# The draw ------------------------------------------------------------------------------------------


def _sample(scores: Tensor, rows: Sequence[Row]) -> Tensor:
    """A token for each row of scores, which are changed in place: new memory costs more than the arithmetic."""
    samplings = [row.sampling for row in rows]
    scores.div_(scores.new_tensor([one.temperature for one in samplings])[:, None])
    best = scores.amax(dim=-1, keepdim=True)
    _keep_likely(scores, best, samplings)
    _keep_best(scores, samplings)
    weights = scores.sub_(best).exp_()  # probabilities but for a factor
    tokens = _pick(weights, _states(rows, 0, scores.device))
    undecided = [number for number, one in enumerate(samplings) if one.top_p < 1]
    if undecided:
        top_p = torch.tensor([one.top_p for one in samplings], dtype=torch.float64, device=weights.device)
        wanted = _sum(weights) * top_p.clamp(min=1e-12)
        for trial in range(1, MOST_TRIALS):
            states = _states(rows, trial, weights.device)
            undecided = _retry(weights, wanted, tokens, undecided, states)
            if not undecided:
                return tokens
        tokens[undecided] = weights[undecided].argmax(dim=-1)
    return tokens


def _retry(weights: Tensor, wanted: Tensor, tokens: Tensor, undecided: list[int], states: Tensor) -> list[int]:
    """Draw again where a token is not among the likeliest that make up top_p; returns the rows where that was so.

    Nothing is sorted: a token belongs to them if those that are likelier make up less than top_p. If it does not,
    then neither does any that is as unlikely, so these go too, and the rest still holds all that belong
    (rejection with a rising pivot, as FlashInfer samples).
    """
    whole = _part(weights, undecided)
    own = whole.gather(1, tokens[undecided][:, None])
    blocks = _blocks(whole)
    # Most blocks of a peaked distribution hold nothing that is likelier, and need not be added up.
    row, at = (blocks.amax(dim=-1) > own).nonzero(as_tuple=True)
    some = blocks[row, at]
    sums = (some * (some > own[row])).sum(dim=-1).double()
    # What was cut in an earlier trial was never likelier than what is looked at now: the sums are whole.
    likelier = torch.zeros_like(wanted[undecided]).index_add_(0, row, sums)
    places = (likelier >= wanted[undecided]).nonzero()[:, 0].tolist()
    again = [undecided[place] for place in places]
    if again:
        left = whole[places]
        left *= left > own[places]
        weights[again] = left
        tokens[again] = _pick(left, states[again])
    return again


def _part(scores: Tensor, rows: list[int]) -> Tensor:
    """These rows: the very scores if they are all of them, a copy otherwise."""
    return scores if len(rows) == len(scores) else scores[rows]


def _sum(weights: Tensor) -> Tensor:
    """Of each row, in float64; over blocks first, as converting all numbers takes longer than adding them."""
    return _blocks(weights).sum(dim=-1).sum(dim=-1, dtype=torch.float64)


def _blocks(weights: Tensor) -> Tensor:
    missing = -weights.shape[-1] % BLOCK
    return (pad(weights, (0, missing)) if missing else weights).unflatten(-1, (-1, BLOCK))


def _states(rows: Sequence[Row], trial: int, device: torch.device) -> Tensor:
    numbers = [_signed(state(row.sampling.seed, row.position, trial)) for row in rows]
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def _keep_likely(scores: Tensor, best: Tensor, samplings: Sequence[Sampling]) -> None:
    """min_p: out with what is less likely than this share of the likeliest."""
    rows = [number for number, one in enumerate(samplings) if one.min_p > 0]
    if rows:
        share = scores.new_tensor([samplings[number].min_p for number in rows]).log()[:, None]
        _cut(scores, rows, best[rows] + share)


def _keep_best(scores: Tensor, samplings: Sequence[Sampling]) -> None:
    """top_k: out with what scores less than the k-th best; several that score the same stay together."""
    rows = [number for number, one in enumerate(samplings) if 0 < one.top_k < scores.shape[-1]]
    if rows:
        ks = [samplings[number].top_k for number in rows]
        best = _part(scores, rows).topk(max(ks), dim=-1).values
        _cut(scores, rows, best.gather(1, torch.tensor(ks, device=scores.device)[:, None] - 1))


def _cut(scores: Tensor, rows: list[int], least: Tensor) -> None:
    """Out with what scores less than this, in these rows."""
    part = _part(scores, rows)
    part.masked_fill_(part < least, -torch.inf)
    if part is not scores:
        scores[rows] = part


def _pick(weights: Tensor, states: Tensor) -> Tensor:
    """A token of each row by the Gumbel-max trick, its block of the vocabulary first; the rows need not sum to 1.

    A token wins by the ratio of two probabilities, so the rounding that differs from batch to batch changes an answer
    only if two are level. Along a cumulative distribution each of thousands of rare tokens has an edge to fall over.
    """
    blocks = _blocks(weights)
    count = blocks.shape[1]
    noise = -(-uniform(states, count + BLOCK).log()).log()
    block = (blocks.sum(dim=-1).double().log() + noise[:, :count]).argmax(dim=-1)
    inside = blocks[torch.arange(len(blocks), device=block.device), block].double().log() + noise[:, count:]
    return block * BLOCK + inside.argmax(dim=-1)
