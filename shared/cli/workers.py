"""`busway workers`: who serves, and sending one of them home."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from shared.cli.ask import DATA, Data, ask_or_exit, fail
from shared.cli.status import live
from shared.cli.words import table

if TYPE_CHECKING:
    from shared.connection import Redis

app = typer.Typer(help="Who serves, and sending one home.", no_args_is_help=True, rich_markup_mode=None)

POLL_S = 0.1


@app.command("list")
def show_all(data: Data = DATA) -> None:
    """List the live workers. Exit status 1 if there is none."""
    workers = ask_or_exit(data, live)
    if not workers:
        fail("no live worker")
    heads = ["worker", "model", "engine", "lanes", "slots", "steps", "version", "state"]
    print("\n".join(table(heads, [_row(model, fields) for model, fields in workers])))


@app.command()
def drain(
    name: Annotated[str, typer.Argument(metavar="ID", help="The worker's id, or a start of it that no other has.")],
    wait_s: Annotated[
        float | None,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, help="Return once it has left, after that time at the latest."
        ),
    ] = None,
    data: Data = DATA,
) -> None:
    """Have a worker take nothing more, finish or hand over what it runs, and exit with status 0.

    Exit status 1 if there is no such worker, if it does not listen, or if it is still there after `--wait`.
    """

    async def work(redis: "Redis") -> str:
        ids = sorted({fields["id"] for _, fields in await live(redis)})
        matching = [name] if name in ids else [one for one in ids if one.startswith(name)]
        if len(matching) != 1:
            return f"{len(matching) or 'no'} live workers have an id that starts with {name!r}"
        return await _send_home(redis, matching[0], wait_s)

    if problem := ask_or_exit(data, work):
        fail(problem)


async def _send_home(redis: "Redis", worker_id: str, wait_s: float | None) -> str:
    """What went wrong; empty if nothing did. Waiting, it asks again until the worker says that it drains."""
    import asyncio

    until = time.monotonic() + (wait_s or 0)
    if not await _ask_to_drain(redis, worker_id) and wait_s is None:
        return f"{worker_id} does not listen: it has just died, or lost its connection"
    if wait_s is None:
        print(f"{worker_id} drains")
        return ""
    while True:
        fields = next((one for _, one in await live(redis) if one["id"] == worker_id), None)
        if fields is None:
            print(f"{worker_id} has left")
            return ""
        if time.monotonic() >= until:
            return f"{worker_id} is still there after {wait_s:g} s"
        if not _is_draining(fields):
            await _ask_to_drain(redis, worker_id)
        await asyncio.sleep(POLL_S)


async def _ask_to_drain(redis: "Redis", worker_id: str) -> bool:
    """Whether anybody heard it."""
    from shared import wire
    from shared.connection import reachable
    from shared.keys import control_channel

    async with reachable():
        return bool(await redis.publish(control_channel(worker_id), wire.encode(wire.Control(kind="drain"))))


def _is_draining(fields: dict[str, str]) -> bool:
    return fields.get("draining", "0") == "1"


def _row(model: str, fields: dict[str, str]) -> list[str]:
    """Slots are told as used/all. A worker of another release may leave some of it unsaid."""
    slots, free = fields.get("slots", "0"), fields.get("free_slots", "0")
    told = [fields.get(name) or "-" for name in ("engine", "lanes", "steps", "version")]
    state = "draining" if _is_draining(fields) else "serving"
    return [fields["id"], model, *told[:2], f"{int(slots) - int(free)}/{slots}", *told[2:], state]
