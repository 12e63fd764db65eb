"""The cheapest streaming client there is, so that the server is what is measured: raw sockets, events counted."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class Streamed:
    """One answer: when it began to come, when each event came, and how many tokens it had."""

    asked: float
    events: list[float] = field(default_factory=list)
    tokens: int = 0
    is_whole: bool = False

    @property
    def ttft_ms(self) -> float:
        """Until the first event with text (the first event only names the role)."""
        return (self.events[1] - self.asked) * 1000


def request_bytes(body: dict, path: str = "/v1/chat/completions") -> bytes:
    raw = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    return head.encode() + raw


async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> Streamed:
    """Send one request on an open connection and read its answer to the end."""
    result = Streamed(asked=time.perf_counter())
    writer.write(request)
    status = await reader.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"{status!r} {await reader.read(2000)!r}")
    while (await reader.readline()) != b"\r\n":
        pass
    while size := int(await reader.readline(), 16):
        chunk = await reader.readexactly(size + 2)
        now = time.perf_counter()
        count = chunk.count(b"data: {")
        result.events += [now] * count
        result.tokens += chunk.count(b'"content":"') - chunk.count(b'"content":""')
        result.is_whole = result.is_whole or b"data: [DONE]" in chunk
    await reader.readline()
    return result


def percentile(values: list[float], share: float) -> float:
    """The value below which this share of them lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(share * (len(ordered) - 1)))]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100
