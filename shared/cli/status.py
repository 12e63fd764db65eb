"""`busway status`: which workers are alive, as Redis knows it."""

import socket
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli.ask import DATA, Data, ask, ask_or_exit, fail

if TYPE_CHECKING:
    from shared.connection import Redis
    from shared.sections import RedisSettings

POLL_S = 0.05


def status(
    here: Annotated[bool, typer.Option(help="Only workers of this host; for a container's health check.")] = False,
    data: Data = DATA,
) -> None:
    """List the live workers. Exit status 1 if there is none."""
    workers = ask_or_exit(data, live)
    if here:
        workers = [(model, one) for model, one in workers if is_here(one["id"])]
    for model, one in workers:
        used = int(one["slots"]) - int(one["free_slots"])
        print(f"{model}  {one['id']}  {one['engine']}  {used}/{one['slots']} slots used")
    if not workers:
        fail("no live worker")


def is_here(worker_id: str, pid: int | None = None) -> bool:
    """Whether the worker runs on this host (as this process): ids are host, process, chance (`ids.boot_id`)."""
    return worker_id.startswith(f"{socket.gethostname()}:{'' if pid is None else f'{pid}:'}")


async def live(redis: "Redis") -> list[tuple[str, dict[str, str]]]:
    """(model, fields) of each worker whose heartbeat is no older than its lease."""
    from shared.broker import Broker

    served = await Broker(redis, keep_ms=0).models()  # it only reads
    return [(model.name, one) for model in served for one in model.workers]


def await_workers(settings: "RedisSettings", pids: Iterable[int], within_s: float) -> None:
    """Return once each of these processes serves; TimeoutError if that takes longer than `within_s`."""
    until = time.monotonic() + within_s
    missing = set(pids)
    while missing:
        ids = [one["id"] for _, one in ask(settings, live)]
        missing = {pid for pid in missing if not any(is_here(one, pid) for one in ids)}
        if missing and time.monotonic() > until:
            raise TimeoutError(f"{len(missing)} workers do not serve after {within_s:.0f} s")
        time.sleep(POLL_S)
