"""Drills: one fault each on a fleet of real processes, told in figures.

`python -m tests.fault.drills [NAME ...] [--json FILE]` runs them and prints what clients saw; `test_drills.py` runs the
same ones, smaller, and holds them to what was promised. Times are told, never judged.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from shared.cli.valkey import Valkey
from shared.connection import connect
from shared.keys import Keys
from shared.sections import RedisSettings
from tests.support.fleet import Fleet, Gateway, gather
from tests.support.waiting import wait_until

LEASE_S = 2.0
Figures = dict[str, Any]


@dataclass
class Seen:
    """What one client saw of one stream."""

    expected: str
    text: str = ""
    times: list[float] = field(default_factory=list)
    """When each piece came, on this process's clock."""
    finishes: int = 0
    error: str = ""

    @property
    def is_exact(self) -> bool:
        return self.text == self.expected and self.finishes == 1 and not self.error

    @property
    def longest_gap_s(self) -> float:
        return max((later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)), default=0.0)


def words(number: int, count: int) -> str:
    """A text like no other; the echo engine says it back, a word at a time."""
    return " ".join(f"{number}-{word}" for word in range(count))


async def stream(http: httpx.AsyncClient, seen: Seen, **fields: Any) -> Seen:
    """One streamed chat, to its end."""
    body = {"model": "echo", "messages": [{"role": "user", "content": seen.expected}], "stream": True, **fields}
    async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            seen.error = (await answer.aread()).decode()
            return seen
        async for line in answer.aiter_lines():
            take(seen, line)
    return seen


def take(seen: Seen, line: str) -> None:
    if not line.startswith("data: {"):
        return
    event = json.loads(line[6:])
    if "error" in event:
        seen.error = event["error"]["code"]
        return
    for choice in event["choices"]:
        if piece := choice["delta"].get("content"):
            seen.text += piece
            seen.times.append(time.monotonic())
        seen.finishes += choice["finish_reason"] is not None


def caller(gateway: Gateway) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    return httpx.AsyncClient(base_url=gateway.url, timeout=120, limits=limits)


async def three_kills(fleet: Fleet, count: int = 100) -> Figures:
    """Streams over four workers, of which three are killed one after another."""
    workers = [await fleet.worker(WORKER__ECHO__STEP_MS="15", WORKER__SLOTS=str(count)) for _ in range(4)]
    gateway = await fleet.gateway()
    seen = [Seen(words(number, 150)) for number in range(count)]
    async with caller(gateway) as http:

        async def kill_three() -> None:
            for kills, victim in enumerate(workers[:3], 1):
                told = 20 * kills * count
                await wait_until(lambda told=told: sum(len(one.times) for one in seen) >= told, "the streams to go on")
                victim.kill()

        await gather(*(stream(http, one) for one in seen), kill_three())
    return {
        "streams": count,
        "exact": sum(one.is_exact for one in seen),
        "lease_s": LEASE_S,
        "longest_gap_s": max(one.longest_gap_s for one in seen),
    }


async def broker_killed(fleet: Fleet, valkey: Valkey, count: int = 100, queued: int = 200) -> Figures:
    """kill -9 of Redis, and a restart on its append-only file, under streams and a full bulk lane."""
    slots = str(count // 2 + 4)
    lanes = {"LANES__BULK__MAX_QUEUED": str(queued)}
    for _ in range(2):
        await fleet.worker(WORKER__ECHO__STEP_MS="10", WORKER__SLOTS=slots, **lanes)
    gateway = await fleet.gateway(**lanes)
    seen = [Seen(words(number, 200)) for number in range(count)]
    bulk = [Seen(words(count + number, 40)) for number in range(2 * count + 2 * queued)]
    async with caller(gateway) as http:

        async def kill() -> float:
            await wait_until(lambda: min(len(one.times) for one in seen) >= 3, "all streams to have begun")
            valkey.kill()
            await asyncio.sleep(0.5)
            began = time.monotonic()
            valkey.start()
            await wait_until(lambda: max(one.times[-1] for one in seen) > began, "a token after the restart")
            return time.monotonic() - began

        streams = [stream(http, one) for one in seen] + [stream(http, one, service_tier="flex") for one in bulk]
        recovered_s, *_ = await gather(kill(), *streams)
    taken = [one for one in bulk if "lane_full" not in one.error]
    return {
        "streams": count,
        "exact": sum(one.is_exact for one in seen),
        "bulk": len(taken),
        "bulk_exact": sum(one.is_exact for one in taken),
        "bulk_refused": len(bulk) - len(taken),
        "recovered_s": recovered_s,
        "longest_gap_s": max(one.longest_gap_s for one in seen),
    }


def close(one: socket.socket) -> None:
    one.close()


def reset(one: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    one.close()


def half_close(one: socket.socket) -> None:
    one.shutdown(socket.SHUT_WR)


WAYS: dict[str, Callable[[socket.socket], None]] = {"close": close, "reset": reset, "half_close": half_close}


async def cancels(fleet: Fleet, normal: int = 1000, early: int = 100) -> Figures:
    """Streams that end well send no cancel; each that is left early sends one."""
    slots = 256
    await fleet.worker(WORKER__SLOTS=str(slots), WORKER__ECHO__STEP_MS="5")
    gateway = await fleet.gateway(GATEWAY__DISCONNECT_GRACE_S="0.2")
    sent = "busway_cancels_sent_total"
    figures: Figures = {"normal": normal, "early": early}
    async with caller(gateway) as http:
        seen = [Seen(words(number, 5)) for number in range(normal)]
        room = asyncio.Semaphore(100)

        async def in_turn(one: Seen) -> None:
            async with room:
                await stream(http, one)

        await gather(*map(in_turn, seen))
        figures["exact"] = sum(one.is_exact for one in seen)
        figures["cancels_of_normal"] = await gateway.metric(sent)
        for name, leave in WAYS.items():
            before = await gateway.metric(sent)
            await leave_early(gateway, early, leave)
            await wait_until(lambda: is_idle(fleet, gateway, slots), "all slots to be free again")
            figures[f"cancels_of_{name}"] = await gateway.metric(sent) - before
    return figures


async def leave_early(gateway: Gateway, count: int, leave: Callable[[socket.socket], None]) -> None:
    """So many clients that begin to read a long answer and go."""
    text = words(0, 1500)
    body = json.dumps({"model": "echo", "messages": [{"role": "user", "content": text}], "stream": True}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"

    def visit() -> socket.socket:
        one = socket.create_connection(("127.0.0.1", gateway.port), timeout=60)
        one.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        assert one.recv(4096).startswith(b"HTTP/1.1 200")
        return one

    visitors = await gather(*(asyncio.to_thread(visit) for _ in range(count)))
    for one in visitors:
        leave(one)
    await wait_until(lambda: has_metric(gateway, "busway_requests_in_flight", 0), "the gateway to forget them")
    for one in visitors:
        one.close()


async def has_metric(gateway: Gateway, name: str, value: float) -> bool:
    return await gateway.metric(name) == value


async def is_idle(fleet: Fleet, gateway: Gateway, slots: int) -> bool:
    """No request is left in the lanes, and every slot is free."""
    redis = connect(RedisSettings(url=fleet.redis_url))
    try:
        names = Keys("echo")
        lengths = [await redis.xlen(names.stream(lane)) for lane in ("interactive", "bulk")]
        free = [int(await redis.hget(names.worker(raw.decode()), "free_slots") or 0) for raw in await workers(redis)]
    finally:
        await redis.aclose()
    return lengths == [0, 0] and sum(free) == slots and await has_metric(gateway, "busway_requests_in_flight", 0)


async def workers(redis: Any) -> list[bytes]:
    return await redis.zrange(Keys("echo").workers, 0, -1)


DRILLS: dict[str, Callable[..., Awaitable[Figures]]] = {
    "three_kills": three_kills,
    "broker_killed": broker_killed,
    "cancels": cancels,
}


@contextlib.contextmanager
def stage():
    """A broker and a fleet of their own, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="busway-drill-") as folder:
        valkey = Valkey(Path(folder) / "valkey")
        valkey.start()
        fleet = Fleet(valkey.url, Path(folder), {"BUSWAY_WORKER__LEASE_S": str(LEASE_S)})
        try:
            yield fleet, valkey
        finally:
            fleet.stop()
            valkey.stop()


async def run(name: str, **sizes: int) -> Figures:
    """One drill on a stage of its own."""
    with stage() as (fleet, valkey):
        given = (fleet, valkey) if name == "broker_killed" else (fleet,)
        return await DRILLS[name](*given, **sizes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *DRILLS], default=[], metavar="NAME")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    figures = {}
    for name in options.names or DRILLS:
        figures[name] = asyncio.run(run(name))
        told = ", ".join(
            f"{key} {value:.2f}" if isinstance(value, float) else f"{key} {value}"
            for key, value in figures[name].items()
        )
        sys.stdout.write(f"{name}: {told}\n")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
