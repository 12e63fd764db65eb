"""Engines by name, imported only when asked for, so that a process pays for the one it runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shared.errors import ConfigError
from shared.settings import Settings
from worker.engine import Engine


def _echo(settings: Settings) -> Engine:
    from worker.engines.echo import EchoEngine

    return EchoEngine(settings.worker, settings.served_lanes())


@contextmanager
def _needing(extra: str) -> Iterator[None]:
    """ConfigError that names the extra if a module is not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(f"this engine needs {error.name}: install busway[{extra}]") from error


def _continuous(settings: Settings) -> Engine:
    with _needing("worker"):
        from worker.engines.continuous.engine import ContinuousEngine
    return ContinuousEngine.load(settings.worker, settings.cache_dir, settings.served_lanes())


def _embedding(settings: Settings) -> Engine:
    with _needing("worker"):
        from worker.engines.embedding.engine import EmbeddingEngine
    return EmbeddingEngine.load(settings.worker, settings.served_lanes(), settings.cache_dir)


def _upstream(settings: Settings) -> Engine:
    from worker.engines.upstream.engine import UpstreamEngine

    return UpstreamEngine(settings.worker)


def _vllm(settings: Settings) -> Engine:
    with _needing("vllm"):
        from worker.engines.vllm.engine import VllmEngine
    return VllmEngine.load(settings.worker, settings.cache_dir)


FACTORIES: dict[str, Callable[[Settings], Engine]] = {
    "continuous": _continuous,
    "echo": _echo,
    "embedding": _embedding,
    "upstream": _upstream,
    "vllm": _vllm,
}


def create(settings: Settings) -> Engine:
    """The engine that the settings name, loaded and warm."""
    return FACTORIES[settings.worker.engine](settings)
