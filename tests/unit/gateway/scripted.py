"""A worker that says exactly what a test tells it to, through the real contract."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

from shared import ids, keys, wire
from shared.broker import CANCELLED
from shared.lease import Assignment, Emission, Ending, Lease, Room
from shared.subscriber import Subscriber
from shared.tasks import stop
from tests.support.waiting import wait_until

LANES = ["interactive", "bulk"]


def failed(code: str, message: str = "no") -> wire.Outcome:
    return wire.Outcome(state="failed", error=wire.ErrorInfo(code=code, message=message))


def done(tokens: int, reason: str = "stop", prompt_tokens: int = 3) -> wire.Outcome:
    return wire.Outcome(
        state="done", reason=reason, usage=wire.Usage(prompt_tokens=prompt_tokens, completion_tokens=tokens)
    )


class Stage:
    """One assignment, as a script plays it."""

    def __init__(self, lease: Lease, held: Assignment) -> None:
        self._lease = lease
        self.held = held
        self.at = len(held.prior_ids)
        self.cancelled = asyncio.Event()

    @property
    def text(self) -> str:
        request = self.held.request
        return request.messages[-1]["content"] if request.messages else request.prompt

    async def say(self, *texts: str) -> None:
        """One token for each text."""
        for text in texts:
            piece = wire.Piece(ids=(self.at,), text=text)
            await self._lease.report([Emission(self.held, self.at, piece)], [])
            self.at += 1

    async def end(self, outcome: wire.Outcome | None = None) -> None:
        await self._lease.report([], [Ending(self.held, self.at, outcome or done(self.at))])


Script = Callable[[Stage], Awaitable[None]]


async def echo(stage: Stage) -> None:
    """Says the prompt, a word at a time."""
    words = stage.text.split(" ")
    await stage.say(*(word + " " for word in words[:-1]), words[-1])
    await stage.end()


class ScriptedWorker:
    """Fetches, plays the script on each request, hears cancels."""

    def __init__(self, redis, listener, model: str, script: Script, slots: int) -> None:
        self.lease = Lease(redis, model=model, worker_id=ids.boot_id(), keep_ms=60_000, grace_ms=10_000)
        self.script = script
        self.slots = slots
        self.stages: dict[str, Stage] = {}
        self.started = 0
        self.turns = 0
        self.tasks: list[asyncio.Task] = []
        self.cancels: list[str] = []
        """Ids of requests for which a cancel message came, one entry a message."""
        self._subscriber = Subscriber(
            listener,
            [keys.control_channel(self.lease.worker_id)],
            on_message=self._hear,
            on_resubscribed=lambda: None,
        )

    async def run(self) -> None:
        self.tasks += [asyncio.create_task(self._subscriber.run()), asyncio.create_task(self._beat())]
        await self._subscriber.ready.wait()
        while True:
            room = self.slots - len(self.stages)
            fetched = await self.lease.fetch([Room(lane, room, room) for lane in LANES], room)
            for held in fetched.assignments:
                self.started += 1
                stage = self.stages[held.id] = Stage(self.lease, held)
                self.tasks.append(asyncio.create_task(self._play(stage)))
            self.turns += 1
            await asyncio.sleep(0.01)

    async def pause(self) -> None:
        """Take nothing more; returns when a fetch that was under way is over."""
        self.slots = 0
        seen = self.turns
        await wait_until(lambda: self.turns > seen + 1, "the worker to have paused")

    async def _play(self, stage: Stage) -> None:
        playing = asyncio.ensure_future(self.script(stage))
        hearing = asyncio.ensure_future(stage.cancelled.wait())
        await asyncio.wait([playing, hearing], return_when=asyncio.FIRST_COMPLETED)
        hearing.cancel()
        if playing.done():
            playing.result()
        else:
            await stop([playing])
            await stage.end(CANCELLED)
        del self.stages[stage.held.id]

    async def _beat(self) -> None:
        while True:
            fields = {"slots": self.slots, "free_slots": self.slots - len(self.stages), "max_model_len": 2048}
            beat = await self.lease.beat(fields, [], LANES, ttl_ms=5_000)
            assert not beat.lost
            await asyncio.sleep(0.5)

    def _hear(self, _channel: str, body: bytes) -> None:
        control = wire.decode(body, wire.Control)
        if control.kind != "cancel":
            return
        self.cancels.append(control.id)
        if control.id in self.stages:
            self.stages[control.id].cancelled.set()


@asynccontextmanager
async def scripted_worker(redis, listener, script: Script = echo, *, model: str = "m", slots: int = 64):
    worker = ScriptedWorker(redis, listener, model, script, slots)
    worker.tasks.append(asyncio.create_task(worker.run()))
    try:
        yield worker
    finally:
        await stop(worker.tasks)
        await worker.lease.leave()
