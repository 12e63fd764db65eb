"""The Lua scripts: one state transition each, loaded from `redis_scripts/`, called by their hash."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

Value = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Script:
    """One script with the prelude before it."""

    name: str
    source: str
    sha: str

    @classmethod
    def read(cls, name: str) -> "Script":
        """The script of this name from the package."""
        folder = files("shared") / "redis_scripts"
        source = (folder / "prelude.lua").read_text() + (folder / f"{name}.lua").read_text()
        return cls(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


@dataclass(frozen=True, slots=True)
class Call:
    """A script with its keys and arguments, ready to be sent alone or with others."""

    script: Script
    keys: Sequence[str]
    args: Sequence[Value]


async def run(redis: "Redis", call: Call) -> Any:
    """One call, one round trip; a server that has forgotten the script (restart, flush) is taught it again."""
    try:
        return await redis.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)  # type: ignore[misc]
    except NoScriptError:
        await redis.script_load(call.script.source)
        return await redis.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)  # type: ignore[misc]


async def run_all(redis: "Redis", calls: Sequence[Call]) -> list[Any]:
    """Several calls in order, one round trip. Every script may be repeated, so a forgotten one repeats them all."""
    if len(calls) == 1:
        return [await run(redis, calls[0])]
    results = await _pipelined(redis, calls)
    if any(isinstance(result, NoScriptError) for result in results):
        for source in {call.script.source for call in calls}:
            await redis.script_load(source)
        results = await _pipelined(redis, calls)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


async def _pipelined(redis: "Redis", calls: Sequence[Call]) -> list[Any]:
    async with redis.pipeline(transaction=False) as pipe:
        for call in calls:
            pipe.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
        return await pipe.execute(raise_on_error=False)


ENQUEUE = Script.read("enqueue")
FETCH = Script.read("fetch")
CLAIM = Script.read("claim")
EMIT = Script.read("emit")
FINISH = Script.read("finish")
PARK = Script.read("park")
HEARTBEAT = Script.read("heartbeat")
CANCEL = Script.read("cancel")
BEGIN = Script.read("begin")
WATCH = Script.read("watch")
INSPECT = Script.read("inspect")
REVIVE = Script.read("revive")
