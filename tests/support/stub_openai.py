"""A server whose answers a test writes byte for byte, in the test's own loop."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def event(fields: dict) -> bytes:
    """One event, as one HTTP chunk."""
    text = b"data: " + json.dumps(fields).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(text), text)


def token(text: str = "word") -> bytes:
    """An event with text."""
    return event({"choices": [{"index": 0, "delta": {"content": text}}]})


def refusal(status: bytes, message: str) -> bytes:
    """A whole response that is an error."""
    body = json.dumps({"error": {"message": message}}).encode()
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


WHOLE = HEAD + token() + token() + END


class Stub:
    """`reply(number)` yields what request `number` (0, 1, ...) gets; b"" closes the connection."""

    def __init__(self, reply: Callable[[int], AsyncIterator[bytes]]) -> None:
        self._reply = reply
        self.bodies: list[dict] = []
        self.connections = 0
        self.open = 0
        self.most_open = 0
        self._serving: set[asyncio.Task] = set()

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_) -> None:
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._serving.add(asyncio.current_task())
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.bodies.append(json.loads(await reader.readexactly(length)))
                self.open += 1
                self.most_open = max(self.most_open, self.open)
                try:
                    async for part in self._reply(len(self.bodies) - 1):
                        if not part:
                            return
                        writer.write(part)
                        await writer.drain()
                finally:
                    self.open -= 1
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            return  # the client has left, or the test
        finally:
            writer.close()
