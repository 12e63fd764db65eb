"""Parts: the processes of the storm, each started again whenever it has ended."""

import asyncio
import signal
import time
from collections.abc import Callable

from tests.support.fleet import Process

TICK_S = 0.05
ENDS_WITHIN_S = 30
"""A process that was asked to end."""
YOUNG_S = 10
"""One that has just been started may die of a signal that it cannot handle yet."""


class Part:
    """One place in the fleet, and the process that fills it now."""

    def __init__(self, name: str, start: Callable[[], Process]) -> None:
        self.name = name
        self._start = start
        self.start()

    def start(self) -> None:
        self.process = self._start()
        self.born = time.monotonic()
        self.done: set[str] = set()
        """What was done to it: `kill`, `end`, `stop`."""
        self._asked_at = 0.0

    @property
    def pid(self) -> int:
        return self.process.child.pid

    def kill(self) -> None:
        self.done.add("kill")
        self.process.child.kill()

    def terminate(self) -> None:
        if "end" not in self.done:  # a second signal ends a process at once
            self.process.signal(signal.SIGTERM)
        self.asked()

    def asked(self) -> None:
        """To end, in good order."""
        self.done.add("end")
        self._asked_at = self._asked_at or time.monotonic()

    def stop(self) -> None:
        self.done.add("stop")
        self.process.signal(signal.SIGSTOP)

    def wake(self) -> None:
        self.process.signal(signal.SIGCONT)

    def strangeness(self) -> str:
        """What is odd about how it ended, or about its not ending; empty: nothing."""
        status, lived_s = self.process.status, time.monotonic() - self.born
        if status is None:
            is_late = "end" in self.done and time.monotonic() - self._asked_at > ENDS_WITHIN_S
            return f"{self.name} was asked to end and did not within {ENDS_WITHIN_S} s" if is_late else ""
        allowed = {-signal.SIGKILL} if "kill" in self.done else set()
        if "end" in self.done:
            allowed |= {0, -signal.SIGTERM} if lived_s < YOUNG_S else {0}
        if status in allowed:
            return ""
        return f"{self.name} ended with {status} after {lived_s:.1f} s ({sorted(self.done)}); {self.process.log}"


class Keeper:
    """Looks after all parts."""

    def __init__(self) -> None:
        self.workers: list[Part] = []
        self.gateways: list[Part] = []
        self.strange: list[str] = []
        """What should not have happened to a process."""

    @property
    def parts(self) -> list[Part]:
        return [*self.workers, *self.gateways]

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for part in self.parts:
                self._look_after(part)
            await asyncio.sleep(TICK_S)

    def _look_after(self, part: Part) -> None:
        strangeness = part.strangeness()
        if strangeness:
            self.strange.append(strangeness)
            part.kill()
        if part.process.status is not None:
            part.start()
