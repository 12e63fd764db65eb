"""Logs of child processes: one file a run of `busway up`, the file of the run before kept beside it."""

from pathlib import Path

TAIL_LINES = 15


def put_aside(log: Path) -> None:
    """Make room for a new log; the old one is kept, the one before that is not."""
    if log.exists():
        log.replace(log.with_suffix(".log.1"))


def tail(log: Path) -> str:
    """The end of a log, introduced."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    if not lines:
        return f"Its log {log} is empty."
    return "\n".join([f"The end of {log}:", *(f"    {line}" for line in lines[-TAIL_LINES:])])
