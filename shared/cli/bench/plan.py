"""What a run asks of a server: a load for each lane, and for how long."""

import math
from dataclasses import dataclass, field
from typing import Literal, Self

from shared.errors import ConfigError

MAX_REQUESTS = 1_000_000
"""What a lane asks at most: each request is remembered until the end."""
MAX_DURATION_S = 86_400
MAX_IN_FLIGHT = 16_384
MAX_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class Range:
    """Whole numbers from `low` to `high`, both included, each as likely as the others."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high <= MAX_TOKENS:
            raise ConfigError(f"a range goes from 1 or more up to {MAX_TOKENS} at most, not {self.low}-{self.high}")

    @classmethod
    def of(cls, text: str) -> Self:
        """`24-96`, or `24` for always 24. ConfigError if it is neither."""
        low, _, high = text.partition("-")
        try:
            return cls(int(low), int(high or low))
        except ValueError:
            raise ConfigError(f"a range is written 24-96, or 24 for always 24; not {text}") from None

    def __str__(self) -> str:
        return f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class Load:
    """One lane's load: either `rate` (open loop) or `concurrency` (closed loop)."""

    rate: float | None = None
    """Arrivals a second, whatever the server does; infinity is all at once and needs `requests`."""
    concurrency: int | None = None
    """Requests kept in flight: the next is asked when one ends."""
    arrivals: Literal["poisson", "constant"] = "poisson"
    requests: int | None = None
    prompt_tokens: Range = Range(24, 96)
    """Words in a prompt. They are short and common, so most tokenizers make one token of each."""
    output_tokens: Range = Range(16, 128)
    """`max_tokens` of a request."""
    max_in_flight: int = 1024
    """An arrival that finds so many of its lane open is not sent, and counts as an error."""

    def __post_init__(self) -> None:
        if (self.rate is None) == (self.concurrency is None):
            raise ConfigError("a load has either a rate or a concurrency")
        if self.rate is not None and not self.rate > 0:
            raise ConfigError(f"a rate is more than 0, not {self.rate}")
        if self.rate == math.inf and self.requests is None:
            raise ConfigError("a rate of inf, all at once, needs a number of requests")
        if not 1 <= self.max_in_flight <= MAX_IN_FLIGHT:
            raise ConfigError(f"requests in flight are 1 to {MAX_IN_FLIGHT}, not {self.max_in_flight}")
        if self.concurrency is not None and not 1 <= self.concurrency <= self.max_in_flight:
            raise ConfigError(f"a concurrency is 1 to {self.max_in_flight}, not {self.concurrency}")
        if self.requests is not None and not 1 <= self.requests <= MAX_REQUESTS:
            raise ConfigError(f"requests are 1 to {MAX_REQUESTS}, not {self.requests}")


@dataclass(frozen=True, slots=True)
class Plan:
    """One run.

    It is over after `duration_s`, or when the first lane has asked its `requests` and all of them have ended. Then
    nothing new is asked, and what is in flight may end within `timeout_s` of its arrival.
    """

    url: str
    """The server, with or without `/v1`."""
    loads: dict[str, Load]
    """By lane. A lane's name is its `service_tier`; `bulk` is `flex` and `interactive` is `default`."""
    model: str | None = None
    """None takes the first that the server lists."""
    duration_s: float | None = None
    warmup_s: float = 0
    """What arrives earlier is asked, and left out of the figures."""
    endpoint: Literal["chat", "completions"] = "chat"
    temperature: float | None = None
    """None leaves it to the server."""
    ignore_eos: bool = False
    send_tier: bool = True
    """False for servers that do not know `service_tier`."""
    timeout_s: float = 120
    """From a request's arrival to its end; later is an error."""
    seed: int = 0
    api_key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.loads:
            raise ConfigError("a run needs a load")
        if self.duration_s is None and self.leading.requests is None:
            raise ConfigError("a run needs a duration, or a number of requests")
        if self.duration_s is not None and not 0 < self.duration_s <= MAX_DURATION_S:
            raise ConfigError(f"a duration is more than 0 and at most {MAX_DURATION_S} s, not {self.duration_s}")
        if not 0 <= self.warmup_s < (self.duration_s or MAX_DURATION_S):
            raise ConfigError(f"the warm-up ends before the run does; {self.warmup_s} s do not")
        if not 0 < self.timeout_s <= MAX_DURATION_S:
            raise ConfigError(f"a timeout is more than 0 and at most {MAX_DURATION_S} s, not {self.timeout_s}")
        if self.temperature is not None and not math.isfinite(self.temperature):
            raise ConfigError(f"a temperature is a number, not {self.temperature}")

    @property
    def leading(self) -> Load:
        """The load whose `requests` end the run: the first."""
        return next(iter(self.loads.values()))
