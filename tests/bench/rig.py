"""What benchmarks share: a fleet of real processes, and figures with their spread."""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shared.cli.valkey import Valkey
from tests.support.fleet import Fleet


@contextmanager
def fleet(env: dict[str, str], *, workers: int = 1) -> Iterator[str]:
    """The URL of a fleet with one gateway, its settings without `BUSWAY_`."""
    with tempfile.TemporaryDirectory() as folder:
        valkey = Valkey(Path(folder))
        valkey.start()
        named = {f"BUSWAY_{name}": value for name, value in env.items()}
        made = Fleet(valkey.url, Path(folder), {"BUSWAY_WORKER__LEASE_S": "10", **named})
        try:
            yield asyncio.run(_started(made, workers))
        finally:
            made.stop()
            valkey.stop()


async def _started(made: Fleet, workers: int) -> str:
    for _ in range(workers):
        await made.worker()
    return (await made.gateway()).url


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def said(figure: dict[str, float], digits: int = 1) -> str:
    """A figure with its spread, as text."""
    return f"{figure['median']:.{digits}f} ({figure['min']:.{digits}f} to {figure['max']:.{digits}f})"


def arguments(purpose: str | None) -> argparse.ArgumentParser:
    """The parser of a benchmark, whose module's docstring says what it is for."""
    parser = argparse.ArgumentParser(description=purpose, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser


def report(result: dict[str, Any], file: Path | None) -> None:
    """Write the JSON where it was asked for."""
    if file is not None:
        file.write_text(json.dumps(result, indent=2))


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
