"""One run: requests go out when they are due, whatever became of those before."""

import asyncio
import contextlib
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from shared.cli.bench import ask
from shared.cli.bench.connection import Pool, Target
from shared.cli.bench.plan import MAX_REQUESTS, Load, Plan
from shared.cli.bench.response import ProtocolError
from shared.cli.bench.result import Result
from shared.cli.bench.sample import Answer, Sample
from shared.cli.client import Client

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
FIRST_PAUSE_S = 0.05
LAST_PAUSE_S = 1.0


def run(plan: Plan, *, is_interruptible: bool = True) -> Result:
    """Run it, and return what was seen; ChatError if the server must name a model and cannot.

    SIGINT ends the run early: what is in flight is dropped and counted as unfinished, the rest is reported. With
    `is_interruptible` false, and outside the main thread, signals are left alone.
    """
    if plan.model is None:
        plan = replace(plan, model=Client(plan.url, plan.api_key).first_model())

    async def main() -> Result:
        bench = Bench(plan)
        with _interrupts(bench.interrupt, is_wanted=is_interruptible):
            return await bench.run()

    return asyncio.run(main())


@contextlib.contextmanager
def _interrupts(act: Callable[[], None], *, is_wanted: bool) -> Iterator[None]:
    if not is_wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


class Bench:
    """The loads of one plan, run once, in the running loop."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self._pool = Pool(Target.of(plan.url, PATHS[plan.endpoint], plan.api_key))
        self.samples: list[Sample] = []
        self._tasks = asyncio.TaskGroup()
        self._asked = dict.fromkeys(plan.loads, 0)
        self._in_flight: dict[str, set[asyncio.Task[None]]] = {lane: set() for lane in plan.loads}
        self._over = asyncio.Event()
        self._over_s = math.inf if plan.duration_s is None else plan.duration_s
        """What is due later is not asked."""
        self._is_interrupted = False
        self._cpu_began = self._cpu_s = 0.0
        self._origin = 0.0

    def interrupt(self) -> None:
        """End it now."""
        self._is_interrupted = True
        self._finish()
        for tasks in self._in_flight.values():
            for task in tasks:
                task.cancel()

    async def run(self) -> Result:
        started, self._cpu_began = datetime.now(UTC), time.process_time()
        self._origin = self._loop.time()
        if self._plan.duration_s is not None:
            self._loop.call_at(self._origin + self._plan.duration_s, self._finish)
        try:
            async with self._tasks:  # leaves when the last answer has ended
                for lane in self._plan.loads:
                    self._tasks.create_task(self._lane(lane))
        finally:
            self._pool.close()
        elapsed_s = self._now()
        return Result(
            plan=self._plan,
            samples=self.samples,
            started=started,
            over_s=self._over_s,
            elapsed_s=elapsed_s,
            client_cpu=self._cpu_s / max(self._over_s, 1e-9),
            is_interrupted=self._is_interrupted,
        )

    def _now(self) -> float:
        return self._loop.time() - self._origin

    def _finish(self) -> None:
        if not self._over.is_set():
            self._over_s = min(self._over_s, self._now())
            self._cpu_s = time.process_time() - self._cpu_began
            self._over.set()

    async def _sleep_until(self, at: float) -> None:
        """Until then, or until the run is over. Others run meanwhile, however late we are."""
        try:
            async with asyncio.timeout_at(self._origin + at):
                await self._over.wait()
        except TimeoutError:
            return

    async def _lane(self, lane: str) -> None:
        """Ask all of it, and wait for the answers; the first lane's last answer ends the run."""
        load = self._plan.loads[lane]
        most = load.requests or MAX_REQUESTS
        if load.concurrency is None:
            await self._open_loop(lane, load, most)
        else:
            numbers = iter(range(most))
            async with asyncio.TaskGroup() as slots:
                for _ in range(load.concurrency):
                    slots.create_task(self._slot(lane, numbers))
        if load is self._plan.leading and self._asked[lane] == most:
            self._finish()

    async def _open_loop(self, lane: str, load: Load, most: int) -> None:
        times = ask.arrivals(load, seed=self._plan.seed, lane=lane)
        for number, due in zip(range(most), times, strict=False):
            await self._sleep_until(min(due, self._over_s))
            if due >= self._over_s or self._is_interrupted:
                break
            if len(self._in_flight[lane]) < load.max_in_flight:
                self._send(lane, number, due)
            else:
                self._sample(lane, due).fail("not_sent", f"{load.max_in_flight} requests were in flight")
        if self._in_flight[lane]:
            await asyncio.wait([*self._in_flight[lane]])

    async def _slot(self, lane: str, numbers: Iterator[int]) -> None:
        """One after the other; after a failure a pause, so that a dead server is not asked without end."""
        pause_s = FIRST_PAUSE_S
        while not self._over.is_set() and (number := next(numbers, None)) is not None:
            sample, task = self._send(lane, number, self._now())
            await asyncio.wait([task])
            if sample.error is None:
                pause_s = FIRST_PAUSE_S
            else:
                await self._sleep_until(self._now() + pause_s)
                pause_s = min(LAST_PAUSE_S, 2 * pause_s)

    def _sample(self, lane: str, due: float) -> Sample:
        sample = Sample(lane, due)
        self.samples.append(sample)
        self._asked[lane] += 1
        return sample

    def _send(self, lane: str, number: int, due: float) -> tuple[Sample, asyncio.Task[None]]:
        sample = self._sample(lane, due)
        task = self._tasks.create_task(self._one(sample, ask.body(self._plan, lane, number)))
        self._in_flight[lane].add(task)
        task.add_done_callback(self._in_flight[lane].discard)
        return sample, task

    async def _one(self, sample: Sample, body: bytes) -> None:
        answer = Answer(sample, self._origin)

        def on_sent() -> None:
            sample.sent = self._now()

        try:
            async with asyncio.timeout_at(self._origin + sample.due + self._plan.timeout_s):
                status = await self._pool.ask(body, answer.take, on_sent)
            answer.close(status, self._loop.time())
        except TimeoutError as error:
            sample.fail("timeout", str(error) or f"no end within {self._plan.timeout_s:g} s")
        except ProtocolError as error:
            sample.fail("broken", str(error))
        except OSError as error:
            sample.fail("connect" if sample.sent is None else "broken", str(error) or type(error).__name__)
