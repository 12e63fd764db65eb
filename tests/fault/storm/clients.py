"""Clients: plain HTTP, and the patience to come back."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import httpx

from tests.fault.storm.ledger import Entry, Ledger
from tests.fault.storm.plan import Ask, ask

MODEL = "echo"
RETRY_S = (0.05, 0.4)
STREAM_READ_S = 10
"""A stream is never silent for so long."""
WHOLE_READ_S = 60
REFUSALS = frozenset(
    {"lane_full", "deadline_unreachable", "no_workers", "redis_unavailable", "draining", "gateway_full"}
)
"""What a client may be told instead of an answer; it then tries again."""


@dataclass
class Scene:
    """Where the clients are."""

    seed: int
    urls: list[str]
    http: httpx.AsyncClient
    ledger: Ledger
    chance: random.Random
    is_open: bool = True
    """New requests may come."""
    asked: int = 0

    @classmethod
    def of(cls, seed: int, urls: list[str], ledger: Ledger) -> "Scene":
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
        timeout = httpx.Timeout(STREAM_READ_S)
        http = httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False)
        return cls(seed, urls, http, ledger, random.Random(seed))

    def url(self) -> str:
        return self.chance.choice(self.urls)

    async def breathe(self) -> None:
        await asyncio.sleep(self.chance.uniform(*RETRY_S))

    async def crowd(self, count: int) -> None:
        """So many clients at once, each asking again and again."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(count):
                tasks.create_task(self._one_after_another())

    async def _one_after_another(self) -> None:
        while self.is_open:
            self.asked += 1
            wanted = ask(self.seed, self.asked)
            await asyncio.sleep(wanted.pause_s)
            asks = [wanted]
            if wanted.has_twin:
                asks.append(replace(wanted, is_stream=not wanted.is_stream, leaves_at=(), is_detached=False))
            await asyncio.gather(*(Client(self, one).run() for one in asks))


@dataclass
class Client:
    """One request from its first call to its end, through whatever happens to its connections."""

    scene: Scene
    ask: Ask
    entry: Entry = field(init=False)

    def __post_init__(self) -> None:
        self.entry = self.scene.ledger.open(self.ask)
        self._leaves = list(self.ask.leaves_at)
        self._left_at: float | None = None
        self._left_on_purpose = False
        self._cancelling: asyncio.Task | None = None

    async def run(self) -> None:
        while not (self.entry.is_over or self.entry.fault):
            try:
                await (self._stream() if self.ask.is_stream else self._whole())
            except httpx.HTTPError:
                self._left(on_purpose=False)
                await self.scene.breathe()
        if self._cancelling is not None:
            await self._cancelling

    # Asking ----------------------------------------------------------------------------------------

    async def _whole(self) -> None:
        timeout = httpx.Timeout(STREAM_READ_S, read=WHOLE_READ_S)
        response = await self.scene.http.post(self._chat, json=self._body(), headers=self._headers(), timeout=timeout)
        if response.status_code != 200:
            await self._refused(response)
            return
        self._arrived(response)
        choice = response.json()["choices"][0]
        self.entry.hear(choice["message"]["content"], None)
        self.entry.reason = choice["finish_reason"]
        self.entry.finish()

    async def _stream(self) -> None:
        async with self._connection() as response:
            if response.status_code != 200:
                await response.aread()
                await self._refused(response)
                return
            self._arrived(response)
            await self._read(response)
        if self._left_at is not None and self._left_on_purpose:
            await asyncio.sleep(self.ask.away_s)

    def _connection(self) -> contextlib.AbstractAsyncContextManager[httpx.Response]:
        """For the rest of the answer; who has a key may as well ask for all of it again."""
        http, entry = self.scene.http, self.entry
        if not entry.id or (self.ask.key and self.scene.chance.random() < 0.3):
            return http.stream("POST", self._chat, json=self._body(), headers=self._headers())
        url = f"{self.scene.url()}/v1/requests/{entry.id}/events"
        if self.scene.chance.random() < 0.5:
            return http.stream("GET", url, params={"starting_after": entry.tokens})
        return http.stream("GET", url, headers={"last-event-id": str(entry.tokens)})

    @property
    def _chat(self) -> str:
        return f"{self.scene.url()}/v1/chat/completions"

    def _body(self) -> dict[str, object]:
        body: dict[str, object] = {"model": MODEL, "messages": [{"role": "user", "content": self.ask.prompt}]}
        if self.ask.is_bulk:
            body["service_tier"] = "flex"
        if self.ask.is_stream:
            body["stream"] = True
            if self.ask.tells_usage:
                body["stream_options"] = {"include_usage": True}
        return body

    def _headers(self) -> dict[str, str]:
        headers = {"accept": "text/event-stream"} if self.ask.is_stream else {}
        if self.ask.key:
            headers["idempotency-key"] = self.ask.key
        if self.ask.is_detached:
            headers["x-busway-detach"] = "true"
        return headers

    # Reading ---------------------------------------------------------------------------------------

    def _returned(self) -> None:
        if self._left_at is not None:
            self.entry.returned(time.monotonic() - self._left_at, on_purpose=self._left_on_purpose)
            self._left_at = None

    def _arrived(self, response: httpx.Response) -> None:
        self._returned()
        if response.request.method == "POST":
            self.entry.accept(response.headers["x-request-id"])
            self.entry.restart()

    async def _refused(self, response: httpx.Response) -> None:
        code = response.json()["error"]["code"]
        if code in REFUSALS:
            self.entry.refusals[code] += 1
            self._left(on_purpose=False)
            await self.scene.breathe()
        else:
            self._returned()
            self.entry.fail(code, self.scene.ledger.deaths)

    async def _read(self, response: httpx.Response) -> None:
        async for position, data in events(response):
            if data == "[DONE]":
                self.entry.finish()
                return
            if not self._take(json.loads(data), position) or self._leaves_now():
                return
        self.entry.blame("differing", f"the stream just ended after {self.entry.tokens} tokens")

    def _take(self, said: dict, position: int | None) -> bool:
        """Whether there may be more to read."""
        entry = self.entry
        if "error" in said:
            code = said["error"]["code"]
            if code in REFUSALS:
                entry.refusals[code] += 1
                self._left(on_purpose=False)
            else:
                entry.fail(code, self.scene.ledger.deaths)
            return False
        for choice in said["choices"]:
            if text := choice["delta"].get("content"):
                entry.hear(text, position)
            entry.reason = choice["finish_reason"] or entry.reason
        if (usage := said.get("usage")) and usage["completion_tokens"] != self.ask.words:
            entry.blame("differing", f"{usage['completion_tokens']} tokens of {self.ask.words} are charged for")
        self._cancel_if_due()
        return not entry.fault

    def _leaves_now(self) -> bool:
        if not self._leaves or self.entry.tokens <= self._leaves[0]:
            return False
        self._leaves = [at for at in self._leaves if at >= self.entry.tokens]
        self._left(on_purpose=True)
        return True

    def _left(self, *, on_purpose: bool) -> None:
        self.entry.away()
        if self._left_at is None:
            self._left_at, self._left_on_purpose = time.monotonic(), on_purpose

    # Cancelling ------------------------------------------------------------------------------------

    def _cancel_if_due(self) -> None:
        at = self.ask.cancels_at
        if at is not None and self._cancelling is None and self.entry.tokens > at:
            self._cancelling = asyncio.create_task(self._cancel())

    async def _cancel(self) -> None:
        """Until some gateway has taken it."""
        while not self.entry.fault:
            with contextlib.suppress(httpx.HTTPError):
                response = await self.scene.http.delete(f"{self.scene.url()}/v1/requests/{self.entry.id}")
                if response.status_code == 200:
                    return
                if response.json()["error"]["code"] not in REFUSALS:
                    self.entry.blame("unexplained", f"its cancel was answered {response.text}")
            await self.scene.breathe()


async def events(response: httpx.Response) -> AsyncIterator[tuple[int | None, str]]:
    """(id, data) of each event that has come whole; comments are left out."""
    rest = b""
    async for block in response.aiter_raw():
        *whole, rest = (rest + block).split(b"\n\n")
        for event in whole:
            fields = dict(line.split(": ", 1) for line in event.decode().split("\n") if not line.startswith(":"))
            if "data" in fields:
                yield int(fields["id"]) if "id" in fields else None, fields["data"]
