"""Server-sent events, read: the data of each event, in order."""

from collections.abc import Iterable, Iterator


class Events:
    """A stream of events, fed as it comes.

    Lines end at LF (or CR LF) alone: other line breaks of Unicode are part of an answer's text. Comments and other
    fields are passed over, and so is an event that was cut.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of each event that this chunk completes."""
        complete: list[bytes] = []
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        for one in whole:
            line = one.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._parts.append(line.removeprefix(b"data:").removeprefix(b" "))
            elif not line and self._parts:
                complete.append(b"\n".join(self._parts))
                self._parts = []
        return complete

    @property
    def held(self) -> int:
        """Bytes of the event that is not complete yet."""
        return len(self._rest) + sum(map(len, self._parts))


def data(chunks: Iterable[bytes]) -> Iterator[str]:
    """The data of each complete event of an answer that is pulled."""
    events = Events()
    for chunk in chunks:
        for one in events.feed(chunk):
            yield one.decode()
