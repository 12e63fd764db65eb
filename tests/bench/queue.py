"""What the queue costs its server: `python -m tests.bench.queue [--json FILE]`.

On a Valkey of its own, in turn, several times: the memory of a queued request; the time of an enqueue, of a fetch of 16
and of an inspect of the last in the lane, while more and more wait; answers of an echo worker at zero pace, written
each step and published, against those that nobody watches, written in portions; and what it costs `emit` to read who
watches. Times are the server's own (`SLOWLOG`, `INFO`): neither the client nor the way there is in them.
"""

import asyncio
import hashlib
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from redis.asyncio import Redis

from shared import scripts, wire
from shared.broker import Broker, Submission
from shared.cli.valkey import Valkey
from shared.connection import connect
from shared.inspection import Inspector
from shared.lanes import Lane
from shared.lease import Emission, Ending
from shared.scripts import Call, Script
from shared.sections import RedisSettings
from tests.bench.rig import arguments, report, said, say, spread
from tests.support.desk import DONE, MODEL, Desk
from tests.support.fleet import Fleet
from tests.support.waiting import wait_until

LANE = "interactive"
WIDE = Lane(max_queued=10**6, max_queued_tokens=10**9, queue_timeout_s=10**6, deadline_s=10**6)
PROMPT = "the quick brown fox jumps over the lazy dog " * 12
COUNTED = 10_000
DEPTHS = (10, 1_000, 10_000, 100_000)
BATCH = 16
ROUNDS = 20
REQUESTS, TOKENS = 64, 256
STEPS = 10
CHANNEL = "bw:gw:bench"

READS_WHO_WATCHES = "redis.call('HMGET', prefix .. 'req:' .. id, 'gw', 'detach', 'owner')"
KNOWN = scripts.EMIT.source.replace(READS_WHO_WATCHES, f"{{'{CHANNEL}', false, worker}}")
EMIT_KNOWING = Script("emit", KNOWN, hashlib.sha1(KNOWN.encode(), usedforsecurity=False).hexdigest())

Figures = dict[str, float]


@contextmanager
def server() -> Iterator[tuple[Valkey, Path]]:
    """A broker of our own, with its folder."""
    with tempfile.TemporaryDirectory() as folder:
        valkey = Valkey(Path(folder) / "valkey", max_memory="4gb")
        valkey.start()
        try:
            yield valkey, Path(folder)
        finally:
            valkey.stop()


@asynccontextmanager
async def desk_at(valkey: Valkey) -> AsyncIterator[Desk]:
    """A client of it, the store empty."""
    client = connect(RedisSettings(url=valkey.url, timeout_s=60))
    await client.flushall()
    yield Desk(client)
    await client.aclose()


@asynccontextmanager
async def listener(valkey: Valkey) -> AsyncIterator[None]:
    """Somebody who hears what is published, as cheaply as can be."""
    reader, writer = await asyncio.open_unix_connection(str(valkey.socket))
    writer.write(f"SUBSCRIBE {CHANNEL}\r\n".encode())
    await reader.read(1)

    async def hear() -> None:
        while await reader.read(1 << 20):
            pass

    task = asyncio.create_task(hear())
    yield
    writer.close()
    await task


async def fill(broker: Broker, names: list[str], *, prompt: str = PROMPT, **more: Any) -> None:
    """Queue them, sixteen at a time."""
    left = iter(names)
    sampling = wire.Sampling(seed=1, max_tokens=TOKENS, temperature=0, ignore_eos=True)
    request = wire.GenerateRequest(sampling=sampling, prompt=prompt)

    async def some() -> None:
        for name in left:
            await broker.enqueue(Submission(name, MODEL, LANE, request, 300, **more), WIDE)

    await asyncio.gather(*(some() for _ in range(16)))


# Memory of what waits ----------------------------------------------------------------------------


async def used_memory(redis: Redis) -> int:
    """What the append-only file still buffers left out."""
    info = await redis.info("memory")
    return info["used_memory"] - info["mem_aof_buffer"]


async def memory(desk: Desk) -> Figures:
    """Bytes of one queued request."""
    await fill(desk.broker, [f"warm-{n}" for n in range(32)])
    await desk.redis.flushall()
    before, names = await used_memory(desk.redis), [f"{n:032x}" for n in range(COUNTED)]
    await fill(desk.broker, names, channel=CHANNEL)
    whole = (await used_memory(desk.redis) - before) / COUNTED
    hashes = [await desk.redis.memory_usage(desk.keys.request(name), samples=0) for name in names[::50]]
    entries = await desk.redis.memory_usage(desk.keys.stream(LANE), samples=0)
    payload = await desk.redis.hstrlen(desk.keys.request(names[0]), "payload")  # type: ignore[misc]
    await desk.redis.flushall()
    return {
        "payload_bytes": payload,
        "queued_bytes": whole,
        "queued_hash_bytes": statistics.mean(hashes),
        "queued_entry_bytes": entries / COUNTED,
    }


# Time by depth -----------------------------------------------------------------------------------


async def timed(redis: Redis, work: Awaitable[Any]) -> dict[str, float]:
    """Microseconds that the server spent in one call of each script, by its hash: the median over this work."""
    await redis.config_set("slowlog-max-len", 100_000)
    await redis.config_set("slowlog-log-slower-than", 0)
    await redis.slowlog_reset()
    await work
    spent: dict[str, list[int]] = {}
    for entry in await redis.slowlog_get(100_000):
        command, *rest = entry["command"].split()
        if command == b"EVALSHA":
            spent.setdefault(rest[0].decode(), []).append(entry["duration"])
    await redis.config_set("slowlog-log-slower-than", -1)
    return {sha: statistics.median(values) for sha, values in spent.items()}


async def times(desk: Desk) -> dict[int, Figures]:
    """By the number of requests that wait."""
    found: dict[int, Figures] = {}
    for depth in DEPTHS:
        waits = (await desk.waiting())[LANE]
        await fill(desk.broker, [f"d{depth}-{n}" for n in range(depth - waits)], channel=CHANNEL)
        spent = await timed(desk.redis, rounds(desk, f"n{depth}"))
        measured = {"enqueue": scripts.ENQUEUE, "inspect": scripts.INSPECT, "fetch": scripts.FETCH}
        found[depth] = {f"{name}_us": spent[script.sha] for name, script in measured.items()}
    await desk.redis.flushall()
    return found


async def rounds(desk: Desk, prefix: str) -> None:
    """Each leaves as many requests as it found."""
    inspector, lease = Inspector(desk.redis), desk.lease("w1")
    for turn in range(ROUNDS):
        names = [f"{prefix}-{turn}-{n}" for n in range(BATCH)]
        await desk.enqueue(*names, bounds=WIDE, channel=CHANNEL)
        await inspector.inspect(MODEL, LANE, names[-1])
        held = await desk.fetch(total=BATCH)
        assert len(held) == BATCH
        await lease.report([], [Ending(one, 0, DONE) for one in held])


# What the log costs ------------------------------------------------------------------------------


async def answers(desk: Desk, kind: str, turn: int) -> Figures:
    """A burst of answers, watched or not."""
    redis, names = desk.redis, [f"{kind}-{turn}-{n}" for n in range(REQUESTS)]
    told: dict[str, Any] = {"channel": CHANNEL} if kind == "watched" else {"detached": True}
    before = await redis.info("cpu")
    await fill(desk.broker, names, prompt=PROMPT[:40], **told)
    await wait_until(lambda: _is_empty(desk), "all answers to end", timeout_s=120)
    after = await redis.info("cpu")
    spent = sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys"))
    rows = [await redis.hmget(desk.keys.request(name), "started", "ended", "tokens") for name in names]  # type: ignore[misc]
    tokens = sum(int(row[2]) for row in rows)
    assert tokens == REQUESTS * TOKENS, "an answer is short"
    took_ms = max(int(row[1]) for row in rows) - min(int(row[0]) for row in rows)
    logs = [await redis.memory_usage(desk.keys.log(name), samples=0) for name in names]
    await redis.delete(*(key(name) for key in (desk.keys.request, desk.keys.log) for name in names))
    return {
        "tokens_per_s": tokens / took_ms * 1000,
        "server_ms_per_1000_tokens": spent * 1000 / (tokens / 1000),
        "log_bytes": statistics.mean(logs),
    }


async def _is_empty(desk: Desk) -> bool:
    return not await desk.redis.xlen(desk.keys.stream(LANE))


async def logs(valkey: Valkey, folder: Path, repeats: int) -> dict[str, list[Figures]]:
    """Each kind in turn, by one worker; the first turn warms up."""
    found: dict[str, list[Figures]] = {"watched": [], "unwatched": [], "unwatched_over_watched": []}
    fleet = Fleet(valkey.url, folder, {"BUSWAY_WORKER__SERVED_MODEL_NAME": MODEL, "BUSWAY_WORKER__LEASE_S": "10"})
    async with desk_at(valkey) as desk, listener(valkey):
        try:
            await fleet.worker(WORKER__SLOTS=str(REQUESTS))
            for turn in range(repeats + 1):
                pair = {kind: await answers(desk, kind, turn) for kind in ("watched", "unwatched")}
                pair["unwatched_over_watched"] = {
                    name: pair["unwatched"][name] / pair["watched"][name] for name in pair["watched"]
                }
                for kind, figures in pair.items() if turn else ():
                    found[kind].append(figures)
        finally:
            fleet.stop()
    return found


# What emit reads ---------------------------------------------------------------------------------


async def emits(desk: Desk) -> Figures:
    """One step of 64 requests of one gateway; beside it, the same without reading who watches."""
    await fill(desk.broker, [f"e{n}" for n in range(REQUESTS)], channel=CHANNEL)
    held, lease = await desk.fetch(), desk.lease("w1")
    spent: dict[Script, list[float]] = {scripts.EMIT: [], EMIT_KNOWING: []}
    for turn in range(2 * ROUNDS):
        script, calls = (scripts.EMIT, EMIT_KNOWING)[turn % 2], []
        for at in range(turn * STEPS, (turn + 1) * STEPS):
            call = lease._emit([Emission(one, at, wire.Piece(ids=(at,), text=" word")) for one in held])
            calls.append(Call(script, call.keys, call.args))
        await desk.redis.config_resetstat()
        assert await scripts.run_all(desk.redis, calls) == [[[], [], []]] * STEPS
        stats = (await desk.redis.info("commandstats"))["cmdstat_evalsha"]
        spent[script].append(stats["usec"] / stats["calls"])
    await desk.redis.flushall()
    whole, knowing = (statistics.median(spent[script]) for script in (scripts.EMIT, EMIT_KNOWING))
    return {"emit_us": whole, "emit_knowing_us": knowing, "emit_over_knowing": whole / knowing}


# All of it ---------------------------------------------------------------------------------------


async def measure(repeats: int) -> dict[str, Any]:
    with server() as (valkey, folder):
        memories, by_depth, steps = [], [], []
        async with desk_at(valkey) as desk, listener(valkey):
            for _ in range(repeats):
                memories.append(await memory(desk))
                by_depth.append(await times(desk))
                steps.append(await emits(desk))
        kinds = await logs(valkey, folder, repeats)
    return {
        "memory": spreads(memories),
        "depth": {str(depth): spreads([one[depth] for one in by_depth]) for depth in DEPTHS},
        "log": {kind: spreads(figures) for kind, figures in kinds.items()},
        "emit": spreads(steps),
    }


def spreads(repeats: list[Figures]) -> dict[str, dict[str, float]]:
    return {name: spread([one[name] for one in repeats]) for name in repeats[0]}


def show(group: str, rows: dict[str, dict[str, float]]) -> None:
    for name, figure in rows.items():
        say(f"{group:28} {name:26} {said(figure, 2 if figure['median'] < 100 else 0)}")


def main() -> int:
    parser = arguments(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    assert scripts.EMIT.source != KNOWN, "emit no longer reads who watches in this way"
    found = asyncio.run(measure(options.repeats))
    show("memory", found["memory"])
    for depth, rows in found["depth"].items():
        show(f"{depth} wait", rows)
    for kind, rows in found["log"].items():
        show(f"log, {kind}", rows)
    show(f"a step of {REQUESTS}", found["emit"])
    report(found, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
