"""Errands: short background work that outlives the request it is for, but not the process."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from shared.tasks import stop

log = structlog.get_logger()


class Errands:
    """Every task is held, its failure is told, and `close` waits for what is under way."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def send(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Start it now."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._returned)

    async def close(self, within_s: float) -> None:
        """Wait for all of them, then cancel the rest."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)
        await stop(self._tasks)

    def _returned(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("errand.failed", errand=task.get_name(), exc_info=error)
