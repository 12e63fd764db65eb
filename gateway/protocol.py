"""HTTP/1.1 on one connection: uvicorn's protocol, with bounds on what comes before a request's body."""

import asyncio
import re
from http import HTTPStatus

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 * 1024
HEAD_S = 30.0
"""A head must be there within this time; no key has been asked for yet, so nothing else bounds it."""

_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)
_END_OF_HEAD = b"\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """Refuses heads that are too long or too slow, in OpenAI's words, and ignores offers to speak another protocol."""

    _in_head = True
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_over()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            # httptools leaves the body of a request that offers an upgrade to whoever takes the offer. Nobody does.
            head, end, rest = data.partition(_END_OF_HEAD)
            data = _UPGRADE.sub(b"\r\nx-offered-upgrade:", head) + end + rest
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"The headers exceed {MAX_HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_is_over()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head_bytes = 0
        self._in_head = True  # of the next request, if one comes; until its first byte, keep-alive bounds the wait

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _await_head(self) -> None:
        self._head_is_over()
        self._in_head = True
        self._head_timer = self.loop.call_later(HEAD_S, self.transport.close)

    def _head_is_over(self) -> None:
        self._in_head = False
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": "invalid_http"}
        body = msgspec.json.encode({"error": error})
        head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\nconnection: close\r\n"
        self.transport.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        self.transport.close()
