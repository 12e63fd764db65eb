"""Connections to one server: each request is written on an idle one, its answer handed on as it comes."""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from shared.cli.bench.response import ProtocolError, Response
from shared.errors import ConfigError

IDLE_S = 2.0
"""Servers close idle connections, uvicorn after 5 s; one that is about to be closed is not used again."""

Taker = Callable[[Response, bytes, float], None]
"""Gets the response so far, new bytes of its body, and when they came (on the loop's clock)."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go."""

    host: str
    port: int
    tls: ssl.SSLContext | None
    head: bytes
    """Request line and headers, all but the length."""

    @classmethod
    def of(cls, url: str, path: str, api_key: str) -> Self:
        """ConfigError if there can be no such server, or no such key."""
        base = url.rstrip("/").removesuffix("/v1")
        try:
            parts = urlsplit(base)
            host, port = parts.hostname, parts.port
            (host or "").encode("idna")
        except ValueError as error:
            raise ConfigError(f"{url}: {error}") from error
        if parts.scheme not in ("http", "https") or not host or not (base.isascii() and base.isprintable()):
            raise ConfigError(f"{url} is no http:// or https:// URL")
        if "@" in parts.netloc:  # it would stand in reports and pictures, and is not used
            raise ConfigError("the URL names a user; a key goes into --api-key")
        if not (api_key.isascii() and api_key.isprintable()):
            raise ConfigError("an API key is printable ASCII")
        headers = [
            f"POST {parts.path}{path} HTTP/1.1",
            f"Host: {parts.netloc.rpartition('@')[2]}",
            "Content-Type: application/json",
            "Accept: application/json",
            "User-Agent: busway-bench",
            *([f"Authorization: Bearer {api_key}"] if api_key else []),
        ]
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        return cls(host, port or (443 if tls else 80), tls, "\r\n".join(headers).encode())

    def request(self, body: bytes) -> bytes:
        return b"%b\r\nContent-Length: %d\r\n\r\n%b" % (self.head, len(body), body)


class Connection(asyncio.Protocol):
    """One connection: a request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._response = Response()
        self._take: Taker | None = None
        self._ended: asyncio.Future[None] | None = None
        self._idle_since = 0.0

    async def ask(self, request: bytes, take: Taker) -> int:
        """Send it; its status, when its answer has ended. ProtocolError or OSError if it breaks off.

        What `take` raises ends it too. A connection whose request was cancelled is closed.
        """
        assert self._transport is not None, "asked before it was made"
        if self._transport.is_closing():
            raise ProtocolError("the connection was closed unanswered")
        self._response, self._take, self._ended = Response(), take, self._loop.create_future()
        self._transport.write(request)
        try:
            await self._ended
        finally:
            self._take = None
            self._idle_since = self._loop.time()
        return self._response.status

    @property
    def is_idle(self) -> bool:
        """Whether it can carry another request."""
        return (
            self._transport is not None
            and not self._transport.is_closing()
            and self._response.can_follow
            and self._loop.time() - self._idle_since < IDLE_S
        )

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "TCP or TLS"
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._take is None or self._response.is_done:
            self.close()  # nobody asked
            return
        now = self._loop.time()
        try:
            if body := self._response.feed(data):
                self._take(self._response, body, now)
        except Exception as error:  # noqa: BLE001 - raised in `ask`
            self._end(error)
            return
        if self._response.is_done:
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        try:
            self._response.close()
        except ProtocolError as error:
            self._end(exc or error)
        else:
            self._end(exc)

    def _end(self, error: Exception | None) -> None:
        if self._ended is None or self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)


class Pool:
    """Connections to a target, used again; the last one first, so that few are kept warm."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._idle: list[Connection] = []
        self._addresses: list[str] = []

    async def ask(self, body: bytes, take: Taker, on_sent: Callable[[], None]) -> int:
        """The answer's status, when it has ended.

        `on_sent` is called once there is a connection, just before the request goes out.
        """
        connection = await self._connection()
        on_sent()
        try:
            return await connection.ask(self._target.request(body), take)
        finally:
            if connection.is_idle:
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        for one in self._idle:
            one.close()
        self._idle.clear()

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_idle:
                return connection
            connection.close()
        return await self._open()

    async def _open(self) -> Connection:
        """The name is looked up once, and the address that answered last is tried first."""
        loop, target = asyncio.get_running_loop(), self._target
        if not self._addresses:
            found = await loop.getaddrinfo(target.host, target.port, type=1)
            self._addresses = [*dict.fromkeys(str(one[4][0]) for one in found)]
        failed: list[OSError] = []
        for address in [*self._addresses]:
            try:
                _, connection = await loop.create_connection(
                    Connection,
                    address,
                    target.port,
                    ssl=target.tls,
                    server_hostname=target.host if target.tls else None,
                )
            except OSError as error:
                failed.append(error)
            else:
                self._addresses.remove(address)
                self._addresses.insert(0, address)
                return connection
        raise failed[0]
