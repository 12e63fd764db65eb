"""Which lane, and how long."""

import pytest

from gateway.admission import MAX_DEADLINE_MS, Admission, asked_deadline_ms
from shared.errors import InvalidRequest
from shared.settings import Settings


def admission(default_lane: str = "interactive", **environ: str) -> Admission:
    lanes = Settings.of(environ).lanes
    return Admission(None, None, None, None, lanes=lanes, default_lane=default_lane)


@pytest.mark.parametrize(
    ("tier", "lane"),
    [
        (None, "interactive"), ("auto", "interactive"), ("default", "interactive"), ("scale", "interactive"),
        ("flex", "bulk"), ("priority", "interactive"), ("fast", "interactive"), ("bulk", "bulk"), ("night", "night"),
    ],
)  # fmt: skip
def test_a_service_tier_is_a_lane(tier, lane):
    assert admission(BUSWAY_LANES__NIGHT__WEIGHT="2").lane_of(tier) == lane


def test_no_tier_is_the_default_lane():
    assert [admission("bulk").lane_of(tier) for tier in (None, "auto", "default")] == ["bulk"] * 3


@pytest.mark.parametrize("tier", ["gold", "", "BULK", "night"])
def test_a_tier_that_is_no_lane_is_refused(tier):
    with pytest.raises(InvalidRequest) as caught:
        admission().lane_of(tier)

    assert caught.value.param == "service_tier"


@pytest.mark.parametrize(
    ("headers", "stream", "deadline_ms"),
    [
        ({}, False, MAX_DEADLINE_MS),
        ({"x-busway-deadline-ms": "1500"}, True, 1500),
        ({"x-stainless-read-timeout": "600"}, False, 599_000),
        ({"x-stainless-read-timeout": "2.0"}, False, 1_800),
        ({"x-stainless-read-timeout": "600"}, True, MAX_DEADLINE_MS),
        ({"x-stainless-read-timeout": "600", "x-busway-deadline-ms": "1500"}, False, 1500),
        ({"x-stainless-read-timeout": "1", "x-busway-deadline-ms": "1500"}, False, 900),
        *(({"x-stainless-read-timeout": bad}, False, MAX_DEADLINE_MS) for bad in ("None", "nan", "inf", "-1", "0", "")),
    ],
)
def test_a_client_may_shorten_the_deadline(headers, stream, deadline_ms):
    assert asked_deadline_ms(headers, stream=stream) == deadline_ms


@pytest.mark.parametrize("value", ["0", "-5", "1.5", "x", "", "٣", "9" * 30])
def test_a_deadline_that_is_none_is_refused(value):
    with pytest.raises(InvalidRequest):
        asked_deadline_ms({"x-busway-deadline-ms": value}, stream=True)
