"""Engines by name, imported only when asked for, so that a process pays for the one it runs."""

from collections.abc import Callable

from shared.errors import ConfigError
from shared.settings import Settings
from worker.engine import Engine


def _echo(settings: Settings) -> Engine:
    from worker.engines.echo import EchoEngine

    return EchoEngine(settings.worker, settings.served_lanes())


def _continuous(settings: Settings) -> Engine:
    try:
        from worker.engines.continuous.engine import ContinuousEngine
    except ModuleNotFoundError as error:
        raise ConfigError(f"the continuous engine needs {error.name}: install busway[worker]") from error
    return ContinuousEngine.load(settings.worker, settings.cache_dir, settings.served_lanes())


FACTORIES: dict[str, Callable[[Settings], Engine]] = {"echo": _echo, "continuous": _continuous}


def create(settings: Settings) -> Engine:
    """The engine that the settings name, loaded and warm."""
    return FACTORIES[settings.worker.engine](settings)
