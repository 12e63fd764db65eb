"""Supervision: parts that run are kept running, and are stopped in order."""

import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from shared.cli.logs import put_aside, tail
from shared.cli.processes import spawn
from shared.errors import ConfigError

EARLY_S = 5
EARLY_DEATHS = 5
LONGEST_PAUSE_S = 5
POLL_S = 0.05


class Part(Protocol):
    """Something that runs in a process of its own."""

    name: str
    log: Path

    @property
    def pid(self) -> int:
        """The process of its latest start."""
        ...

    def start(self) -> None:
        """Start it, for the first time or again. ConfigError if it cannot run."""
        ...

    def exit_status(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        ...


class Broken(Exception):
    """The fleet cannot go on; the text says why. `status` is the exit status it deserves."""

    def __init__(self, message: str, *, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class Program:
    """A child process whose output goes to a log file, which outlasts restarts."""

    def __init__(
        self, name: str, command: Sequence[str], *, env: Mapping[str, str], log: Path, pass_fds: Sequence[int] = ()
    ) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._env = env
        self._pass_fds = pass_fds
        self._process: subprocess.Popen[bytes] | None = None
        put_aside(log)

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def was_started(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = spawn(self._command, env=self._env, pass_fds=self._pass_fds, output=output)

    def exit_status(self) -> int | None:
        assert self._process is not None, "not started"
        return self._process.poll()

    def terminate(self) -> None:
        assert self._process is not None, "not started"
        self._process.terminate()

    def kill(self) -> None:
        assert self._process is not None, "not started"
        self._process.kill()
        self._process.wait()


class Watched:
    """One part and its record."""

    def __init__(self, part: Part, *, may_leave: bool) -> None:
        self.part = part
        self.may_leave = may_leave
        self.born = 0.0
        self.early_deaths = 0
        self.due: float | None = None
        """When it is to be started again, if it is down."""

    def start(self) -> None:
        self.born = time.monotonic()
        self.due = None
        self.part.start()


class Supervisor:
    """Watches parts. Single-threaded: its owner calls `refuse_deaths` while the fleet starts, then `tick`."""

    def __init__(self, say: Callable[[str], None], on_death: Callable[[Part], None] = lambda _: None) -> None:
        """`on_death` is told of every part that has ended, before it is started again."""
        self._say = say
        self._on_death = on_death
        self._watched: list[Watched] = []

    def start(self, part: Part, *, may_leave: bool = False) -> None:
        """`may_leave`: exit status 0 means that somebody asked it to go, so it is not started again."""
        watched = Watched(part, may_leave=may_leave)
        watched.start()
        self._watched.append(watched)

    def refuse_deaths(self) -> None:
        """Broken, with the last lines of its log, if a part has ended."""
        for watched in self._watched:
            status = watched.part.exit_status()
            if status is not None:
                raise Broken(
                    f"{watched.part.name} ended at the start ({ending(status)}). {tail(watched.part.log)}",
                    status=2 if status == 2 else 1,
                )

    def tick(self) -> None:
        """Start again what has ended, after a pause. Broken if a part keeps ending as soon as it is started."""
        now = time.monotonic()
        for watched in list(self._watched):
            if watched.due is not None:
                if now >= watched.due:
                    self._revive(watched)
            elif (status := watched.part.exit_status()) is not None:
                self._on_death(watched.part)
                if watched.may_leave and status == 0:
                    self._watched.remove(watched)
                    self._say(f"{watched.part.name} has left, as it was asked to; it is not started again")
                else:
                    self._record_death(watched, ending(status))

    def _revive(self, watched: Watched) -> None:
        try:
            watched.start()
        except ConfigError as error:
            self._record_death(watched, error.message)
        else:
            self._say(f"{watched.part.name} is started again")

    def _record_death(self, watched: Watched, how: str) -> None:
        lived_s = time.monotonic() - watched.born
        watched.early_deaths = watched.early_deaths + 1 if lived_s < EARLY_S else 0
        name, log = watched.part.name, watched.part.log
        if watched.early_deaths >= EARLY_DEATHS:
            raise Broken(f"{name} ended {EARLY_DEATHS} times in a row within {EARLY_S} s ({how}). {tail(log)}")
        pause_s = min(LONGEST_PAUSE_S, 0.1 * 2**watched.early_deaths)
        watched.due = time.monotonic() + pause_s
        self._say(f"{name} ended ({how}) after {lived_s:.1f} s; again in {pause_s:.1f} s; log: {log}")


def stop(programs: Iterable[Program], *, grace_s: float, is_forced: Callable[[], bool]) -> list[str]:
    """Ask all to end, wait, and kill what is left after `grace_s` or once forced. The names of the killed."""
    running = [one for one in programs if one.was_started and one.exit_status() is None]
    for one in running:
        one.terminate()
    until = time.monotonic() + grace_s
    while running and time.monotonic() < until and not is_forced():
        time.sleep(POLL_S)
        running = [one for one in running if one.exit_status() is None]
    for one in running:
        one.kill()
    return [one.name for one in running]


def ending(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"
