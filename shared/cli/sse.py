"""Server-sent events, read: the data of each event, in order."""

from collections.abc import Iterable, Iterator


def lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Whole lines, split at LF alone: other line breaks of Unicode are part of an answer's text."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode()


def data(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of each complete event. Comments and other fields are passed over, and so is an event that was cut."""
    parts: list[str] = []
    for line in lines(chunks):
        if line.startswith("data:"):
            parts.append(line.removeprefix("data:").removeprefix(" "))
        elif not line and parts:
            yield "\n".join(parts)
            parts = []
