"""A turn of the engine's thread: the table's orders, then a step."""

import time
from collections.abc import Sequence

from worker.engine import Engine, Event, Work
from worker.table import Orders

ADDING_S = 0.05


def turn(engine: Engine, orders: Orders) -> tuple[Sequence[Event], list[Work]]:
    """The events of a step, and the works that wait for the next turn.

    Adding a long prompt takes time, and those that run wait for it: one turn adds for a moment only.
    """
    for key in orders.release:
        engine.cancel(key)
    works, until = list(orders.add), time.monotonic() + ADDING_S
    while works:
        engine.add(works.pop(0))
        if time.monotonic() > until:
            break
    return engine.step(), works
