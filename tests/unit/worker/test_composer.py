"""What a step runs, simulated over many steps without an engine."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.lanes import Lane
from worker.composer import QUANTUM, Candidate, Composer

LANES = {
    "interactive": Lane(weight=8, itl_target_ms=25),
    "bulk": Lane(weight=1, preemptible=True, itl_target_ms=10_000),
    "night": Lane(weight=3, preemptible=True, itl_target_ms=10_000),
}
COSTS = (15.0, 0.3, 0.05)


def cost_ms(counts, pending):
    decodes = sum(pending[key] == 1 for key in counts)
    prefill = sum(count for key, count in counts.items() if pending[key] > 1)
    return decodes, prefill, COSTS[0] + COSTS[1] * decodes + COSTS[2] * prefill


def trained(lanes=LANES, prefill_tokens=512):
    composer, dice = Composer(lanes, prefill_tokens=prefill_tokens), random.Random(1)
    for _ in range(100):
        decodes, prefill = dice.randint(0, 64), dice.choice([0, 64, 400])
        composer.pace.observe(decodes, prefill, COSTS[0] + COSTS[1] * decodes + COSTS[2] * prefill)
    return composer


def decodes(lane, count):
    return [Candidate(f"{lane}{number}", lane, 1) for number in range(count)]


class Batch:
    """Requests in slots: each has a prompt to see and tokens to say."""

    def __init__(self, composer):
        self.composer = composer
        self.held = {}
        self.tokens = Counter()
        self.gaps = Counter()

    def add(self, key, lane, prompt, answer):
        self.held[key] = [lane, prompt, answer]

    def step(self):
        candidates = [Candidate(key, lane, unseen) for key, (lane, unseen, _) in self.held.items()]
        counts = self.composer.compose(candidates)
        pending = {one.key: one.pending for one in candidates}
        self.composer.pace.observe(*cost_ms(counts, pending))
        for key in list(self.held):
            self.gaps[key] = 0 if key in counts else self.gaps[key] + 1
        for key, count in counts.items():
            one = self.held[key]
            self.tokens[one[0]] += count
            one[1] -= count
            if one[1] == 0:
                one[1], one[2] = 1, one[2] - 1
                if one[2] == 0:
                    del self.held[key], self.gaps[key]
        return counts, pending


def test_decodes_of_those_who_read_are_never_paused():
    composer = trained()

    counts = composer.compose([*decodes("interactive", 60), *decodes("bulk", 4)])

    assert all(counts.get(f"interactive{number}") == 1 for number in range(60))


def test_bulk_fills_the_time_that_is_left_and_takes_turns():
    composer, seen = trained(), Counter()

    for _ in range(20):
        counts = composer.compose([*decodes("interactive", 3), *decodes("bulk", 60)])
        seen.update(key for key in counts if key.startswith("bulk"))
        assert 15 + 0.3 * len(counts) <= 25.3

    assert len(seen) == 60
    assert max(seen.values()) - min(seen.values()) <= 1


def test_a_step_of_bulk_alone_keeps_to_the_time_that_an_arrival_can_bear():
    counts = trained().compose(decodes("bulk", 64))

    assert 30 <= len(counts) <= 34


def test_a_first_token_is_not_stretched_by_bulk():
    composer = trained()

    counts = composer.compose([Candidate("new", "interactive", 100), *decodes("bulk", 64)])

    assert counts == {"new": 100}


def test_bulk_never_stops_although_somebody_always_waits_for_a_first_token():
    batch = Batch(trained())
    for number in range(10):
        batch.add(f"b{number}", "bulk", 1, 10**9)
    for number in range(2000):
        if sum(lane == "interactive" and unseen > 1 for lane, unseen, _ in batch.held.values()) < 2:
            batch.add(f"i{number}", "interactive", 300, 3)
        batch.step()
        assert max(batch.gaps.values(), default=0) <= 60

    share = batch.tokens["bulk"] / batch.tokens.total()
    assert share <= 1 / 9 * 1.05


def test_bulk_never_stops_although_decodes_alone_fill_the_time():
    batch = Batch(trained())
    for number in range(5):
        batch.add(f"b{number}", "bulk", 1, 10**9)
    for number in range(54):
        batch.add(f"i{number}", "interactive", 1, 10**9)
    for _ in range(900):
        batch.step()

    assert batch.tokens["bulk"] / batch.tokens.total() == pytest.approx(5 / 59, rel=0.05)


def test_preemptible_lanes_share_what_is_left_by_weight():
    batch = Batch(trained())
    for number in range(40):
        batch.add(f"b{number}", "bulk", 1, 10**9)
        batch.add(f"n{number}", "night", 1, 10**9)
    for _ in range(2000):
        batch.step()

    assert batch.tokens["night"] / batch.tokens["bulk"] == pytest.approx(3, rel=0.05)


def test_a_long_prompt_does_not_hold_up_short_ones():
    composer = trained()

    counts = composer.compose([Candidate("long", "interactive", 5000), Candidate("short", "interactive", 40)])

    assert counts["short"] == 40
    assert counts["long"] >= QUANTUM


def test_a_long_prompt_advances_although_short_ones_keep_coming():
    batch = Batch(trained())
    batch.add("long", "interactive", 2000, 1)
    for number in range(2000 // QUANTUM + 1):
        batch.add(f"s{number}", "interactive", 400, 1)
        batch.step()

    assert "long" not in batch.held


def test_before_anything_is_known_only_the_tokens_are_bounded():
    composer = Composer(LANES, prefill_tokens=64)

    assert composer.compose([Candidate("a", "interactive", 200)]) == {"a": 64}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(16, 600), st.sampled_from([16.0, 25.0, 80.0]))
def test_any_traffic_ends_within_the_time_and_without_standstill(seed, prefill_tokens, budget_ms):
    """Nobody waits for ever, no step is longer than its reasons, and all that came is over in the end."""
    dice = random.Random(seed)
    lanes = {**LANES, "interactive": Lane(weight=8, itl_target_ms=budget_ms)}
    batch, number = Batch(trained(lanes, prefill_tokens)), 0
    for _ in range(300):
        while len(batch.held) < 40 and dice.random() < 0.4:
            number += 1
            lane = dice.choice(list(LANES))
            batch.add(f"{number}", lane, dice.choice([1, 5, 60, 900]), dice.randint(1, 60))
        if not batch.held:
            continue
        lane_of = {key: lane for key, (lane, _, _) in batch.held.items()}
        counts, pending = batch.step()
        assert counts
        assert all(0 < count <= pending[key] for key, count in counts.items())
        watched = [key for key in counts if lane_of[key] == "interactive"]
        others = {key: count for key, count in counts.items() if key not in watched}
        if any(pending[key] > 1 for key in watched):
            share = 4 / 12 * sum(counts.values()) + sum(counts.values()) / 3 + 2
            assert sum(others.values()) <= share + prefill_tokens
        reason = cost_ms({key: 1 for key in watched if pending[key] == 1}, pending)[2]
        quantum = max(QUANTUM, COSTS[0] / 2 / COSTS[2])
        owed = (COSTS[1] + COSTS[2]) * (sum(counts.values()) / 2 + 2)
        assert cost_ms(counts, pending)[2] <= max(budget_ms, reason + COSTS[2] * quantum) * 1.03 + owed
    for _ in range(20_000):
        if not batch.held:
            break
        batch.step()
    assert not batch.held
