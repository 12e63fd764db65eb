"""A loop outlives what goes wrong in a tick."""

import pytest

from shared.errors import BrokerUnavailable
from worker.loop import Loop


@pytest.mark.parametrize("error", [BrokerUnavailable("away"), ValueError("a bug")])
async def test_an_error_in_one_tick_does_not_end_the_loop(error):
    ticks = []

    async def tick():
        ticks.append(1)
        if len(ticks) == 1:
            raise error

    loop = Loop("test", 0.001, tick)
    await loop.once()
    await loop.once()

    assert len(ticks) == 2
