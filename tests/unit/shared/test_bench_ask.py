"""What a load asks, and when: seeded, so that a run can be repeated."""

import itertools
import json
import math
import statistics

import pytest

from shared.cli.bench.ask import arrivals, body
from shared.cli.bench.plan import Load, Plan, Range
from shared.errors import ConfigError


def first(load, count, *, seed=7, lane="interactive"):
    return list(itertools.islice(arrivals(load, seed=seed, lane=lane), count))


def plan(**options):
    return Plan("http://h", {"interactive": Load(rate=1), "bulk": Load(concurrency=1)}, duration_s=1, **options)


def test_poisson_arrivals_have_the_rate_and_no_memory_seed_7():
    times = first(Load(rate=50), 20_000)

    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(1 / 50, rel=0.02)
    assert statistics.stdev(gaps) == pytest.approx(1 / 50, rel=0.03)
    within_a_mean = sum(gap < 1 / 50 for gap in gaps) / len(gaps)
    assert within_a_mean == pytest.approx(1 - math.exp(-1), abs=0.01)


def test_constant_arrivals_do_not_drift():
    times = first(Load(rate=3, arrivals="constant"), 3001)

    assert times[:2] == [0, 1 / 3]
    assert times[3000] == 1000


def test_an_infinite_rate_is_all_at_once():
    assert first(Load(rate=math.inf, requests=3), 3) == [0, 0, 0]


def test_arrivals_follow_from_seed_and_lane():
    load = Load(rate=10)

    assert first(load, 20) == first(load, 20)
    assert first(load, 20) != first(load, 20, seed=8)
    assert first(load, 20) != first(load, 20, lane="bulk")


def test_a_request_follows_from_its_number_whatever_was_asked_before():
    bodies = [body(plan(), "interactive", number) for number in range(5)]

    assert body(plan(), "interactive", 3) == bodies[3]
    assert len(set(bodies)) == 5
    assert body(plan(seed=1), "interactive", 3) != bodies[3]


def test_lengths_cover_their_ranges():
    load = Load(rate=1, prompt_tokens=Range(2, 4), output_tokens=Range(5, 5))
    asked = Plan("http://h", {"interactive": load}, duration_s=1, endpoint="completions")

    bodies = [json.loads(body(asked, "interactive", number)) for number in range(60)]

    assert {len(one["prompt"].split()) for one in bodies} == {2, 3, 4}
    assert {one["max_tokens"] for one in bodies} == {5}


def test_lanes_are_asked_for_by_tier_unless_the_server_does_not_know_it():
    def tier(lane, **options):
        return json.loads(body(plan(**options), lane, 0)).get("service_tier")

    assert [tier("interactive"), tier("bulk")] == ["default", "flex"]
    assert tier("bulk", send_tier=False) is None


def test_only_what_was_asked_for_is_sent():
    plain = json.loads(body(plan(model="m"), "bulk", 0))
    full = json.loads(body(plan(model="m", temperature=0, ignore_eos=True), "bulk", 0))

    assert sorted(plain) == ["max_tokens", "messages", "model", "service_tier", "stream", "stream_options"]
    assert full == {**plain, "temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize(("text", "is_range"), [("24-96", (24, 96)), ("8", (8, 8))])
def test_a_range_is_read(text, is_range):
    assert Range.of(text) == Range(*is_range)


@pytest.mark.parametrize("text", ["", "-3", "9-2", "0-4", "a-b", "1-2-3", "1-99999999", "1.5"])
def test_a_range_that_is_none_is_refused(text):
    with pytest.raises(ConfigError):
        Range.of(text)


@pytest.mark.parametrize(
    "load",
    [
        {},
        {"rate": 1, "concurrency": 1},
        {"rate": 0},
        {"rate": math.nan},
        {"rate": math.inf},
        {"concurrency": 0},
        {"concurrency": 2000},
        {"rate": 1, "requests": 0},
        {"rate": 1, "max_in_flight": 0},
    ],
)
def test_a_load_that_makes_no_sense_is_refused(load):
    with pytest.raises(ConfigError):
        Load(**load)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"duration_s": 0},
        {"duration_s": math.nan},
        {"duration_s": 1e9},
        {"duration_s": 2, "warmup_s": 2},
        {"duration_s": 2, "warmup_s": -1},
        {"duration_s": 2, "timeout_s": 0},
        {"duration_s": 2, "temperature": math.nan},
        {"duration_s": 2, "loads": {}},
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(options):
    with pytest.raises(ConfigError):
        Plan(**{"url": "http://h", "loads": {"interactive": Load(rate=1)}, **options})


def test_a_plan_does_not_show_its_key():
    assert "secret" not in repr(plan(api_key="secret"))
