"""Which inputs a step of the embedding engine runs, and which of them together."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engines.embedding.batches import Input, Shares, buckets


def inputs(*lengths, name="a"):
    return [Input(name, number, (1,) * length) for number, length in enumerate(lengths)]


def lengths(groups):
    return [[len(one.ids) for one in group] for group in groups]


def test_like_lengths_run_together():
    assert lengths(buckets(inputs(3, 100, 4, 99, 3), 10)) == [[100, 99], [4, 3, 3]]


def test_a_forward_that_is_dear_is_shared():
    assert lengths(buckets(inputs(3, 100, 4), 1000)) == [[100, 4, 3]]


@given(st.lists(st.integers(1, 300), max_size=60), st.integers(0, 500))
def test_buckets_hold_everything_once_and_pad_within_the_bound(sizes, forward_tokens):
    given_ = inputs(*sizes)

    groups = buckets(given_, forward_tokens)

    assert sorted(one.number for group in groups for one in group) == list(range(len(sizes)))
    for group in lengths(groups):
        assert len(group) * max(group) - sum(group) <= forward_tokens


def test_a_step_takes_what_fits_in_order_of_arrival():
    waiting = {"bulk": deque(inputs(40, 40, 40))}
    shares = Shares({"bulk": 1}, tokens=100)

    assert [one.number for one in shares.take(waiting)] == [0, 1]
    assert [one.number for one in shares.take(waiting)] == [2]
    assert shares.take(waiting) == []


def test_an_input_that_is_larger_than_a_step_runs_alone():
    waiting = {"bulk": deque(inputs(500, 3))}
    shares = Shares({"bulk": 1}, tokens=100)

    assert [len(one.ids) for one in shares.take(waiting)] == [500]
    assert [len(one.ids) for one in shares.take(waiting)] == [3]


@pytest.mark.parametrize("sizes", [(10,), (3, 30, 7), (90,)])
def test_lanes_share_tokens_by_weight_while_both_have_inputs(sizes):
    waiting = {name: deque(inputs(*sizes * (6000 // sum(sizes)), name=name)) for name in ("bulk", "interactive")}
    shares = Shares({"interactive": 8, "bulk": 1}, tokens=100)
    taken = {"bulk": 0, "interactive": 0}

    while waiting["interactive"]:
        for one in shares.take(waiting):
            taken[one.request_id] += len(one.ids)

    assert 7 < taken["interactive"] / taken["bulk"] < 9.5


def test_a_lane_saves_nothing_up_while_it_is_empty():
    waiting = {"bulk": deque(inputs(*[10] * 200, name="bulk")), "interactive": deque()}
    shares = Shares({"interactive": 8, "bulk": 1}, tokens=100)
    for _ in range(10):
        shares.take(waiting)

    waiting["interactive"].extend(inputs(*[10] * 50, name="interactive"))

    first = shares.take(waiting)
    assert sum(one.request_id == "bulk" for one in first) <= 2
