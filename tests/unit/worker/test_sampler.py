"""The sampler: the best token, or a draw that depends on the request alone."""

import math

import pytest

from shared.wire import Sampling

torch = pytest.importorskip("torch")

from worker.engines.continuous.sampler import CANDIDATES, choose, draw  # noqa: E402


def logits(*rows):
    return torch.tensor(rows, dtype=torch.float32)


def shares(row, sampling, draws=4000):
    """How often each token is drawn, over as many positions."""
    samplings = [sampling] * draws
    tokens = choose(row.expand(draws, -1), samplings, range(draws))
    return torch.bincount(torch.tensor(tokens), minlength=row.shape[-1]) / draws


def test_a_draw_is_a_function_of_seed_and_position():
    assert draw(7, 3) == draw(7, 3)
    assert len({draw(seed, position) for seed in range(30) for position in range(30)}) == 900
    assert all(0 <= draw(seed, 0) < 1 for seed in (-1, 0, 2**63, 2**64 + 5))


def test_draws_are_uniform_along_positions_and_along_seeds():
    for values in ([draw(11, at) for at in range(20000)], [draw(seed, 0) for seed in range(20000)]):
        tens = [0] * 10
        for value in values:
            tens[int(value * 10)] += 1
        assert sum((count - 2000) ** 2 / 2000 for count in tens) < 28  # chi-squared, 9 degrees, p = 0.001


def test_zero_temperature_takes_the_best():
    rows = logits([0, 3, 1], [5, 3, 1])

    assert choose(rows, [Sampling(seed=1, temperature=0)] * 2, [0, 9]) == [1, 0]


def test_a_row_is_drawn_the_same_in_any_company():
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(8, 12000, generator=generator) * 2
    samplings = [
        Sampling(seed=1),
        Sampling(seed=2, temperature=0),
        Sampling(seed=3, top_p=0.9),
        Sampling(seed=4, top_k=5),
        Sampling(seed=5, temperature=3, top_p=0.99),  # flat: the nucleus is wider than what is looked at first
        Sampling(seed=6, temperature=0.7, top_k=50, top_p=0.5),
        Sampling(seed=7, temperature=2, top_k=2000, top_p=0.99),
        Sampling(seed=8, temperature=9, top_p=0.99),  # flatter still
    ]

    for position in range(20):
        together = choose(rows, samplings, [position] * 8)
        alone = [choose(rows[i : i + 1], samplings[i : i + 1], [position])[0] for i in range(8)]
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


def test_a_wide_nucleus_is_found_by_sorting_all():
    size = CANDIDATES[0] * 4
    row = torch.zeros(1, size)
    row[0, :10] = 1e-3

    found = shares(row, Sampling(seed=3, top_p=0.9), draws=1500)

    assert (found > 0).sum() > CANDIDATES[0]


def test_a_large_top_k_is_kept_exactly():
    row = torch.arange(CANDIDATES[0] * 4, dtype=torch.float32).mul(-1e-4)[None]

    found = shares(row, Sampling(seed=3, top_k=CANDIDATES[0] + 40), draws=3000)

    assert (found > 0).nonzero().max() == CANDIDATES[0] + 39


def test_an_open_draw_follows_a_large_vocabulary():
    row = torch.randn(1, 1003, generator=torch.Generator().manual_seed(2)) * 2

    found = shares(row, Sampling(seed=3), draws=40000)

    assert (found - torch.softmax(row[0], -1)).abs().sum() < 0.15


def test_a_token_without_probability_is_never_drawn():
    row = logits([-torch.inf, 0, -torch.inf, 0, -torch.inf])

    assert set(choose(row.expand(500, -1), [Sampling(seed=9)] * 500, range(500))) == {1, 3}
