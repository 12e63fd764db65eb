"""A storm: real clients on a real fleet, of which everything is killed, stopped, cut and started again.

The seed decides what is asked and what is broken, in which order and when; what the processes make of it is theirs.
Exit status 1 if a request was lost, told twice or wrongly, or anything was left behind; 0 if not.
"""

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.fault.storm.weather import Storm, is_bad


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def blow(options: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Ctrl-C, SIGTERM and SIGHUP end it in order: no process outlives it."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await Storm(options.seed, options.seconds, folder, say).run()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60, help="how long things are asked and broken")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep data and logs there; else only after a failure")
    options = parser.parse_args()
    folder = options.data or Path(tempfile.mkdtemp(prefix="busway-storm-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        figures = asyncio.run(blow(options, folder))
    except asyncio.CancelledError:
        say(f"ended before its time; what there is of logs is in {folder}")
        return 130
    text = json.dumps(figures, indent=2)
    say(text)
    if options.json:
        options.json.write_text(text)
    if is_bad(figures):
        say(f"the logs are in {folder}")
        return 1
    if not options.data:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
