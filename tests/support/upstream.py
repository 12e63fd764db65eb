"""An OpenAI server of a few lines, without a network."""

import asyncio
import json
import time

import httpx


def event(text=None, logprobs=None, *, reason=None, usage=None, kind="delta"):
    """The data of one event of a stream."""
    if usage is not None:
        return json.dumps({"choices": [], "usage": usage})
    said = {"delta": {} if text is None else {"content": text}} if kind == "delta" else {"text": text or ""}
    told = None if logprobs is None else {"content": logprobs}
    return json.dumps({"choices": [{**said, "finish_reason": reason, "logprobs": told}]})


def waited(fact):
    """Waits for the fact, from a thread that runs no loop."""
    until = time.monotonic() + 10
    while not fact():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.005)


class Stub:
    """Answers every question with the same events; an asyncio.Event among them is waited for."""

    def __init__(self, stream=(), *, status=200, headers=None, raw=b"", models=200, refuses=False):
        self._stream, self._status, self._headers, self._raw = stream, status, headers, raw
        self._refuses = refuses
        self.models = models
        self.asked, self.probes, self.closed = [], 0, 0

    async def __call__(self, request):
        if self._refuses:
            raise httpx.ConnectError("nobody there")
        if request.url.path.endswith("/models"):
            self.probes += 1
            return httpx.Response(self.models, json={"data": []})
        self.asked.append(request)
        if self._status != 200:
            return httpx.Response(self._status, headers=self._headers, content=self._raw)
        return httpx.Response(200, stream=_Events(self))


class _Events(httpx.AsyncByteStream):
    def __init__(self, stub):
        self._stub = stub

    async def __aiter__(self):
        for one in self._stub._stream:
            if isinstance(one, asyncio.Event):
                await one.wait()
            else:
                yield f"data: {one}\n\n".encode()

    async def aclose(self):
        self._stub.closed += 1
