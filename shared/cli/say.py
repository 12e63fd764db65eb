"""What the command says. A reader who has gone (`| head`, a closed terminal) is no reason to stop a fleet."""

import contextlib
import sys


def say(text: str, end: str = "\n") -> None:
    """To standard output, at once."""
    with contextlib.suppress(OSError):
        sys.stdout.write(text + end)
        sys.stdout.flush()


def warn(text: str) -> None:
    """To standard error, at once."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"busway: {text}\n")
        sys.stderr.flush()
