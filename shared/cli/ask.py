"""Questions to the broker from the command line: which one, and what is said if it does not answer."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

if TYPE_CHECKING:
    from shared.connection import Redis
    from shared.sections import RedisSettings

T = TypeVar("T")

Data = Annotated[Path, typer.Option(help="Folder of a `busway up`, asked where no broker is set.")]
DATA = Path(".busway")


def broker_settings(data: Path) -> "RedisSettings":
    """The broker that the settings name; without one, that of the `busway up` whose data lies there."""
    from shared.settings import URL, load, rows

    settings = load()
    socket_file = data / "valkey" / "valkey.sock"
    if socket_file.exists() and (URL, "default") in [(name, source) for name, _, source in rows(settings)]:
        return settings.redis.model_copy(update={"url": f"unix://{socket_file.resolve()}?db=0"})
    return settings.redis


def ask(redis: "RedisSettings", work: "Callable[[Redis], Awaitable[T]]") -> T:
    """What `work` finds out over one connection. BrokerUnavailable if the broker does not answer."""
    import asyncio

    from shared.connection import connect

    async def over_one_connection() -> T:
        client = connect(redis)
        try:
            return await work(client)
        finally:
            await client.aclose()

    return asyncio.run(over_one_connection())


def ask_or_exit(data: Path, work: "Callable[[Redis], Awaitable[T]]") -> T:
    """The same of the broker in force, for a command: without an answer it says so and ends with exit status 1."""
    from shared.errors import BrokerUnavailable

    try:
        return ask(broker_settings(data), work)
    except BrokerUnavailable as error:
        hint = (
            ""
            if (data / "valkey").exists()
            else f"; {data} holds no `busway up`: run this where it was started, or --data"
        )
        fail(error.message + hint)


def fail(message: str) -> NoReturn:
    """Say what is wrong and end with exit status 1."""
    typer.echo(f"busway: {message}", err=True)
    raise typer.Exit(1)
