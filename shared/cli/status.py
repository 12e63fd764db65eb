"""`busway status`: which workers are alive, as Redis knows it."""

import socket
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from shared.sections import RedisSettings

POLL_S = 0.05


def status(
    here: Annotated[bool, typer.Option(help="Only workers of this host; for a container's health check.")] = False,
    data: Annotated[Path, typer.Option(help="Folder of a `busway up`, asked where no broker is set.")] = Path(
        ".busway"
    ),
) -> None:
    """List the live workers. Exit status 1 if there is none."""
    from shared.errors import BrokerUnavailable
    from shared.settings import URL, load, rows

    settings = load()
    redis, socket_file = settings.redis, data / "valkey" / "valkey.sock"
    if socket_file.exists() and (URL, "default") in [(name, source) for name, _, source in rows(settings)]:
        redis = redis.model_copy(update={"url": f"unix://{socket_file.resolve()}?db=0"})
    try:
        workers = live_workers(redis)
    except BrokerUnavailable as error:
        typer.echo(f"busway: {error.message}", err=True)
        raise typer.Exit(1) from error
    if here:
        workers = [(model, one) for model, one in workers if is_here(one["id"])]
    for model, one in workers:
        used = int(one["slots"]) - int(one["free_slots"])
        print(f"{model}  {one['id']}  {one['engine']}  {used}/{one['slots']} slots used")
    if not workers:
        typer.echo("busway: no live worker", err=True)
        raise typer.Exit(1)


def is_here(worker_id: str, pid: int | None = None) -> bool:
    """Whether the worker runs on this host (as this process): ids are host, process, chance (`ids.boot_id`)."""
    return worker_id.startswith(f"{socket.gethostname()}:{'' if pid is None else f'{pid}:'}")


def live_workers(settings: "RedisSettings") -> list[tuple[str, dict[str, str]]]:
    """(model, fields) of each worker whose heartbeat is no older than its lease. BrokerUnavailable without a broker."""
    import asyncio

    from shared.broker import Broker
    from shared.connection import connect

    async def ask() -> list[tuple[str, dict[str, str]]]:
        redis = connect(settings)
        try:
            served = await Broker(redis, keep_ms=settings.replay_ttl_s * 1000).models()
        finally:
            await redis.aclose()
        return [(model.name, one) for model in served for one in model.workers]

    return asyncio.run(ask())


def await_workers(settings: "RedisSettings", pids: Iterable[int], within_s: float) -> None:
    """Return once each of these processes serves; TimeoutError if that takes longer than `within_s`."""
    until = time.monotonic() + within_s
    missing = set(pids)
    while missing:
        ids = [one["id"] for _, one in live_workers(settings)]
        missing = {pid for pid in missing if not any(is_here(one, pid) for one in ids)}
        if missing and time.monotonic() > until:
            raise TimeoutError(f"{len(missing)} workers do not serve after {within_s:.0f} s")
        time.sleep(POLL_S)
