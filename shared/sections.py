"""Sections: the groups of settings, each field with its default, its bounds and what it is for."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from shared.lanes import Seconds

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
    orphan_grace_s: Seconds = Field(
        default=10, gt=0, description="When a gateway has vanished, its requests are kept this long for their clients"
    )

    @field_validator("url")
    @classmethod
    def _has_scheme(cls, url: str) -> str:
        if not url.startswith(("redis://", "rediss://", "unix://")):
            raise ValueError("begins with redis://, rediss:// or unix://")
        return url


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
    disconnect_grace_s: Seconds = Field(
        default=2, ge=0, description="A client that lost its connection may come back this long before its cancel"
    )
    default_lane: str = Field(default="interactive", description="Lane of a request that asks for none")
    absent_grace_s: Seconds = Field(
        default=60,
        ge=0,
        description="A model without workers still accepts requests this long (not a lane that none of them serves)",
    )


class EchoSettings(Section):
    """The echo engine's clock: step_ms = step_ms + decode_ms * decodes + prefill_ms * prefill tokens."""

    step_ms: float = Field(default=0, ge=0, le=3_600_000, description="Cost of a step")
    decode_ms: float = Field(default=0, ge=0, le=3_600_000, description="Cost of each sequence that decodes in it")
    prefill_ms: float = Field(default=0, ge=0, le=3_600_000, description="Cost of each prompt token that it prefills")
    dies_of: str = Field(default="", description="A prompt with these words kills the worker: to try what happens then")


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
    quantization: Literal["none", "int8"] = Field(
        default="none", description="int8: weights of the continuous engine in 8 bits; faster, and not exact"
    )
    cuda_graphs: bool = Field(
        default=False, description="Decode by recorded CUDA graphs: faster, slower to start; not yet tried on a device"
    )
    threads: int = Field(default=0, ge=0, description="CPU threads of the engine; 0: one a core")
    lease_s: Seconds = Field(
        default=10, ge=0.5, description="A silent worker's requests go to another after this long; the same for all"
    )
    drain_s: Seconds = Field(default=30, ge=0, description="On SIGTERM, finish what can be finished in this time")
    max_deaths: int = Field(
        default=3,
        ge=1,
        description="A request that took this many workers down is given up; with one less it runs alone",
    )
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
    def generates(self) -> bool:
        """The engine answers; it does not make embeddings."""
        return self.engine != "embedding"

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
