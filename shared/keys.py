"""Every Redis key and channel name; nowhere else is one spelled.

All keys of one model share the hash tag `{<model>}`, so Cluster keeps them together and a script may
touch any of them.
"""

import re
from dataclasses import dataclass

from shared.errors import ConfigError

GROUP = "workers"
"""Consumer group on every lane stream."""
PARKED = "parked"
"""The consumer that holds entries which gave way. It is nobody: any worker may take from it."""
MODELS = "bw:models"
"""Zset: model name by the time (ms) at which a worker last served it."""
CONTROL_PREFIX = "bw:ctl:"

_NAME = re.compile(r"[^{}\s\x00-\x1f]{1,200}")


def gateway_channel(boot_id: str) -> str:
    """Where the gateway process with this boot id listens for frames."""
    return f"bw:gw:{boot_id}"


def control_channel(worker_id: str) -> str:
    """Where one worker listens for cancels."""
    return CONTROL_PREFIX + worker_id


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one model; ConfigError if the name cannot stand inside a hash tag."""

    model: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.model):
            raise ConfigError(f"model name {self.model!r}: 1 to 200 characters, no braces, no white space")

    @property
    def prefix(self) -> str:
        """What scripts put before `req:<id>` and `log:<id>`."""
        return f"bw:{{{self.model}}}:"

    def stream(self, lane: str) -> str:
        """Stream of waiting and running entries of a lane."""
        return f"{self.prefix}q:{lane}"

    def stats(self, lane: str) -> str:
        """Hash: waiting tokens, and how fast the lane drains."""
        return f"{self.prefix}lane:{lane}"

    def request(self, request_id: str) -> str:
        """Hash: everything about one request."""
        return f"{self.prefix}req:{request_id}"

    def log(self, request_id: str) -> str:
        """Stream: what the request has produced, ids `<attempt>-<tokens so far>`."""
        return f"{self.prefix}log:{request_id}"

    def worker(self, worker_id: str) -> str:
        """Hash with a TTL: what a live worker says of itself."""
        return f"{self.prefix}w:{worker_id}"

    @property
    def workers(self) -> str:
        """Zset: worker ids by the time of their last heartbeat."""
        return f"{self.prefix}workers"

    @property
    def dead_letters(self) -> str:
        """Capped stream: requests that were given up."""
        return f"{self.prefix}dlq"

    @property
    def bell(self) -> str:
        """Channel: the lane that has just got something to do."""
        return f"{self.prefix}bell"
