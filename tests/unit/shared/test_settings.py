"""Settings: read from variables, a file and defaults; a slip of any kind stops the process and says what to do."""

import os

import pytest

from shared import sections, settings
from shared.cli.config import example_text
from shared.errors import ConfigError
from shared.settings import load, rows


@pytest.fixture(autouse=True)
def bare(monkeypatch):
    """None of the variables of whoever runs the tests."""
    for name in list(os.environ):
        if name.upper().startswith("BUSWAY_") or name == "REDIS_URL":
            monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Writes the environment file, and names it."""

    def write(text: str):
        path = tmp_path / "busway.env"
        path.write_text(text)
        monkeypatch.setenv("BUSWAY_ENV_FILE", str(path))
        return path

    return write


def sources():
    return {name: source for name, _, source in rows(load())}


def values():
    return {name: value for name, value, _ in rows(load())}


def test_nothing_set_gives_the_defaults():
    loaded = load()

    assert loaded.redis.url == "redis://127.0.0.1:6379/0"
    assert loaded.lanes["interactive"].weight == 8
    assert loaded.worker.model_name == sections.DEFAULT_MODEL
    assert set(sources().values()) == {"default"}


def test_nested_variables_reach_their_field(monkeypatch):
    monkeypatch.setenv("BUSWAY_WORKER__ECHO__STEP_MS", "2.5")
    monkeypatch.setenv("BUSWAY_GATEWAY__PORT", "0")

    loaded = load()

    assert (loaded.worker.echo.step_ms, loaded.gateway.port) == (2.5, 0)


def test_one_field_of_a_lane_keeps_the_others(monkeypatch):
    monkeypatch.setenv("BUSWAY_LANES__BULK__WEIGHT", "2")

    lanes = load().lanes

    assert (lanes["bulk"].weight, lanes["bulk"].max_queued) == (2, 100_000)
    assert lanes["interactive"].weight == 8


def test_a_new_lane_may_have_underscores_in_its_name(monkeypatch):
    monkeypatch.setenv("BUSWAY_EXTRA_LANES", "over_night, long")
    monkeypatch.setenv("BUSWAY_LANES__OVER_NIGHT__MAX_QUEUED", "7")

    assert load().lanes["over_night"].max_queued == 7


def test_inverted_lanes_are_refused_unless_forced(monkeypatch):
    monkeypatch.setenv("BUSWAY_LANES__BULK__WEIGHT", "20")
    with pytest.raises(ConfigError, match="outranks"):
        load()

    monkeypatch.setenv("BUSWAY_ALLOW_INVERTED_LANES", "1")

    assert load().lanes["bulk"].weight == 20


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("BUSWAY_WORKER__SLOT", "BUSWAY_WORKER__SLOTS"),
        ("BUSWAY_REDIS_URL", "BUSWAY_REDIS__URL"),
        ("BUSWAY_LANES__BULK__WEIGTH", "BUSWAY_LANES__BULK__WEIGHT"),
        ("BUSWAY_GATEWAY__API_KEY", "BUSWAY_GATEWAY__API_KEYS"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_one_that_was_meant(monkeypatch, misspelt, meant):
    monkeypatch.setenv(misspelt, "1")

    with pytest.raises(ConfigError, match=f"{misspelt} is not a setting; did you mean {meant}\\?"):
        load()


def test_a_name_like_no_other_is_refused_without_a_guess(monkeypatch):
    monkeypatch.setenv("BUSWAY_ZZZZZZZZZZZZZZZZZZZZZZZ", "1")

    with pytest.raises(ConfigError, match=r"is not a setting$"):
        load()


def test_a_misspelt_name_in_the_file_is_refused_too(file):
    file("BUSWAY_WORKER__SLOT=1\n")

    with pytest.raises(ConfigError, match="BUSWAY_WORKER__SLOTS"):
        load()


def test_all_problems_come_in_one_message(monkeypatch):
    monkeypatch.setenv("BUSWAY_WORKER__SLOTS", "many")
    monkeypatch.setenv("BUSWAY_GATEWAY__PORT", "99999")
    monkeypatch.setenv("BUSWAY_LANES__BULK__WEIGHT", "0")

    with pytest.raises(ConfigError) as caught:
        load()

    for said in ("BUSWAY_WORKER__SLOTS='many'", "BUSWAY_GATEWAY__PORT='99999'", "BUSWAY_LANES__BULK__WEIGHT='0'"):
        assert said in caught.value.message


def test_all_unknown_names_come_in_one_message(monkeypatch):
    monkeypatch.setenv("BUSWAY_LOGG", "1")
    monkeypatch.setenv("BUSWAY_WORKER__SLOT", "1")

    with pytest.raises(ConfigError, match=r"BUSWAY_LOGG .*BUSWAY_WORKER__SLOT "):
        load()


def test_overrides_go_before_variables_and_variables_before_the_file(file, monkeypatch):
    file("BUSWAY_WORKER__SLOTS=1\nBUSWAY_GATEWAY__PORT=1111\nBUSWAY_LOG__LEVEL=debug\n")
    monkeypatch.setenv("BUSWAY_WORKER__SLOTS", "2")
    monkeypatch.setenv("BUSWAY_GATEWAY__PORT", "2222")

    loaded = load({"BUSWAY_WORKER__SLOTS": "3"})

    assert (loaded.worker.slots, loaded.gateway.port, loaded.log.level) == (3, 2222, "debug")
    assert sources()["BUSWAY_GATEWAY__PORT"] == "environment"
    assert sources()["BUSWAY_LOG__LEVEL"] == "file"
    assert sources()["BUSWAY_LOG__FORMAT"] == "default"


def test_a_file_may_hold_what_belongs_to_others(file):
    file("PATH=/nowhere\nDATABASE_URL=x\nBUSWAY_WORKER__SLOTS=4\n")

    assert load().worker.slots == 4


def test_a_file_that_is_named_and_not_there_is_refused(monkeypatch):
    monkeypatch.setenv("BUSWAY_ENV_FILE", "/no/such.env")

    with pytest.raises(ConfigError, match="no such file"):
        load()


def test_redis_url_is_what_platforms_set_and_our_own_name_goes_first(monkeypatch):
    monkeypatch.setenv("REDIS_URL", "redis://platform:6379/0")
    assert load().redis.url == "redis://platform:6379/0"
    assert sources()["BUSWAY_REDIS__URL"] == "REDIS_URL"

    monkeypatch.setenv("BUSWAY_REDIS__URL", "redis://ours:6379/0")

    assert load().redis.url == "redis://ours:6379/0"
    assert sources()["BUSWAY_REDIS__URL"] == "environment"


def test_the_default_lane_must_exist(monkeypatch):
    monkeypatch.setenv("BUSWAY_GATEWAY__DEFAULT_LANE", "nowhere")

    with pytest.raises(ConfigError, match="no such lane"):
        load()


def test_keys_are_shown_as_stars(monkeypatch):
    monkeypatch.setenv("BUSWAY_GATEWAY__API_KEYS", "hush-1,hush-2")

    assert load().gateway.api_keys.get_secret_value() == "hush-1,hush-2"
    assert "hush" not in str(values())
    assert "hush" not in repr(load())
    assert set(values()["BUSWAY_GATEWAY__API_KEYS"]) == {"*"}


def test_every_setting_is_listed_with_its_value(monkeypatch):
    monkeypatch.setenv("BUSWAY_EXTRA_LANES", "night")
    monkeypatch.setenv("BUSWAY_LANES__NIGHT__WEIGHT", "2")

    table = values()

    assert set(table) == settings.known_names(["night"]) - {"BUSWAY_ENV_FILE"}
    assert table["BUSWAY_LANES__NIGHT__WEIGHT"] == "2"
    assert table["BUSWAY_LANES__NIGHT__MAX_BATCH"] == "", "unset"


def test_settings_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        load().worker.slots = 3


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, sections.DEFAULT_MODEL),
        ({"MODEL": "org/Some-Model"}, "Some-Model"),
        ({"MODEL": "/models/local/"}, "local"),
        ({"ENGINE": "echo"}, "echo"),
        ({"ENGINE": "embedding"}, sections.DEFAULT_EMBEDDER),
        ({"ENGINE": "embedding", "MODEL": "org/Another"}, "Another"),
        ({"ENGINE": "echo", "SERVED_MODEL_NAME": "mine"}, "mine"),
    ],
)
def test_the_served_name_follows_from_the_model(variables, name):
    assert load({f"BUSWAY_WORKER__{key}": value for key, value in variables.items()}).worker.model_name == name


@pytest.mark.parametrize("name", sorted(settings.known_names()))
def test_an_empty_value_is_none_at_all(name, monkeypatch):
    nothing = load()
    monkeypatch.setenv(name, "")

    assert load() == nothing
    assert set(sources().values()) == {"default"}


def test_an_empty_variable_leaves_the_file_its_say(file, monkeypatch):
    file("BUSWAY_WORKER__SLOTS=4\nBUSWAY_LOG__LEVEL=\n")
    monkeypatch.setenv("BUSWAY_WORKER__SLOTS", "")
    monkeypatch.setenv("REDIS_URL", "")

    assert load().worker.slots == 4
    assert sources()["BUSWAY_WORKER__SLOTS"] == "file"
    assert sources()["BUSWAY_LOG__LEVEL"] == sources()["BUSWAY_REDIS__URL"] == "default"


def test_an_empty_name_that_is_misspelt_is_refused_all_the_same(file):
    file("BUSWAY_WORKER__SLOT=\n")

    with pytest.raises(ConfigError, match="BUSWAY_WORKER__SLOTS"):
        load()


def test_the_example_may_be_uncommented_as_it_is(file):
    """Entries without a default are empty there."""
    lines = (line.removeprefix("# ") for line in example_text().splitlines())
    file("\n".join(line for line in lines if line.startswith("BUSWAY_")))

    assert load().lanes == settings.Settings.of({}).lanes


def test_a_name_counts_in_any_case(file, monkeypatch):
    path = file("Busway_Worker__Slots=3\n")
    monkeypatch.delenv("BUSWAY_ENV_FILE")
    monkeypatch.setenv("busway_env_file", str(path))
    monkeypatch.setenv("busway_redis__url", "redis://elsewhere:1/0")
    monkeypatch.setenv("busway_extra_lanes", "Night")
    monkeypatch.setenv("busway_lanes__night__weight", "2")

    loaded = load()

    assert (loaded.redis.url, loaded.worker.slots, loaded.lanes["night"].weight) == ("redis://elsewhere:1/0", 3, 2)
    assert sources()["BUSWAY_REDIS__URL"] == sources()["BUSWAY_LANES__NIGHT__WEIGHT"] == "environment"
    assert sources()["BUSWAY_WORKER__SLOTS"] == "file"


def test_a_name_in_capitals_goes_before_the_same_in_others(monkeypatch):
    monkeypatch.setenv("BUSWAY_WORKER__SLOTS", "1")
    monkeypatch.setenv("busway_worker__slots", "2")

    assert load().worker.slots == 1
    assert load({"BUSWAY_WORKER__SLOTS": "3"}).worker.slots == 3


def test_a_tree_from_given_variables_knows_no_others(monkeypatch):
    monkeypatch.setenv("BUSWAY_WORKER__SLOTS", "5")

    assert settings.Settings.of({}).worker.slots == 16


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BUSWAY_EXTRA_LANES", "a__b"),
        ("BUSWAY_EXTRA_LANES", "über"),
        ("BUSWAY_LANES__INTERACTIVE__OVERFLOW", "nowhere"),
        ("BUSWAY_GATEWAY__DEFAULT_LANE", "nowhere"),
        ("BUSWAY_WORKER__LEASE_S", "inf"),
        ("BUSWAY_WORKER__DRAIN_S", "nan"),
        ("BUSWAY_LANES__BULK__DEADLINE_S", "1e12"),
    ],
)
def test_what_could_not_work_is_refused(monkeypatch, name, value):
    monkeypatch.setenv(name, value)

    with pytest.raises(ConfigError, match=name):
        load()
