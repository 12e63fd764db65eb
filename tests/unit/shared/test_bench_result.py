"""Figures: percentiles by their definition, and which requests they are made of."""

import json
import statistics
from array import array
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.cli.bench import plot
from shared.cli.bench.plan import Load, Plan
from shared.cli.bench.result import Lane, Result, percentile
from shared.cli.bench.sample import Sample
from shared.errors import ConfigError


def sample(due, *events, ended=None, lane="bulk", **fields):
    """A request that was sent when it was due."""
    return Sample(lane, due, sent=due, events=array("d", events), ended=ended, **fields)


def lane(*samples, begin_s=0.0, over_s=10.0):
    return Lane(samples, begin_s=begin_s, over_s=over_s)


def result(*samples, **fields):
    plan = Plan("http://h", {"bulk": Load(concurrency=1)}, duration_s=10, warmup_s=1, api_key="secret", model="m")
    given = {"over_s": 10.0, "elapsed_s": 11.0, "client_cpu": 0.1, "is_interrupted": False, **fields}
    return Result(plan=plan, samples=list(samples), started=datetime(2026, 1, 1, tzinfo=UTC), **given)


def test_percentiles_lie_on_the_line_between_neighbours():
    assert percentile([10, 20, 30, 40], 0.5) == 25
    assert percentile([10, 20, 30, 40, 50], 0.95) == pytest.approx(48)
    assert percentile([10, 20], 0.99) == pytest.approx(19.9)
    assert percentile([7], 0.99) == 7


def test_nothing_has_no_percentile():
    assert percentile([], 0.5) is None
    assert lane().ttft.as_dict() == {"p50": None, "p95": None, "p99": None, "mean": None, "max": None, "count": 0}


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=50).map(sorted))
def test_percentiles_are_those_of_the_standard_library(ordered):
    cuts = statistics.quantiles(ordered, n=100, method="inclusive")

    for number in (50, 95, 99):
        assert percentile(ordered, number / 100) == pytest.approx(cuts[number - 1])


def test_latencies_count_from_the_planned_arrival():
    late = Sample("bulk", 1.0, sent=3.0, events=array("d", [4.0, 4.5, 6.0]), ended=7.0)

    figures = lane(late)

    assert figures.ttft.ordered == [3000]
    assert figures.itl.ordered == [500, 1500]
    assert figures.e2e.ordered == [6000]
    assert figures.send_delay.ordered == [2000]
    assert figures.tpot.ordered == [1000]


def test_several_tokens_in_one_event_are_one_gap_and_shared_by_tpot():
    grouped = sample(0.0, 1.0, 2.0, ended=2.0, output_tokens=5)

    assert lane(grouped).itl.ordered == [1000]
    assert lane(grouped).tpot.ordered == [250]


def test_the_warm_up_is_left_out_by_arrival():
    early, later = sample(0.9, 5.0, ended=5.0), sample(1.0, 1.5, ended=2.0)

    figures = lane(early, later, begin_s=1.0)

    assert figures.ttft.ordered == [500]
    assert figures.as_dict()["requests"] == 1
    assert figures.as_dict()["warmup_requests"] == 1


def test_tokens_per_s_are_those_that_came_in_the_measured_time():
    begun_before = sample(0.0, 1.0, 3.0, ended=3.0, output_tokens=8)
    ended_after = sample(2.0, 3.0, 9.0, ended=9.0)

    assert lane(begun_before, ended_after, begin_s=2.0, over_s=6.0).tokens_per_s == (4 + 1) / 4
    assert lane(begun_before, begin_s=2.0, over_s=2.0).tokens_per_s is None


def test_failed_requests_are_counted_and_nothing_else():
    cut = sample(0.0, 1.0, 2.0, error="broken", detail="cut")
    refused = sample(0.0, error="http_429", detail="full")

    figures = lane(cut, refused, refused, sample(0.0, 4.0, ended=4.0)).as_dict()

    assert figures["errors"] == 3
    assert figures["errors_by_kind"] == {"broken": 1, "http_429": 2}
    assert figures["error_examples"] == {"broken": "cut", "http_429": "full"}
    assert figures["ttft_ms"]["count"] == figures["completed"] == figures["output_tokens"] == 1
    assert figures["tokens_per_s"] == 0.1


def test_what_an_interruption_cut_counts_as_far_as_it_was_seen():
    figures = lane(sample(0.0, 1.0, 2.0), sample(0.0)).as_dict()

    assert figures["unfinished"] == 2
    assert figures["errors"] == figures["completed"] == figures["e2e_ms"]["count"] == 0
    assert figures["ttft_ms"]["count"] == figures["itl_ms"]["count"] == 1


def test_a_result_is_json_without_the_key():
    text = json.dumps(result(sample(2.0, 3.0, ended=4.0)).as_dict(), allow_nan=False)

    told = json.loads(text)
    assert "secret" not in text
    assert told["measured_s"] == 9
    assert told["settings"]["loads"]["bulk"]["prompt_tokens"] == {"low": 24, "high": 96}
    assert told["lanes"]["bulk"]["ttft_ms"]["p99"] == 1000


def test_an_infinite_rate_is_json_too():
    plan = Plan("http://h", {"bulk": Load(rate=float("inf"), requests=1)})
    told = Result(plan, [], datetime.now(UTC), over_s=1, elapsed_s=1, client_cpu=0, is_interrupted=True).as_dict()

    assert json.loads(json.dumps(told, allow_nan=False))["settings"]["loads"]["bulk"]["rate"] == "inf"


@pytest.mark.parametrize("over_s", [0.0, 10.0])
def test_a_run_without_an_answer_has_a_picture_too(tmp_path, over_s):
    plot.save(result(sample(0.5, error="connect"), over_s=over_s), tmp_path / "x")

    assert (tmp_path / "x").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_a_picture_names_what_it_lacks(monkeypatch):
    monkeypatch.setattr(plot, "find_spec", lambda _: None)

    with pytest.raises(ConfigError, match=r"pip install 'busway\[bench\]'"):
        plot.refuse_without_matplotlib()
