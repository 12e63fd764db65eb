"""The sampler: the best token, or a draw that depends on the request alone."""

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.wire import Sampling

torch = pytest.importorskip("torch")

from worker.engines.continuous.rows import Row, Tally  # noqa: E402
from worker.engines.continuous.sampler import _signed, choose, state, uniform  # noqa: E402


def tokens(logits, samplings, positions):
    """The tokens that are chosen; the logits stay as they are."""
    rows = [Row(sampling, position) for sampling, position in zip(samplings, positions, strict=True)]
    return [pick.token for pick in choose(logits.clone(), rows)]


def logits(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def shares(row, sampling, draws=4000):
    """How often each token is drawn, over as many positions."""
    drawn = tokens(row.expand(draws, -1), [sampling] * draws, range(draws))
    return torch.bincount(torch.tensor(drawn), minlength=row.shape[-1]) / draws


def draws(pairs, place=0):
    """The random number in this place for each seed and position."""
    states = torch.tensor([_signed(state(seed, position)) for seed, position in pairs])
    return uniform(states, place + 1)[:, place].tolist()


def test_a_draw_is_a_function_of_seed_position_and_trial():
    pairs = [(seed, position) for seed in range(30) for position in range(30)]

    assert draws(pairs) == draws(pairs)
    assert len(set(draws(pairs))) == 900
    assert all(0 < number < 1 for number in draws([(-1, 0), (0, 0), (2**63, 0), (2**64 + 5, 0)]))
    assert state(7, 3, 1) not in {state(7, 3), state(7, 4), state(8, 3)}


@pytest.mark.parametrize("place", [0, 1, 900])
def test_draws_are_uniform_along_positions_seeds_and_places(place):
    along_places = uniform(torch.tensor([state(5, 5) >> 2]), 20000)[0].tolist()
    for values in (
        draws([(11, at) for at in range(20000)], place),
        draws([(seed, 0) for seed in range(20000)], place),
        along_places,
    ):
        tens = [0] * 10
        for value in values:
            tens[int(value * 10)] += 1
        assert sum((count - 2000) ** 2 / 2000 for count in tens) < 28  # chi-squared, 9 degrees, p = 0.001


def test_zero_temperature_takes_the_best():
    rows = logits([0, 3, 1], [5, 3, 1])

    assert tokens(rows, [Sampling(seed=1, temperature=0)] * 2, [0, 9]) == [1, 0]


def test_a_row_is_drawn_the_same_in_any_company():
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(8, 12000, generator=generator) * 2
    samplings = [
        Sampling(seed=1),
        Sampling(seed=2, temperature=0),
        Sampling(seed=3, top_p=0.9),
        Sampling(seed=4, top_k=5),
        Sampling(seed=5, temperature=3, top_p=0.99),
        Sampling(seed=6, temperature=0.7, top_k=50, top_p=0.5),
        Sampling(seed=7, temperature=2, top_k=2000, top_p=0.99),
        Sampling(seed=8, temperature=9, top_p=0.99),
    ]

    for position in range(20):
        together = tokens(rows, samplings, [position] * 8)
        alone = [tokens(rows[i : i + 1], samplings[i : i + 1], [position])[0] for i in range(8)]
        assert together == alone


def test_shares_follow_the_distribution():
    row = logits([0, 1, 2, -1])

    found = shares(row, Sampling(seed=3, temperature=0.5))

    assert torch.allclose(found, torch.softmax(row[0] / 0.5, -1), atol=0.03)


def test_top_k_leaves_k():
    found = shares(logits([0, 1, 2, 1.5]), Sampling(seed=3, top_k=2))

    assert found[[0, 1]].sum() == 0
    assert math.isclose(found[2], 1 / (1 + math.exp(-0.5)), abs_tol=0.03)


def test_top_p_leaves_the_smallest_set_that_has_p():
    row = torch.log(logits([0.5, 0.3, 0.15, 0.05]))

    assert (shares(row, Sampling(seed=3, top_p=0.79)) > 0).tolist() == [True, True, False, False]
    assert (shares(row, Sampling(seed=3, top_p=0.81)) > 0).tolist() == [True, True, True, False]
    assert (shares(row, Sampling(seed=3, top_p=0.0)) > 0).tolist() == [True, False, False, False]


def test_top_p_counts_what_top_k_left():
    row = torch.log(logits([0.4, 0.3, 0.2, 0.1]))

    found = shares(row, Sampling(seed=3, top_k=2, top_p=0.5))

    assert (found > 0).tolist() == [True, False, False, False]


def test_a_wide_nucleus_is_found():
    size = 2048
    row = torch.zeros(1, size)
    row[0, :10] = 1e-3

    found = shares(row, Sampling(seed=3, top_p=0.9), draws=1500)

    assert (found > 0).sum() > 512


def test_a_large_top_k_is_kept_exactly():
    row = torch.arange(2048, dtype=torch.float32).mul(-1e-4)[None]

    found = shares(row, Sampling(seed=3, top_k=552), draws=3000)

    assert (found > 0).nonzero().max() == 551


def test_an_open_draw_follows_a_large_vocabulary():
    row = torch.randn(1, 1003, generator=torch.Generator().manual_seed(2)) * 2

    found = shares(row, Sampling(seed=3), draws=40000)

    assert (found - torch.softmax(row[0], -1)).abs().sum() < 0.15


def test_a_token_without_probability_is_never_drawn():
    row = logits([-torch.inf, 0, -torch.inf, 0, -torch.inf])

    assert set(tokens(row.expand(500, -1), [Sampling(seed=9)] * 500, range(500))) == {1, 3}


# Against a slow reference --------------------------------------------------------------------------


def reference(row, sampling, tally, muted):
    """The distribution that a row is drawn from, one step after the other, in plain Python."""
    values = [float(value) for value in row]
    for token, bias in sampling.logit_bias:
        values[token] += bias
    for token, count in zip(tally.ids, tally.counts, strict=True) if tally else ():
        penalty = sampling.repetition_penalty
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
        values[token] -= sampling.frequency_penalty * count + sampling.presence_penalty * (count > 0)
    for token in muted:
        values[token] = -math.inf
    if sampling.temperature == 0:
        return {values.index(max(values)): 1.0}
    highest = max(values) / sampling.temperature
    weights = [math.exp(value / sampling.temperature - highest) for value in values]
    weights = [weight if weight >= sampling.min_p else 0.0 for weight in weights]
    order = sorted(range(len(weights)), key=lambda token: -weights[token])
    if sampling.top_k:
        order = order[: sampling.top_k]
    total, before, kept = sum(weights[token] for token in order), 0.0, {}
    for token in order:
        if weights[token] and (not kept or before < sampling.top_p * total):
            kept[token] = weights[token]
        before += weights[token]
    return {token: weight / sum(kept.values()) for token, weight in kept.items()}


answers_drawn = st.lists(st.integers(0, 39), max_size=9)
samplings_drawn = st.builds(
    Sampling,
    seed=st.integers(0, 2**63),
    temperature=st.sampled_from([0, 0.3, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.95, 0.6, 0.1, 0.0]),
    top_k=st.sampled_from([0, 1, 3, 20]),
    min_p=st.sampled_from([0.0, 0.02, 0.4]),
    frequency_penalty=st.sampled_from([0.0, -1.0, 1.5]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    logit_bias=st.sampled_from([(), ((3, 2.0), (8, -100.0)), ((0, 100.0),)]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(samplings_drawn, answers_drawn), min_size=1, max_size=4), st.integers(0, 999))
def test_every_row_is_drawn_from_the_reference_distribution(drawn, noise):
    """Rows of all kinds in one batch: each is drawn 400 times; nothing outside of its set, everything likely in it."""
    scores = torch.randn(len(drawn), 40, generator=torch.Generator().manual_seed(noise)) * 2
    tallies = [Tally([1, 2, 3]) for _ in drawn]
    for tally, (_, answer) in zip(tallies, drawn, strict=True):
        for token in answer:
            tally.add(token)
    muted = [(5, 6) if number % 2 else () for number in range(len(drawn))]
    found = [Counter() for _ in drawn]
    for position in range(400):
        rows = [
            Row(sampling, position, tally, mute)
            for (sampling, _), tally, mute in zip(drawn, tallies, muted, strict=True)
        ]
        for counter, pick in zip(found, choose(scores.clone(), rows), strict=True):
            counter[pick.token] += 1

    for number, (sampling, _) in enumerate(drawn):
        expected = reference(scores[number], sampling, tallies[number], muted[number])
        assert set(found[number]) <= set(expected)
        for token, share in expected.items():
            spread = math.sqrt(share * (1 - share) / 400)
            assert abs(found[number][token] / 400 - share) <= 6 * spread + 0.01


@pytest.mark.parametrize("temperature", [1e-9, 1e-5, 1e-4, 2.0])
@pytest.mark.parametrize("top_p", [0.0, 1e-9, 1.0])
def test_extreme_values_draw_a_token(temperature, top_p):
    rows = torch.tensor([[60000.0, -60000.0, 3.0], [0.0, 0.0, 0.0], [-torch.inf, -torch.inf, 1.0]])
    biased = Sampling(seed=1, temperature=temperature, top_p=top_p, logit_bias=((0, -100.0), (1, 100.0)))

    assert all(token in range(3) for token in tokens(rows, [biased] * 3, [0, 1, 2]))
    assert tokens(rows[2:], [Sampling(seed=1, temperature=temperature, top_p=top_p)], [0]) == [2]


def test_a_row_of_no_numbers_harms_no_other():
    rows = torch.tensor([[torch.nan] * 100, [0.0] * 99 + [50.0]])

    found = tokens(rows, [Sampling(seed=1, top_p=0.9), Sampling(seed=2, top_p=0.9)], [0, 0])

    assert found[0] in range(100)
    assert found[1] == 99


def test_log_probabilities_are_those_of_the_model_before_anything_is_done_to_them():
    rows = logits([0, 1, 2, -1], [3, 1, 2, -1])
    sampling = Sampling(seed=1, temperature=0.2, logit_bias=((3, 100.0),), logprobs=2)

    told, silent = choose(rows.clone(), [Row(sampling, 0), Row(Sampling(seed=1, temperature=0), 0)])

    expected = torch.log_softmax(rows[0], -1)
    assert told.token == 3
    assert told.logprob == pytest.approx(float(expected[3]), abs=1e-6)
    assert [token for token, _ in told.top] == [2, 1]
    assert told.top[0][1] == pytest.approx(float(expected[2]), abs=1e-6)
    assert silent.logprob is None


def test_a_token_without_probability_is_told_with_a_number():
    rows = logits([0.0, -torch.inf])

    (told,) = choose(rows, [Row(Sampling(seed=1, temperature=0, logprobs=2), 0)])

    assert told.top[1] == (1, -9999.0)


def test_a_guide_wins_over_what_is_muted_and_over_bias():
    rows = logits([0.0, 5.0, 1.0]).repeat(2, 1)
    allowed = torch.tensor([True, False, True])
    only_end = torch.tensor([False, False, True])
    biased = Sampling(seed=1, temperature=0, logit_bias=((1, 100.0),))

    first, second = choose(rows, [Row(biased, 0, None, (2,), allowed), Row(biased, 0, None, (2,), only_end)])

    assert first.token == 0
    assert second.token == 2
