"""Tasks that last: watched while they run, and really over when they are stopped."""

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

CANCEL_AGAIN_S = 0.1


async def stop(tasks: Iterable["asyncio.Task[Any]"]) -> None:
    """Cancel until all are done.

    Once is not enough: in Python 3.11 `asyncio.wait_for`, through which redis-py sends every command, swallows
    a cancellation that comes together with its result. (A TaskGroup cancels once: do not put such tasks in one.)
    """
    left = [task for task in tasks if not task.done()]
    while left:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=CANCEL_AGAIN_S)
        left = [task for task in left if not task.done()]


async def beside(lasting: Sequence[Coroutine[Any, Any, None]], work: Coroutine[Any, Any, None]) -> None:
    """Run `work` with the lasting coroutines beside it, which end with it.

    Raises what `work` raises, or what one of the others raises first: none of them may fail unseen.
    """
    main = asyncio.ensure_future(work)
    others = [asyncio.ensure_future(one) for one in lasting]
    try:
        done, _ = await asyncio.wait([main, *others], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if main not in done:
            raise RuntimeError("a task that lasts has ended")
    finally:
        await stop([main, *others])
