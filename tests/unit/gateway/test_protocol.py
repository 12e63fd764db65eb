"""A head that does not come is not waited for."""

import asyncio
import socket

from gateway import protocol
from gateway.app import create_app
from gateway.server import Server
from shared.settings import Settings, load
from shared.tasks import stop
from tests.support.waiting import wait_until


async def test_a_connection_without_a_whole_head_is_closed(monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_S", 0.2)
    settings: Settings = load({"BUSWAY_REDIS__URL": "redis://127.0.0.1:1/0"})
    listener = socket.create_server(("127.0.0.1", 0))
    server = Server(create_app(settings), settings.gateway)
    monkeypatch.setattr(server, "capture_signals", _nothing)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await wait_until(lambda: server.started, "the server")

    reader, writer = await asyncio.open_connection(*listener.getsockname())
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nx-slow: ")

    assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()
    server.should_exit = True
    await wait_until(task.done, "the server to stop")
    await stop([task])


class _nothing:  # noqa: N801 - stands in for a context manager that takes over signals
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None
