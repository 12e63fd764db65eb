"""HTTP/1.1 responses, read as they come: as much of it as a stream of events needs, for little CPU time."""

from enum import Enum, auto

MAX_HEAD = 65_536
MAX_LINE = 4_096
HEX = b"0123456789abcdefABCDEF"


class ProtocolError(Exception):
    """What the server sends is not HTTP/1.1, or an answer broke off."""


class _State(Enum):
    HEAD = auto()
    SIZED = auto()
    """A body of known length: the response's, or one chunk's."""
    CHUNK_SIZE = auto()
    CHUNK_END = auto()
    TRAILER = auto()
    UNTIL_CLOSE = auto()
    DONE = auto()


class Response:
    """One response. `feed` it what the connection brings, and tell it of the connection's end."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._state = _State.HEAD
        self._held = b""
        self._left = 0
        self._is_chunked = False

    @property
    def is_done(self) -> bool:
        return self._state is _State.DONE

    @property
    def can_follow(self) -> bool:
        """Whether the connection can carry another request after this one."""
        return self.is_done and b"close" not in self.headers.get(b"connection", b"").lower()

    def feed(self, data: bytes) -> bytes:
        """What of the body these bytes bring. ProtocolError if they are no HTTP."""
        data, self._held = self._held + data, b""
        parts: list[bytes] = []
        at = 0
        while at < len(data):
            if self._state is _State.HEAD:
                at = self._head(data, at)
            elif self._state is _State.SIZED:
                part = data[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                if self._left == 0:
                    self._state = _State.CHUNK_END if self._is_chunked else _State.DONE
            elif self._state is _State.UNTIL_CLOSE:
                parts.append(data[at:])
                at = len(data)
            elif self._state is _State.DONE:
                raise ProtocolError("bytes after the end of the response")
            else:
                at = self._line(data, at)
        return b"".join(parts)

    def close(self) -> None:
        """The connection has ended. ProtocolError unless that is the end of the response as well."""
        if self._state is _State.UNTIL_CLOSE:
            self.headers[b"connection"] = b"close"
            self._state = _State.DONE
        elif self._state is not _State.DONE:
            raise ProtocolError("the connection was cut" if self.status else "the connection was closed unanswered")

    def _hold(self, data: bytes, at: int, limit: int) -> int:
        """Keep the rest until more comes."""
        self._held = data[at:]
        if len(self._held) > limit:
            raise ProtocolError("a head or a line without an end")
        return len(data)

    def _head(self, data: bytes, at: int) -> int:
        end = data.find(b"\r\n\r\n", at)
        if end < 0:
            return self._hold(data, at, MAX_HEAD)
        first, *lines = data[at:end].split(b"\r\n")
        version, _, rest = first.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise ProtocolError(f"no HTTP/1.1: {first[:40]!r}")
        self.status = int(rest[:3])
        pairs = (line.partition(b":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        if self.status >= 200:  # those below announce another
            self._state = self._body()
        return end + 4

    def _body(self) -> _State:
        """How the body is delimited (RFC 9112, 6.3)."""
        if b"chunked" in self.headers.get(b"transfer-encoding", b"").lower():
            self._is_chunked = True
            return _State.CHUNK_SIZE
        length = self.headers.get(b"content-length")
        if length is None:
            return _State.UNTIL_CLOSE
        if not length.isdigit():
            raise ProtocolError(f"a length of {length[:40]!r}")
        self._left = int(length)
        return _State.SIZED if self._left else _State.DONE

    def _line(self, data: bytes, at: int) -> int:
        """One of the lines around chunks."""
        end = data.find(b"\n", at)
        if end < 0:
            return self._hold(data, at, MAX_LINE)
        line = data[at:end].rstrip(b"\r")
        if self._state is _State.CHUNK_SIZE:
            size = line.partition(b";")[0].strip()
            if not size or size.strip(HEX):
                raise ProtocolError(f"a chunk of size {line[:40]!r}")
            self._left = int(size, 16)
            self._state = _State.SIZED if self._left else _State.TRAILER
        elif self._state is _State.CHUNK_END:
            self._state = _State.CHUNK_SIZE
        elif not line:
            self._state = _State.DONE
        return end + 1
