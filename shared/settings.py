"""Settings: one frozen tree for the whole fleet, read once from the environment.

`BUSWAY_` and `__` between levels: `BUSWAY_WORKER__SLOTS=32`. An unknown `BUSWAY_` name is refused, in
every process, because a misspelt setting that is ignored is found at 2 a.m. A name counts in any case,
and an empty value is none at all. The tree holds the fields of all processes, so that one environment
file can serve them all.
"""

import difflib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dotenv import dotenv_values
from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from shared.errors import ConfigError
from shared.lanes import Lane, check_names, check_order, merged, names_of
from shared.sections import (
    GatewaySettings,
    LogSettings,
    RedisSettings,
    WorkerSettings,
)

PREFIX = "BUSWAY_"
ENV_FILE = "BUSWAY_ENV_FILE"
URL, PLATFORM_URL = "BUSWAY_REDIS__URL", "REDIS_URL"
EXTRA_LANES = "BUSWAY_EXTRA_LANES"


class Settings(BaseSettings):
    """The whole tree."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", frozen=True, extra="ignore")

    redis: RedisSettings = RedisSettings()  # type: ignore[call-arg]
    lanes: dict[str, Lane]
    gateway: GatewaySettings = GatewaySettings()  # type: ignore[call-arg]
    worker: WorkerSettings = WorkerSettings()  # type: ignore[call-arg]
    log: LogSettings = LogSettings()  # type: ignore[call-arg]
    cache_dir: Path = Field(default=Path("~/.cache/busway"), description="Converted models are kept here")
    extra_lanes: str = Field(default="", description="Comma-separated names of lanes beside interactive and bulk")
    allow_inverted_lanes: bool = Field(
        default=False, description="Accept a configuration in which bulk outranks interactive"
    )

    def served_lanes(self) -> dict[str, Lane]:
        """The lanes that a worker with these settings serves; ConfigError if one of those named is none."""
        names = names_of(self.worker.lanes)
        if unknown := [name for name in names if name not in self.lanes]:
            known = ", ".join(self.lanes)
            raise ConfigError(f"BUSWAY_WORKER__LANES: no such lane: {', '.join(unknown)}; there are {known}")
        return {name: lane for name, lane in self.lanes.items() if name in names or not names}

    @model_validator(mode="before")
    @classmethod
    def _merge_lanes(cls, given: dict[str, Any]) -> dict[str, Any]:
        """One field of one lane may be set alone; the rest keeps its default."""
        return {**given, "lanes": merged(given.get("lanes") or {}, names_of(given.get("extra_lanes") or ""))}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - pydantic-settings' signature
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Nothing but what it is given: pydantic-settings would read the process's environment as well."""
        return (init_settings,)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Settings":
        """The tree from exactly these variables; pydantic's ValidationError if a value is wrong."""
        return cls.model_validate(_Variables(cls, environ)())


class _Variables(EnvSettingsSource):
    """pydantic-settings' reading of nested variables, from a mapping instead of the process's environment."""

    def __init__(self, settings_cls: type[BaseSettings], environ: Mapping[str, str]) -> None:
        self._environ = {name.lower(): value for name, value in environ.items()}
        super().__init__(settings_cls)

    def _load_env_vars(self) -> Mapping[str, str | None]:
        return self._environ


def known_names(lane_names: Iterable[str] = ()) -> set[str]:
    """Every `BUSWAY_` name that means something, for the default lanes and `lane_names`."""
    names = {ENV_FILE}

    def walk(model: type[BaseModel], prefix: str) -> None:
        for field, spec in model.model_fields.items():
            name = prefix + field.upper()
            if field == "lanes" and model is Settings:
                for lane in {*merged({}), *lane_names}:
                    walk(Lane, f"{name}__{lane.upper()}__")
            elif isinstance(spec.annotation, type) and issubclass(spec.annotation, BaseModel):
                walk(spec.annotation, name + "__")
            else:
                names.add(name)

    walk(Settings, PREFIX)
    return names


def refuse_unknown(names: Iterable[str], extra_lanes: Iterable[str] = ()) -> None:
    """ConfigError that names each unknown `BUSWAY_` variable and the known one closest to it."""
    given = {name for name in names if name.upper().startswith(PREFIX)}
    known = known_names(extra_lanes)
    problems = []
    for name in sorted(given):
        if name.upper() not in known:
            close = difflib.get_close_matches(name.upper(), known, n=1, cutoff=0.6)
            problems.append(f"{name} is not a setting" + (f"; did you mean {close[0]}?" if close else ""))
    if problems:
        raise ConfigError("; ".join(problems))


def from_file(path: str | None) -> dict[str, str]:
    """The `BUSWAY_` names and values of an environment file; ConfigError if it is named and not there."""
    if not path:
        return {}
    if not Path(path).is_file():
        raise ConfigError(f"{ENV_FILE}={path}: no such file")
    try:
        values = dotenv_values(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{ENV_FILE}={path}: {error}") from error
    return {k: v for k, v in values.items() if v is not None and k.upper().startswith(PREFIX)}


def in_force(variables: Mapping[str, str]) -> dict[str, str]:
    """The `BUSWAY_` variables that say something, by their name in capitals; written so, it goes before other cases."""
    given = [(name, value) for name, value in variables.items() if value and name.upper().startswith(PREFIX)]
    return {name.upper(): value for name, value in sorted(given, key=lambda pair: pair[0].isupper())}


def _layers(environ: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Where values come from, and which, the strongest first."""
    named = in_force(environ)
    platform = environ.get(PLATFORM_URL)
    return {
        "environment": named,
        "file": in_force(from_file(named.get(ENV_FILE))),
        PLATFORM_URL: {URL: platform} if platform else {},
    }


def load(overrides: Mapping[str, str] | None = None) -> Settings:
    """The settings in force: `overrides` over the environment over the file that BUSWAY_ENV_FILE names.

    ConfigError, with every problem in it, if a name is unknown or a value is wrong.
    """
    environ = {**os.environ, **(overrides or {})}
    merged_env: dict[str, str] = {}
    for layer in reversed(_layers(environ).values()):
        merged_env.update(layer)
    extra_lanes = names_of(merged_env.get(EXTRA_LANES, ""))
    refuse_unknown([*environ, *from_file(in_force(environ).get(ENV_FILE))], extra_lanes)
    try:
        settings = Settings.of(merged_env)
    except ValidationError as error:
        raise ConfigError("; ".join(_say(problem) for problem in error.errors())) from error
    check_names(settings.lanes, default=settings.gateway.default_lane)
    if not settings.allow_inverted_lanes:
        check_order(settings.lanes)
    settings.served_lanes()  # a lane that is none is found by every process
    return settings


def _say(problem: Any) -> str:
    name = PREFIX + "__".join(str(part) for part in problem["loc"]).upper()
    return f"{name}={problem['input']!r}: {problem['msg']}"


def rows(settings: Settings) -> list[tuple[str, str, str]]:
    """(variable, value, source) of every setting in force; secrets are shown as stars."""
    layers = _layers(os.environ)
    table = []
    for name in sorted(known_names(settings.lanes) - {ENV_FILE}):
        value: Any = settings
        for part in name.removeprefix(PREFIX).lower().split("__"):
            value = value[part] if isinstance(value, dict) else getattr(value, part)
        source = next((source for source, layer in layers.items() if name in layer), "default")
        table.append((name, "" if value is None else str(value), source))
    return table
