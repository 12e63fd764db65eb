"""The `busway` command: what it can do, and how its errors look. Every command stands in a file of its own."""

import sys
from typing import Annotated

import typer

from shared.cli import chat, config, dlq, run, status, up, why, workers
from shared.cli.bench import command as bench
from shared.errors import ConfigError

app = typer.Typer(
    name="busway",
    help="A queue-based LLM inference fleet. Settings: `busway config show`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help, in half the time
)
app.command("up")(up.up)
app.command("gateway")(run.gateway)
app.command("worker")(run.worker)
app.command("chat")(chat.chat)
app.command("bench")(bench.bench)
app.command("status")(status.status)
app.command("why")(why.why)
app.add_typer(workers.app, name="workers")
app.add_typer(dlq.app, name="dlq")
app.add_typer(config.app, name="config")


def _print_version(asked: bool) -> None:
    if asked:
        from shared.version import VERSION

        typer.echo(f"busway {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command."""


def main() -> None:
    """Run the command. Exit status: 0 done, 1 it failed, 2 wrong use or wrong settings."""
    try:
        app()
    except ConfigError as error:
        sys.stderr.write(f"busway: {error.message}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
