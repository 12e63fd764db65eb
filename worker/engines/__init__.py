"""Engines by name, imported only when asked for, so that a process pays for the one it runs."""

from collections.abc import Callable

from shared.errors import ConfigError
from shared.settings import WorkerSettings
from worker.engine import Engine


def _echo(settings: WorkerSettings) -> Engine:
    from worker.engines.echo import EchoEngine

    return EchoEngine(settings)


def _continuous(settings: WorkerSettings) -> Engine:
    from worker.engines.continuous.engine import ContinuousEngine

    return ContinuousEngine.load(settings)


FACTORIES: dict[str, Callable[[WorkerSettings], Engine]] = {"echo": _echo, "continuous": _continuous}


def create(settings: WorkerSettings) -> Engine:
    """The engine that the settings name, loaded and warm; ConfigError if there is none of that name."""
    factory = FACTORIES.get(settings.engine)
    if factory is None:
        raise ConfigError(f"unknown engine {settings.engine!r}; there are: {', '.join(sorted(FACTORIES))}")
    return factory(settings)
