"""`busway gateway` and `busway worker`: one process, in the foreground, with options as settings."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

# Our packages' common parent: the checkout, or the environment's site-packages.
ROOT = Path(__file__).resolve().parents[2]


def module(name: str, *arguments: str) -> list[str]:
    """The command that runs one of our modules in this Python.

    -P keeps the current folder off its path: a folder called `worker` there must not be taken for ours.
    """
    return [sys.executable, "-P", "-m", name, *arguments]


def environment(overrides: dict[str, str]) -> dict[str, str]:
    """This process's environment with `overrides`. A child finds our packages in it even if they are not installed."""
    environ = {**os.environ, **overrides}
    if ROOT.name not in ("site-packages", "dist-packages"):
        environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return environ


def settings_of(**options: object) -> dict[str, str]:
    """Options as variables: `worker__slots=4` is BUSWAY_WORKER__SLOTS=4; None is left out."""
    return {f"BUSWAY_{name.upper()}": str(value) for name, value in options.items() if value is not None}


def _become(name: str, overrides: dict[str, str]) -> None:
    command = module(name)
    sys.stdout.flush()
    os.execve(command[0], command, environment(overrides))  # noqa: S606 - no shell, by design


def gateway(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
) -> None:
    """Run one gateway: HTTP in, queue out."""
    _become("gateway", settings_of(gateway__host=host, gateway__port=port))


def worker(
    engine: Annotated[
        str | None, typer.Option(help="What runs the model: continuous, embedding, vllm, upstream or echo.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Built-in name, local folder, or Hugging Face id.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...; auto takes a GPU if there is one.")] = None,
    slots: Annotated[int | None, typer.Option(help="Requests that run at once.")] = None,
) -> None:
    """Run one worker: one model on one device."""
    _become(
        "worker", settings_of(worker__engine=engine, worker__model=model, worker__device=device, worker__slots=slots)
    )
