"""A head that does not come is not waited for."""

import asyncio
import re
import socket
from contextlib import asynccontextmanager

from gateway import protocol
from gateway.app import create_app
from gateway.server import Server
from shared.settings import Settings, load
from shared.tasks import stop
from tests.support.waiting import wait_until


@asynccontextmanager
async def served(monkeypatch):
    """A connection to a gateway without a broker."""
    settings: Settings = load({"BUSWAY_REDIS__URL": "redis://127.0.0.1:1/0"})
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(create_app(settings), settings.gateway)
    monkeypatch.setattr(server, "capture_signals", _nothing)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await wait_until(lambda: server.started, "the server")
    reader, writer = await asyncio.open_connection(*listener.getsockname())
    yield reader, writer
    writer.close()
    server.should_exit = True
    await wait_until(task.done, "the server to stop")
    await stop([task])


async def test_a_connection_without_a_whole_head_is_closed(monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_S", 0.2)
    async with served(monkeypatch) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nx-slow: ")

        assert await asyncio.wait_for(reader.read(), 10) == b""


async def test_a_large_body_in_pieces_is_no_large_head(monkeypatch):
    """Nor is the head of the next request on the same connection."""
    size = 4 * protocol.MAX_HEAD_BYTES
    async with served(monkeypatch) as (reader, writer):
        for _ in range(2):
            writer.write(b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
            for _ in range(8):
                await writer.drain()
                await asyncio.sleep(0.01)
                writer.write(b"x" * (size // 8))

            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
            assert head.startswith(b"HTTP/1.1 404")
            length = int(re.search(rb"content-length: (\d+)", head)[1])
            await reader.readexactly(length)


class _nothing:  # noqa: N801 - stands in for a context manager that takes over signals
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None
