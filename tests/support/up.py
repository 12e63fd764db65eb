"""`busway up` as a real process, and what can be seen of it from outside."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


class Up:
    """One fleet with the echo engine on a free port. Leaving it is Ctrl-C, and must end well."""

    def __init__(self, data: Path, *options: str, **env: str) -> None:
        self.data = data
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("BUSWAY_", "REDIS_URL"))}
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "shared.cli.main",
                "up",
                "--engine",
                "echo",
                "--port",
                "0",
                "--data",
                data,
                *options,
            ],
            env={**clean, "PYTHONPATH": str(ROOT), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._new: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self):
        try:
            self.url = self.wait_for("ready http").split()[1]
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            try:
                assert self.stop() == 0, self.said
            finally:
                self.kill()

    @property
    def said(self) -> str:
        return "".join(self.lines)

    def wait_for(self, start: str, timeout_s: float = 40) -> str:
        """The next line that starts so; AssertionError if the process ends or says nothing for too long."""
        while True:
            try:
                line = self._new.get(timeout=timeout_s)
            except queue.Empty:
                line = None
            assert line is not None, f"no line {start!r}:\n{self.said}"
            if line.startswith(start):
                return line.strip()

    def stop(self, number: signal.Signals = signal.SIGINT, timeout_s: float = 40) -> int:
        """The exit status."""
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def children(self) -> dict[str, list[int]]:
        """Pids by what they are: gateway, worker, valkey."""
        found: dict[str, list[int]] = {"gateway": [], "worker": [], "valkey": []}
        for pid, parent, _, arguments in processes():
            if parent == self.process.pid:
                for name, pids in found.items():
                    if f"-m {name}" in arguments or f"{name}-server" in arguments:
                        pids.append(pid)
        return found

    def _read(self) -> None:
        with self.process.stdout as output:
            for line in output:
                self.lines.append(line)
                self._new.put(line)
        self._new.put(None)


def processes() -> Iterator[tuple[int, int, str, str]]:
    """(pid, parent, state, command line) of everything that runs. A bare Linux has no `ps`; others have no /proc."""
    if Path("/proc/self/stat").exists():
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it ended while we looked
                state, parent, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
                arguments = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                yield int(folder.name), int(parent), state, arguments
        return
    command = ["ps", "-A", "-ww", "-o", "pid=,ppid=,stat=,args="]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        pid, parent, state, arguments = line.split(None, 3)
        yield int(pid), int(parent), state, arguments


def is_running(pid: int) -> bool:
    """Whether it is there and not just waiting to be collected by whoever adopted it."""
    return any(one == pid and not state.startswith("Z") for one, _, state, _ in processes())
