"""Lanes: one field can be changed alone, and slips are refused."""

import pytest
from pydantic import ValidationError

from shared.errors import ConfigError
from shared.lanes import BULK, DEFAULTS, INTERACTIVE, Lane, check_order, merged
from shared.settings import load


def built(overrides):
    return {name: Lane(**fields) for name, fields in merged(overrides).items()}


def test_without_overrides_the_defaults_stand_and_cannot_be_spoilt():
    lanes = merged({})
    lanes[BULK]["weight"] = 99

    assert merged({}) == DEFAULTS
    assert DEFAULTS[BULK]["weight"] == 1


def test_one_field_changes_and_the_rest_keeps_its_default():
    lanes = built({BULK: {"weight": 3}})

    assert lanes[BULK].weight == 3
    assert lanes[BULK].max_queued == DEFAULTS[BULK]["max_queued"]
    assert lanes[INTERACTIVE] == built({})[INTERACTIVE]


def test_a_lane_is_declared_by_naming_it():
    lanes = built({"night": {"weight": 2}})

    assert lanes["night"] == Lane(weight=2)
    assert set(lanes) == {INTERACTIVE, BULK, "night"}


def test_a_bulk_lane_that_outranks_interactive_is_refused_with_the_way_out():
    with pytest.raises(ConfigError, match="BUSWAY_ALLOW_INVERTED_LANES=1"):
        check_order(built({BULK: {"weight": 9}}))


def test_equal_weights_are_no_inversion():
    check_order(built({BULK: {"weight": 8}}))


@pytest.mark.parametrize(
    "fields",
    [{"weight": 0}, {"max_queued": 0}, {"deadline_s": 0}, {"window_ms": -1}, {"max_batch": 0}, {"colour": "red"}],
    ids=str,
)
def test_values_out_of_range_and_unknown_fields_are_refused(fields):
    with pytest.raises(ValidationError):
        Lane(**fields)


def test_a_misspelt_lane_is_no_new_lane(monkeypatch):
    monkeypatch.setenv("BUSWAY_LANES__BULKY__WEIGHT", "2")

    with pytest.raises(ConfigError, match=r"BULKY__WEIGHT is not a setting; did you mean BUSWAY_LANES__BULK__WEIGHT\?"):
        load()
