"""What a step costs, learnt from steps."""

import random

import pytest

from worker.pace import Pace


def learn(costs, steps, *, noise=0.0, stalls=0.0, seed=3, pace=None):
    dice, pace = random.Random(seed), pace or Pace()
    for _ in range(steps):
        decodes, prefill = dice.randint(0, 40), dice.choice([0, 0, 0, 32, 128, 500])
        took = costs[0] + costs[1] * decodes + costs[2] * prefill
        took *= 1 + dice.uniform(-noise, noise)
        pace.observe(decodes, prefill, took + (300 if dice.random() < stalls else 0))
    return pace


@pytest.mark.parametrize("costs", [(15, 0.3, 0.05), (45, 5, 2), (0, 2, 0), (1, 0, 0.01)])
def test_costs_are_found(costs):
    assert learn(costs, 200).costs_ms == pytest.approx(costs, abs=0.02 * sum(costs) + 1e-3)


def test_noise_is_averaged_out():
    pace = learn((15, 0.3, 0.05), 400, noise=0.1)

    assert pace.predict_ms(20, 100) == pytest.approx(26, rel=0.05)


def test_stalls_are_no_costs():
    pace = learn((45, 1, 0.5), 400, stalls=0.02)

    assert pace.predict_ms(10, 0) == pytest.approx(55, rel=0.3)


def test_a_machine_that_slows_down_is_followed():
    pace = learn((150, 3, 0.5), 300, pace=learn((15, 0.3, 0.05), 300))

    assert pace.predict_ms(20, 100) == pytest.approx(260, rel=0.05)


def test_what_the_steps_do_not_show_stays_as_it_was():
    pace = learn((15, 0.3, 0.05), 200)
    for _ in range(1000):
        pace.observe(4, 0, 16.2)

    assert pace.predict_ms(4, 0) == pytest.approx(16.2, rel=0.01)
    assert pace.costs_ms[2] == pytest.approx(0.05, rel=0.1)


def test_no_cost_is_negative():
    pace = Pace()
    for decodes, took in [(1, 50), (10, 20), (20, 10)] * 10:
        pace.observe(decodes, 0, took)

    assert min(pace.costs_ms) >= 0


def test_nothing_is_predicted_before_it_is_known():
    pace = Pace()
    pace.observe(1, 0, 10)

    assert not pace.is_known
    assert pace.predict_ms(5, 5) == 0
