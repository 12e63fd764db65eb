"""Tests wait for facts, never for time."""

import asyncio
import inspect
import time


async def wait_until(fact, description: str, *, timeout_s: float = 20.0):
    """Poll `fact` (plain or async) until it is true and return its value; fail naming what was waited for."""
    until = time.monotonic() + timeout_s
    while True:
        value = fact()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() > until:
            raise AssertionError(f"waited {timeout_s} s in vain for {description}")
        await asyncio.sleep(0.02)
