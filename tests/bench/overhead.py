"""What the queue costs: `python -m tests.bench.overhead [--json FILE]`.

Echo engine at zero pace, one gateway, one worker, one broker, all on this machine. In turn, several times:
time to first token of lone requests, through the whole path and against a bare uvicorn that streams the
same bytes without any queue (the difference is the queue's); then many streams at once, for tokens a
second, and how much CPU time each process spends a token. The client is a process of its own.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
from pathlib import Path

from shared.cli.valkey import Valkey
from tests.bench.http import Streamed, cpu_seconds, percentile, request_bytes, stream
from tests.support.fleet import Fleet, free_port

LONE = 300
STREAMS = 64
TOKENS = 500
REPEATS = 5


def body(tokens: int) -> dict:
    return {
        "model": "echo",
        "stream": True,
        "max_tokens": tokens,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "the quick brown fox jumps over the lazy dog"}],
    }


async def one_by_one(port: int, count: int) -> list[Streamed]:
    """Lone requests on one connection, one after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = request_bytes(body(4))
    results = [await stream(reader, writer, request) for _ in range(count)]
    writer.close()
    return results


async def at_once(port: int, count: int, tokens: int) -> list[Streamed]:
    """Many streams at the same time, each on its own connection."""

    async def one() -> Streamed:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        result = await stream(reader, writer, request_bytes(body(tokens)))
        writer.close()
        return result

    return await asyncio.gather(*(one() for _ in range(count)))


def bare_server(port: int) -> None:
    """uvicorn with the events of a four-token answer and nothing behind it."""
    import uvicorn

    events = [b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n']
    events += [b'data: {"choices":[{"delta":{"content":"w"}}]}\n\n'] * 4 + [b"data: [DONE]\n\n"]
    headers = [(b"content-type", b"text/event-stream")]

    async def app(scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for event in events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="critical", lifespan="off")


def measure_lone(port: int) -> dict[str, float]:
    ttfts = [one.ttft_ms for one in asyncio.run(one_by_one(port, LONE))]
    return {"p50": percentile(ttfts, 0.50), "p99": percentile(ttfts, 0.99)}


def measure_many(port: int, pids: dict[str, int]) -> dict[str, float]:
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    results = asyncio.run(at_once(port, STREAMS, TOKENS))
    assert all(one.is_whole and one.tokens == TOKENS for one in results), "a stream was cut"
    tokens = sum(one.tokens for one in results)
    took = max(one.events[-1] for one in results) - min(one.asked for one in results)
    spent = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
    return {
        "tokens_per_s": tokens / took,
        "gateway_tokens_per_cpu_s": tokens / spent["gateway"],
        **{f"{name}_us_per_token": seconds * 1e6 / tokens for name, seconds in spent.items()},
    }


def spread(runs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Median, least and most of each figure."""
    return {
        key: {
            "median": statistics.median(run[key] for run in runs),
            "min": min(run[key] for run in runs),
            "max": max(run[key] for run in runs),
        }
        for key in runs[0]
    }


async def start(fleet: Fleet) -> tuple[int, dict[str, int]]:
    worker = await fleet.worker(WORKER__SLOTS=str(STREAMS))
    gateway = await fleet.gateway()
    return gateway.port, {"gateway": gateway.process.child.pid, "worker": worker.child.pid}


def run(window_ms: str) -> dict[str, object]:
    """All repeats for one value of the interactive lane's window."""
    with tempfile.TemporaryDirectory() as folder:
        valkey = Valkey(Path(folder))
        valkey.start()
        fleet = Fleet(valkey.url, Path(folder), {"BUSWAY_LANES__INTERACTIVE__WINDOW_MS": window_ms})
        bare_port = free_port()
        bare = multiprocessing.get_context("spawn").Process(target=bare_server, args=(bare_port,), daemon=True)
        try:
            bare.start()
            port, pids = asyncio.run(start(fleet))
            pids["broker"] = valkey.pid
            measure_lone(port), measure_lone(bare_port)  # warm up
            lone, idle, many = [], [], []
            for _ in range(REPEATS):
                lone.append(measure_lone(port))
                idle.append(measure_lone(bare_port))
                many.append(measure_many(port, pids))
        finally:
            bare.kill()
            fleet.stop()
            valkey.stop()
    added = [{key: full[key] - base[key] for key in full} for full, base in zip(lone, idle, strict=True)]
    return {"ttft_ms": spread(lone), "bare_ttft_ms": spread(idle), "added_ttft_ms": spread(added), "many": spread(many)}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", type=Path, help="write the figures here")
    chosen = options.parse_args()
    figures = {f"window_{window}_ms": run(window) for window in ("0", "2")}
    for name, groups in figures.items():
        sys.stdout.write(f"{name}\n")
        for group, rows in groups.items():
            for key, row in rows.items():
                sys.stdout.write(
                    f"  {group:14} {key:26} {row['median']:12.2f}   ({row['min']:.2f} to {row['max']:.2f})\n"
                )
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
