"""A proxy before a server's socket. Its connections can be slow, break, lose replies, or fall silent but stay open."""

import asyncio
from contextlib import asynccontextmanager, suppress
from pathlib import Path


class Line:
    """One connection through the proxy."""

    def __init__(self, *writers: asyncio.StreamWriter):
        self._writers = writers
        self.is_deaf = False
        """It stays open and carries nothing."""
        self.loses_reply = False
        """It breaks instead of carrying the next reply: what was asked is done, and nobody is told."""

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


class Proxy:
    """Passes bytes both ways, as long as nothing else is asked for."""

    def __init__(self, target: Path):
        self._target = target
        self._lines: set[Line] = set()
        self._pipes: set[asyncio.Task] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self.delay_s = 0.0
        """What comes from the server is held up for so long."""
        self.url = ""

    def deafen(self) -> None:
        """All connections of now; later ones work."""
        for line in self._lines:
            line.is_deaf = True

    def cut(self) -> None:
        """All connections of now, at once."""
        for line in list(self._lines):
            line.cut()

    def lose_replies(self) -> None:
        """All connections of now break instead of carrying their next reply."""
        for line in self._lines:
            line.loses_reply = True

    async def serve(self, reader, writer):
        try:
            there, back = await asyncio.open_unix_connection(str(self._target))
        except OSError:  # the server is away, which is what its client shall find
            writer.transport.abort()
            return
        line = Line(writer, back)
        self._lines.add(line)
        self._writers += [writer, back]
        pipes = [
            asyncio.create_task(self._ask(line, reader, back)),
            asyncio.create_task(self._tell(line, there, writer)),
        ]
        self._pipes.update(pipes)
        await asyncio.wait(pipes)
        self._lines.discard(line)
        self._pipes.difference_update(pipes)
        for one in (writer, back):
            self._writers.remove(one)

    async def _ask(self, line, reader, back):
        with suppress(OSError):
            while block := await reader.read(65536):
                if not line.is_deaf:
                    back.write(block)
                    await back.drain()
        back.close()

    async def _tell(self, line, there, writer):
        with suppress(OSError):
            while block := await there.read(65536):
                if line.loses_reply:
                    line.cut()
                    break
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if not line.is_deaf:
                    writer.write(block)
                    await writer.drain()
        writer.close()

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
