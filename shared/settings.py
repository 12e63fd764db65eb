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
from typing import Any, Literal

from dotenv import dotenv_values
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from shared.errors import ConfigError
from shared.lanes import Lane, Seconds, check_names, check_order, merged, names_of

PREFIX = "BUSWAY_"
ENV_FILE = "BUSWAY_ENV_FILE"
URL, PLATFORM_URL = "BUSWAY_REDIS__URL", "REDIS_URL"
EXTRA_LANES = "BUSWAY_EXTRA_LANES"

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
DEFAULT_EMBEDDER = "all-MiniLM-L6-v2"


class Section(BaseModel):
    """A group of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class RedisSettings(Section):
    """The broker, and how long things stay in it."""

    url: str = Field(
        default="redis://127.0.0.1:6379/0", description="redis://, rediss:// or unix:// URL; REDIS_URL works too"
    )
    timeout_s: Seconds = Field(default=5, gt=0, description="Longest wait for one reply")
    replay_ttl_s: int = Field(default=300, ge=1, description="An answer can be replayed this long after its end")


class GatewaySettings(Section):
    """The HTTP side."""

    host: str = Field(default="127.0.0.1", description="Address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one")
    api_keys: SecretStr = Field(
        default=SecretStr(""), description="Comma-separated keys that may call; empty: open to all"
    )
    max_body_bytes: int = Field(default=4 * 2**20, ge=1024, description="A larger body is answered 413")
    max_connections: int = Field(
        default=4096, ge=1, description="Requests in this process at once; one more is answered 503"
    )
    max_choices: int = Field(
        default=128, ge=1, le=4096, description="Choices of one request, over all its prompts; each is queued by itself"
    )
    header_hold_s: Seconds = Field(default=2, ge=0, description="A stream's status waits this long for its first token")
    keepalive_s: Seconds = Field(default=10, gt=0, description="Silence after which a stream carries a comment")
    body_timeout_s: Seconds = Field(default=30, gt=0, description="A body that takes longer to arrive is answered 400")
    drain_s: Seconds = Field(default=30, ge=0, description="On SIGTERM, open streams may take this long to end")
    default_lane: str = Field(default="interactive", description="Lane of a request that asks for none")
    absent_grace_s: Seconds = Field(
        default=60, ge=0, description="A model without workers still accepts requests this long"
    )


class EchoSettings(Section):
    """The echo engine's clock: step_ms = step_ms + decode_ms * decodes + prefill_ms * prefill tokens."""

    step_ms: float = Field(default=0, ge=0, le=3_600_000, description="Cost of a step")
    decode_ms: float = Field(default=0, ge=0, le=3_600_000, description="Cost of each sequence that decodes in it")
    prefill_ms: float = Field(default=0, ge=0, le=3_600_000, description="Cost of each prompt token that it prefills")


class UpstreamSettings(Section):
    """The server that the upstream engine relays to: any that speaks OpenAI."""

    url: str = Field(default="", description="Its base URL, as OpenAI's clients take it: http://host:8000/v1")
    api_key: SecretStr = Field(default=SecretStr(""), description="Sent as a bearer token; empty: none")
    model: str = Field(default="", description="The model's name there; empty: as in BUSWAY_WORKER__MODEL")
    timeout_s: Seconds = Field(default=120, gt=0, description="Its longest silence before or within an answer")


class WorkerSettings(Section):
    """One model on one device."""

    engine: Literal["continuous", "echo", "embedding", "upstream", "vllm"] = Field(
        default="continuous", description="What runs the model"
    )
    model: str = Field(
        default=DEFAULT_MODEL,
        description=f"Built-in name, local folder, or Hugging Face id; unset, engine embedding has {DEFAULT_EMBEDDER}",
    )
    served_model_name: str = Field(
        default="", description="The name that requests use; empty: the last part of `model`"
    )
    device: str = Field(default="auto", description="cpu, cuda, cuda:1 ...; auto takes a GPU if there is one")
    dtype: str = Field(default="auto", description="float32, bfloat16 ...; auto: float32 on a CPU, bfloat16 on a GPU")
    lanes: str = Field(default="", description="Comma-separated lanes that it serves; empty: all")
    batching: Literal["continuous", "dynamic", "static"] = Field(
        default="continuous",
        description="continuous: slots are filled as they come free; dynamic: a batch of what came within the lane's "
        "window runs to its end; static: it also waits to be full, and keeps its shape until its longest answer ends",
    )
    batch_wait_ms: float = Field(default=200, ge=0, le=60_000, description="A static batch waits this long to be full")
    slots: int = Field(default=16, ge=1, le=4096, description="Requests that run at once")
    max_model_len: int = Field(default=2048, ge=16, description="Prompt and output tokens of one request, at most")
    prefill_chunk_tokens: int = Field(
        default=512, ge=1, description="Prompt tokens that one step may prefill, if its time allows"
    )
    prefix_cache_tokens: int = Field(
        default=4096, ge=0, description="Tokens whose keys and values are kept for prompts that begin alike; 0: none"
    )
    embed_batch_tokens: int = Field(default=1024, ge=1, description="Tokens that one step of the embedding engine runs")
    threads: int = Field(default=0, ge=0, description="CPU threads of the engine; 0: one a core")
    lease_s: Seconds = Field(
        default=10, ge=0.5, description="A silent worker's requests go to another after this long; the same for all"
    )
    drain_s: Seconds = Field(default=30, ge=0, description="On SIGTERM, finish what can be finished in this time")
    max_deaths: int = Field(default=3, ge=1, description="A request that took this many workers down is given up")
    echo: EchoSettings = EchoSettings()
    upstream: UpstreamSettings = UpstreamSettings()  # type: ignore[call-arg]

    @model_validator(mode="before")
    @classmethod
    def _own_default(cls, given: dict[str, Any]) -> dict[str, Any]:
        """The embedding engine cannot run the default of the others."""
        return {"model": DEFAULT_EMBEDDER, **given} if given.get("engine") == "embedding" else given

    @property
    def has_weights(self) -> bool:
        """The engine loads the model's files, on this machine."""
        return self.engine not in {"echo", "upstream"}

    @property
    def model_name(self) -> str:
        """The name under which the model is served."""
        return self.served_model_name or ("echo" if self.engine == "echo" else self.model.rstrip("/").split("/")[-1])


class LogSettings(Section):
    """What the processes say."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe event to print"
    )
    format: Literal["auto", "console", "json"] = Field(
        default="auto", description="auto: console on a terminal, else json"
    )


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
