"""Health: whether the upstream answers, and for how long it is better left alone."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

PROBE_S = 5.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 30.0

log = structlog.get_logger()


def backoff_s(failures: int) -> float:
    """How long to wait after so many failures in a row, the first being 1."""
    return min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 20), LONGEST_PAUSE_S)


class Health:
    """Probes all the time: seldom while all is well, soon after a failure, ever later while it lasts."""

    def __init__(self, probe: Callable[[], Awaitable[str | None]]) -> None:
        """`probe` returns None, or what is wrong."""
        self._probe = probe
        self._is_up = False
        self._problem: str | None = None
        self._held_until = 0.0
        self._failures = 0
        self._look = asyncio.Event()

    @property
    def is_ready(self) -> bool:
        """From any thread."""
        return self._is_up and time.monotonic() >= self._held_until

    def answered(self) -> None:
        """A request went well."""
        self._failures = 0

    def failed(self, problem: str, pause_s: float = 0.0) -> None:
        """A request did not; leave the upstream alone for a while, longer each time, and for `pause_s` at least."""
        self._failures += 1
        self._held_until = time.monotonic() + max(pause_s, backoff_s(self._failures))
        log.warning("upstream.failed", problem=problem, failures=self._failures)
        self._look.set()

    async def run(self) -> None:
        """Until cancelled."""
        failed = 0
        while True:
            problem = await self._probe()
            failed = failed + 1 if problem else 0
            if problem != self._problem or (problem is None and not self._is_up):
                log.info("upstream.ready") if problem is None else log.warning("upstream.away", problem=problem)
            self._is_up, self._problem = problem is None, problem
            await self._pause(backoff_s(failed) if failed else PROBE_S)

    async def _pause(self, seconds: float) -> None:
        """For so long; while all was well, only until something goes wrong."""
        self._look.clear()
        if not self._is_up:
            await asyncio.sleep(seconds)
            return
        try:
            async with asyncio.timeout(seconds):
                await self._look.wait()
        except TimeoutError:
            return
