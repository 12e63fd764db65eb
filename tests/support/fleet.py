"""A fleet of real processes around one broker, for tests that stream, kill and restart."""

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

import httpx
import openai

from shared.cli.processes import spawn, stop
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    """One child with its log."""

    def __init__(self, name: str, module: str, env: dict[str, str], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("BUSWAY_", "REDIS_URL"))}
        with self.log.open("wb") as output:
            self.child = spawn(
                [sys.executable, "-m", module], env={**clean, "PYTHONPATH": str(ROOT), **env}, output=output
            )

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def signal(self, number: signal.Signals) -> None:
        self.child.send_signal(number)

    @property
    def status(self) -> int | None:
        return self.child.poll()

    def events(self, name: str) -> list[dict]:
        """The log lines with this event name."""
        lines = (line for line in self.log.read_text(errors="replace").splitlines() if line.startswith("{"))
        return [event for event in map(json.loads, lines) if event.get("event") == name]


class Fleet:
    """Starts gateways and workers; ends all that it started."""

    def __init__(self, redis_url: str, folder: Path, env: dict[str, str] | None = None) -> None:
        self.redis_url = redis_url
        self._folder = folder
        self._env = {
            "BUSWAY_REDIS__URL": redis_url,
            "BUSWAY_LOG__FORMAT": "json",
            "BUSWAY_WORKER__ENGINE": "echo",
            "BUSWAY_WORKER__LEASE_S": "2",
            **(env or {}),
        }
        self.processes: list[Process] = []

    def start(self, module: str, **env: str) -> Process:
        """Start a process with these settings, `WORKER__SLOTS="4"`; it need not be ready yet."""
        named = {f"BUSWAY_{key}": value for key, value in env.items()}
        process = Process(f"{module}-{len(self.processes)}", module, {**self._env, **named}, self._folder)
        self.processes.append(process)
        return process

    async def worker(self, **env: str) -> Process:
        """A worker that serves."""
        process = self.start("worker", **env)
        await wait_until(lambda: self._event(process, "worker.started"), "a worker to start", timeout_s=60)
        return process

    async def gateway(self, *, needs_model: bool = True, **env: str) -> "Gateway":
        """A gateway that is ready (or, without a model, alive)."""
        port = free_port()
        process = self.start("gateway", GATEWAY__PORT=str(port), **env)
        gateway = Gateway(process, port)
        path = "/ready" if needs_model else "/health"
        await wait_until(lambda: self._answers(process, gateway.url + path), f"{path} of a gateway", timeout_s=60)
        return gateway

    def stop(self) -> None:
        for process in self.processes:
            process.child.send_signal(signal.SIGCONT) if process.status is None else None
            stop(process.child, grace_s=1)

    def _event(self, process: Process, name: str) -> bool:
        assert process.status is None, f"{process.name} ended: {process.log.read_text(errors='replace')[-2000:]}"
        return bool(process.events(name))

    async def _answers(self, process: Process, url: str) -> bool:
        assert process.status is None, f"{process.name} ended: {process.log.read_text(errors='replace')[-2000:]}"
        async with httpx.AsyncClient() as client:
            try:
                return (await client.get(url, timeout=2)).status_code == 200
            except httpx.TransportError:
                return False


class Gateway:
    """A gateway process, and the real client for it."""

    def __init__(self, process: Process, port: int) -> None:
        self.process = process
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def client(self, **options) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="any", **{"max_retries": 0, **options})

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of this name that carry these labels."""
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"{self.url}/metrics")).text
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        samples = (line for line in text.splitlines() if line.startswith((name + "{", name + " ")))
        return sum(float(line.rsplit(" ", 1)[1]) for line in samples if all(one in line for one in wanted))


async def stream_text(
    client: openai.AsyncOpenAI, model: str, prompt: str, seen: list[str] | None = None, **options
) -> str:
    """The joined deltas of one streamed chat; each is put into `seen` as it comes."""
    parts = [] if seen is None else seen
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": prompt}], stream=True, **options
    )
    async for chunk in stream:
        parts += [choice.delta.content for choice in chunk.choices if choice.delta.content]
    return "".join(parts)


async def gather(*coroutines):
    """All results, or the first error after the rest has been cancelled."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(one) for one in coroutines]
    return [task.result() for task in running]


__all__ = ["Fleet", "Gateway", "Process", "free_port", "gather", "stream_text"]
