"""Requests to stop, counted instead of died of."""

import signal
from typing import Self

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopAsked(Exception):
    """A request to stop came while something else was going on."""


class Signals:
    """Between enter and exit, SIGINT, SIGTERM and SIGHUP only add to `asked`."""

    def __init__(self) -> None:
        self.asked = 0

    def __enter__(self) -> Self:
        for number in NUMBERS:
            signal.signal(number, self._count)
        return self

    def __exit__(self, *_: object) -> None:
        for number in NUMBERS:
            signal.signal(number, signal.SIG_DFL)

    def _count(self, *_: object) -> None:
        self.asked += 1

    def raise_if_asked(self) -> None:
        if self.asked:
            raise StopAsked
