"""A background loop: one period, one tick, errors told once and never fatal to its neighbours."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import structlog

from shared.errors import BrokerUnavailable

log = structlog.get_logger()


class Loop:
    """Calls `tick` every `every_s`, give or take `jitter` of it, until cancelled.

    A broker that is away is logged when it goes and when it comes back. Any other exception is a bug: it
    is logged with its traceback, and the loop goes on.
    """

    def __init__(self, name: str, every_s: float, tick: Callable[[], Awaitable[None]], *, jitter: float = 0.0) -> None:
        self.name = name
        self._every_s = every_s
        self._tick = tick
        self._jitter = jitter
        self._away = False

    async def run(self) -> None:
        while True:
            await self.once()
            await asyncio.sleep(self._every_s * random.uniform(1 - self._jitter, 1 + self._jitter))  # noqa: S311

    async def once(self) -> None:
        """One guarded tick."""
        try:
            await self._tick()
        except BrokerUnavailable as error:
            if not self._away:
                log.warning("loop.broker_away", loop=self.name, error=error.message)
            self._away = True
        except Exception:
            log.exception("loop.failed", loop=self.name)
        else:
            if self._away:
                log.info("loop.broker_back", loop=self.name)
            self._away = False
