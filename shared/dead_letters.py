"""Dead letters: requests that took too many workers down. An operator reads, retries or drops them."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from redis.asyncio import Redis

from shared import scripts
from shared.broker import KEEP_BEYOND_DEADLINE_MS
from shared.connection import reachable
from shared.keys import Keys
from shared.lanes import Lane
from shared.scripts import Call

PAGE = 8
"""Letters read at once: each comes with its payload, which may be large."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter, without what its client wrote."""

    entry: str
    model: str
    request_id: str
    lane: str
    cause: str
    deaths: int
    owner: str
    """The last worker that ran it."""
    age_ms: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class Retried:
    """What became of a retry.

    `queued`: it waits in its lane again. `moot`: its client had asked again, and it is in `state`; only the letter was
    taken away. `gone`: there was no such letter any more. `empty`: the letter has no payload; nothing was changed.
    """

    verdict: Literal["queued", "moot", "gone", "empty"]
    state: str = ""
    """Of the request, where it is `moot` or `gone` and known."""


class DeadLetters:
    """The dead letters of all models. BrokerUnavailable if Redis does not answer."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def read(self, models: Sequence[str]) -> AsyncIterator[Letter]:
        """All letters of these models, of each the oldest first."""
        async with reachable():
            seconds, micros = await self._redis.time()
        now = seconds * 1000 + micros // 1000
        for model in models:
            key, after = Keys(model).dead_letters, "-"
            while True:
                async with reachable():
                    page: Any = await self._redis.xrange(key, min=after, count=PAGE)
                for entry, fields in page:
                    yield _letter(model, entry.decode(), fields, now)
                if len(page) < PAGE:
                    break
                after = f"({page[-1][0].decode()}"

    async def find(self, name: str, models: Sequence[str]) -> list[Letter]:
        """The letters with this entry id or of the request with this id."""
        return [letter async for letter in self.read(models) if name in (letter.entry, letter.request_id)]

    async def payload(self, letter: Letter) -> bytes:
        """What the client asked for, as JSON (`GenerateRequest`); empty if the letter is gone or has none."""
        async with reachable():
            found: Any = await self._redis.xrange(Keys(letter.model).dead_letters, letter.entry, letter.entry)
        return found[0][1].get(b"payload", b"") if found else b""

    async def retry(self, letter: Letter, lane: Lane) -> Retried:
        """Queue its request again, and take the letter away in the same step.

        It keeps its id and goes on from its log, detached, with no death counted. The lane's bounds are not asked.
        """
        names, request_id = Keys(letter.model), letter.request_id
        touched = [names.dead_letters, names.stream(letter.lane), names.request(request_id)]
        touched += [names.stats(letter.lane), names.log(request_id)]
        deadline_ms = int(lane.deadline_s * 1000)
        args: list[scripts.Value] = [letter.entry, request_id, letter.lane]
        args += [min(int(lane.queue_timeout_s * 1000), deadline_ms), deadline_ms, KEEP_BEYOND_DEADLINE_MS, names.bell]
        async with reachable():
            verdict, *state = await scripts.run(self._redis, Call(scripts.REVIVE, touched, args))
        told: dict[bytes, Literal["queued", "moot", "gone", "empty"]]
        told = {b"OK": "queued", b"MOOT": "moot", b"GONE": "gone", b"EMPTY": "empty"}
        return Retried(told[verdict], state[0].decode() if state else "")

    async def drop(self, letters: Sequence[Letter]) -> int:
        """Take them away; how many were still there. Their requests stay as they ended."""
        dropped = 0
        for letter in letters:
            async with reachable():
                dropped += await self._redis.xdel(Keys(letter.model).dead_letters, letter.entry)
        return dropped


def _letter(model: str, entry: str, fields: dict[bytes, bytes], now: int) -> Letter:
    text = {name.decode(): value.decode() for name, value in fields.items() if name != b"payload"}
    return Letter(
        entry=entry,
        model=model,
        request_id=text.get("id", ""),
        lane=text.get("lane", ""),
        cause=text.get("cause", ""),
        deaths=int(text.get("deaths", 0)),
        owner=text.get("owner", ""),
        age_ms=max(0, now - int(entry.split("-", maxsplit=1)[0])),
        payload_bytes=len(fields.get(b"payload", b"")),
    )
