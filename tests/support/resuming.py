"""Clients that count what they read, and a worker that counts for them: for answers that are cut and gone on with."""

import asyncio
import hashlib
import json
from dataclasses import dataclass, field

import httpx

from tests.support.waiting import wait_until
from tests.unit.gateway.scripted import Stage, done

WORDS = [f"{number} " for number in range(12)]
TEXT = "".join(WORDS)
ASK = {"model": "m", "messages": [{"role": "user", "content": "count"}]}
EVENTS = {"accept": "text/event-stream"}


async def is_ready(gateway) -> bool:
    async with httpx.AsyncClient(base_url=gateway.url, headers={"authorization": "Bearer ours"}) as http:
        try:
            listed = (await http.get("/v1/models")).json().get("data", [])
            return bool(listed) and (await http.get("/ready")).status_code == 200
        except httpx.TransportError:
            return False


def caller(gateway, key="ours") -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=gateway.url, timeout=30, headers={"authorization": f"Bearer {key}"})


@dataclass
class Read:
    """What was read of a stream."""

    request_id: str = ""
    ids: list[str] = field(default_factory=list)
    chunks: list[dict] = field(default_factory=list)
    is_done: bool = False

    @property
    def text(self) -> str:
        deltas = [choice["delta"] for chunk in self.chunks for choice in chunk.get("choices", [])]
        return "".join(delta.get("content") or "" for delta in deltas)

    @property
    def finishes(self) -> list[str]:
        reasons = [choice["finish_reason"] for chunk in self.chunks for choice in chunk.get("choices", [])]
        return [reason for reason in reasons if reason]


async def read(response: httpx.Response, pieces: int | None = None) -> Read:
    """To the end of the stream, or until so many pieces of text have come."""
    assert response.status_code == 200, await response.aread()
    found = Read(response.headers["x-request-id"])
    if pieces == 0:
        return found
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            found.ids.append(line[4:])
        if line == "data: [DONE]":
            found.is_done = True
        elif line.startswith("data: "):
            found.chunks.append(json.loads(line[6:]))
            if pieces is not None and sum(bool(one) for one in texts(found)) == pieces:
                return found
    return found


def texts(found: Read) -> list[str]:
    return [choice["delta"].get("content") for chunk in found.chunks for choice in chunk.get("choices", [])]


class Counting:
    """Says the words, but stops before the one at `hold` until it may go on."""

    def __init__(self, hold: int | None = None) -> None:
        self.hold = hold
        self.may_go_on = asyncio.Event()

    async def __call__(self, stage: Stage) -> None:
        for number, word in enumerate(WORDS[stage.at :], stage.at):
            if number == self.hold:
                await self.may_go_on.wait()
            await stage.say(word)
        await stage.end(done(len(WORDS)))


async def in_flight(http: httpx.AsyncClient, count: int) -> bool:
    lines = (await http.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("busway_requests_in_flight{")) == count


async def named(http: httpx.AsyncClient, key: str) -> str:
    """The id of the request with this key, once it is there."""
    tenant = hashlib.sha256(b"ours").hexdigest()[:16]
    request_id = hashlib.sha256(f"{tenant}\n{key}".encode()).hexdigest()[:32]
    await wait_until(lambda: is_known(http, request_id), "the request to be known")
    return request_id


async def is_known(http: httpx.AsyncClient, request_id: str) -> bool:
    return (await http.get(f"/v1/requests/{request_id}")).status_code == 200
