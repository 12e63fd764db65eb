"""`busway dlq`: the dead letters, requests that took too many workers down and were given up."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from shared.cli.ask import DATA, Data, ask_or_exit, fail
from shared.cli.words import duration, table

if TYPE_CHECKING:
    from shared.connection import Redis
    from shared.dead_letters import DeadLetters, Letter, Retried

T = TypeVar("T")

app = typer.Typer(
    help="Dead letters: requests that took too many workers down.", no_args_is_help=True, rich_markup_mode=None
)

Id = Annotated[str, typer.Argument(metavar="ID", help="Of the request, or of the letter's entry.")]
OptionalId = Annotated[str | None, typer.Argument(metavar="ID", help="Of the request, or of the letter's entry.")]
All = Annotated[bool, typer.Option("--all", help="Every letter there is.")]
Model = Annotated[str | None, typer.Option(help="Only letters of this model, even one that is served no more.")]


@app.command("list")
def show_all(model: Model = None, data: Data = DATA) -> None:
    """List the letters, the oldest of each model first. What clients wrote is not shown."""

    async def work(letters: "DeadLetters", models: list[str]) -> "list[Letter]":
        return [letter async for letter in letters.read(models)]

    found = _ask(data, model, work)
    heads = ["entry", "model", "request", "lane", "cause", "deaths", "age"]
    rows = [(i.entry, i.model, i.request_id, i.lane, i.cause, i.deaths, duration(i.age_ms)) for i in found]
    print("\n".join(table(heads, rows)))


@app.command()
def show(
    name: Id,
    payload: Annotated[bool, typer.Option("--payload", help="Also what the client asked for, as JSON.")] = False,
    model: Model = None,
    data: Data = DATA,
) -> None:
    """Print the fields of a letter."""

    async def work(letters: "DeadLetters", models: list[str]) -> "list[tuple[Letter, bytes]]":
        found = await letters.find(name, models)
        return [(letter, await letters.payload(letter) if payload else b"") for letter in found]

    found = _ask(data, model, work)
    if not found:
        fail(f"no dead letter {name!r}")
    for letter, asked in found:
        told = asked.decode() if payload else f"{letter.payload_bytes} bytes (--payload prints them)"
        rows = [("entry", letter.entry), ("model", letter.model), ("request", letter.request_id)]
        rows += [("lane", letter.lane), ("cause", letter.cause), ("deaths", str(letter.deaths))]
        rows += [("owner", letter.owner), ("age", duration(letter.age_ms)), ("payload", told)]
        print("\n".join(f"{title:<9}{value}" for title, value in rows))


@app.command()
def retry(name: OptionalId = None, every: All = False, model: Model = None, data: Data = DATA) -> None:
    """Put a letter's request back into its lane.

    It goes on from its last token under its old id, with nobody waiting for it: `busway why ID` says how it fares.
    Exit status 1 if there is no such letter, or one could not be retried.
    """
    _refuse_unclear(name, every=every)
    from shared.settings import load

    lanes = load().lanes

    async def work(letters: "DeadLetters", models: list[str]) -> "dict[str, Retried | None]":
        told: dict[str, Retried | None] = {}
        for letter in reversed(await _matching(letters, name, models)):  # the latest of a request decides
            lane = lanes.get(letter.lane)
            retried = await letters.retry(letter, lane) if lane is not None else None
            told.setdefault(letter.request_id, retried)
        return told

    done = _ask(data, model, work)
    if not done and name is not None:
        fail(f"no dead letter {name!r}")
    for request_id, retried in done.items():
        print(f"{request_id}: {_outcome(retried)}")
    if any(retried is None or retried.verdict == "empty" for retried in done.values()):
        raise typer.Exit(1)


@app.command()
def drop(name: OptionalId = None, every: All = False, model: Model = None, data: Data = DATA) -> None:
    """Take a letter away for good. Its request stays ended."""
    _refuse_unclear(name, every=every)

    async def work(letters: "DeadLetters", models: list[str]) -> int:
        return await letters.drop(await _matching(letters, name, models))

    count = _ask(data, model, work)
    if not count and name is not None:
        fail(f"no dead letter {name!r}")
    print(f"dropped: {count}")


def _ask(data: Path, model: str | None, work: "Callable[[DeadLetters, list[str]], Awaitable[T]]") -> T:
    """What `work` makes of the letters of that model, or of all that were served within a day."""
    from shared.broker import Broker
    from shared.dead_letters import DeadLetters

    async def over(redis: "Redis") -> T:
        models = [model] if model else [one.name for one in await Broker(redis, keep_ms=0).models()]
        return await work(DeadLetters(redis), models)

    return ask_or_exit(data, over)


def _refuse_unclear(name: str | None, *, every: bool) -> None:
    if (name is None) != every:
        raise typer.BadParameter("either an ID or --all", param_hint="ID")


async def _matching(letters: "DeadLetters", name: str | None, models: list[str]) -> "list[Letter]":
    """Those of this name; without one, all."""
    if name is not None:
        return await letters.find(name, models)
    return [letter async for letter in letters.read(models)]


def _outcome(retried: "Retried | None") -> str:
    if retried is None:
        return "not retried: its lane is not one of this environment (BUSWAY_EXTRA_LANES)"
    if retried.verdict == "queued":
        return "queued again"
    if retried.verdict == "empty":
        return "not retried: its letter has no payload"
    return f"not retried: it is {retried.state or 'gone'} already"
