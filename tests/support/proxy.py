"""A proxy before a server's socket, whose connections can fall silent without closing."""

import asyncio
from contextlib import asynccontextmanager, suppress
from pathlib import Path


class Proxy:
    """Passes bytes both ways, until a connection is made deaf: then it stays open and carries nothing."""

    def __init__(self, target: Path):
        self._target = target
        self._deaf: list[asyncio.Event] = []
        self._pipes: set[asyncio.Task] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.url = ""

    def deafen(self) -> None:
        """All connections of now; later ones work."""
        for deaf in self._deaf:
            deaf.set()

    async def serve(self, reader, writer):
        deaf = asyncio.Event()
        self._deaf.append(deaf)
        there, back = await asyncio.open_unix_connection(str(self._target))
        self._writers += [writer, back]
        for source, sink in ((reader, back), (there, writer)):
            self._pipes.add(asyncio.create_task(self._pipe(source, sink, deaf)))

    async def _pipe(self, source, sink, deaf):
        with suppress(OSError):
            while block := await source.read(65536):
                if not deaf.is_set():
                    sink.write(block)
                    await sink.drain()
        sink.close()

    async def close(self) -> None:
        for pipe in self._pipes:
            pipe.cancel()
        for writer in self._writers:
            writer.close()
        waits = [writer.wait_closed() for writer in self._writers]
        await asyncio.gather(*self._pipes, *waits, return_exceptions=True)


@asynccontextmanager
async def proxied(target: Path):
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    yield proxy
    server.close()
    await proxy.close()
