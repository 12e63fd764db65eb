"""`busway up`: the whole fleet on one machine, under supervision."""

from pathlib import Path
from typing import Annotated

import typer


def up(  # noqa: PLR0917 - typer passes them by name
    engine: Annotated[str | None, typer.Option(help="continuous, echo, embedding, upstream or vllm.")] = None,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Worker processes.")] = 1,
    gateways: Annotated[int, typer.Option(min=1, max=64, help="Gateway processes, on one port.")] = 1,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    data: Annotated[Path, typer.Option(help="Folder of the broker's data and of the logs.")] = Path(".busway"),
    model: Annotated[str | None, typer.Option(help="Built-in name, local folder, or Hugging Face id.")] = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Ask one question before saying ready.")] = True,
) -> None:
    """Start broker, gateways and workers here, and keep them running until Ctrl-C.

    The broker is an embedded Valkey, unless BUSWAY_REDIS__URL or REDIS_URL names another.
    The last line of the start is `ready URL`.
    """
    from shared.cli import fleet
    from shared.cli.run import settings_of

    overrides = settings_of(worker__engine=engine, worker__model=model, gateway__host=host, gateway__port=port)
    plan = fleet.plan(overrides, workers=workers, gateways=gateways, data=data, check=check)
    raise typer.Exit(fleet.run(plan))
