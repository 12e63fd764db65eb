"""TaskEngine: an engine over coroutines, for what brings an event loop of its own."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from shared.errors import InvalidRequest
from shared.wire import GenerateRequest, Outcome
from worker.engine import Ended, Event, Progressed, Work
from worker.engines.limits import refusal

STEP_WAIT_S = 0.02
CLOSE_S = 10.0

T = TypeVar("T")


class _Held:
    """One request, and the task that answers it."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.counted = 0
        """Tokens that `spent` has of it."""
        self.future: Future[None] | None = None


class TaskEngine(ABC):
    """Each request is a task on an event loop in a thread of its own. A step waits a moment for what they tell.

    A subclass says what it refuses and how it answers. Its coroutines run in the loop's thread.
    """

    def __init__(self, model: str, *, slots: int, max_model_len: int) -> None:
        self.model = model
        self.slots = slots
        self.max_model_len = max_model_len
        self.spent: Counter[str] = Counter()
        self._running: dict[str, _Held] = {}
        self._refused: dict[str, Outcome] = {}
        self._told: SimpleQueue[tuple[_Held, Event | Exception]] = SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine-loop", daemon=True)
        self._thread.start()

    @abstractmethod
    def refuse(self, request: GenerateRequest) -> None:
        """InvalidRequest if the request cannot be served, as far as that can be seen at once."""

    @abstractmethod
    def answer(self, work: Work) -> AsyncGenerator[Event, None]:
        """The request's events; the last one is `Ended` or `Returned`. Closed early if the request is cancelled."""

    @abstractmethod
    def count(self, event: Progressed) -> int:
        """Tokens in it."""

    async def shut(self) -> None:  # noqa: B027 - a subclass that holds nothing has nothing to let go
        """Let go of what the subclass holds; nothing runs any more."""

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it in the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def free_slots(self) -> int:
        return self.slots - len(self._running) - len(self._refused)

    def add(self, work: Work) -> None:
        assert work.id not in self._running, "the id is held already"
        assert work.id not in self._refused, "the id is held already"
        assert self.free_slots > 0, "add() without a free slot"
        try:
            self.refuse(work.request)
        except InvalidRequest as error:
            self._refused[work.id] = refusal(error)
            return
        held = self._running[work.id] = _Held(work)
        held.future = asyncio.run_coroutine_threadsafe(self._run(held), self._loop)

    def cancel(self, request_id: str) -> None:
        self._refused.pop(request_id, None)
        held = self._running.pop(request_id, None)
        if held is not None and held.future is not None:
            held.future.cancel()

    def step(self) -> Sequence[Event]:
        events: list[Event] = [Ended(request_id, outcome) for request_id, outcome in self._refused.items()]
        self._refused.clear()
        if not self._running:
            return events
        wait_s = 0.0 if events else STEP_WAIT_S
        while (told := self._next(wait_s)) is not None:
            wait_s = 0.0
            held, event = told
            if self._running.get(held.work.id) is not held:
                continue  # cancelled since
            if isinstance(event, Exception):
                raise event
            self._account(held, event)
            if not isinstance(event, Progressed):
                del self._running[event.id]
            events.append(event)
        return events

    def close(self) -> None:
        self._running.clear()
        self._refused.clear()
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop).result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        self._loop.close()

    def _next(self, wait_s: float) -> tuple[_Held, Event | Exception] | None:
        try:
            return self._told.get(timeout=wait_s) if wait_s else self._told.get_nowait()
        except Empty:
            return None

    def _account(self, held: _Held, event: Event) -> None:
        if isinstance(event, Progressed):
            tokens = self.count(event)
        elif isinstance(event, Ended) and event.outcome.usage is not None:
            usage = event.outcome.usage
            tokens = max(0, usage.prompt_tokens + usage.completion_tokens - held.counted)
        else:
            return
        held.counted += tokens
        self.spent[held.work.lane] += tokens

    async def _run(self, held: _Held) -> None:
        try:
            async with aclosing(self.answer(held.work)) as events:
                async for event in events:
                    self._told.put((held, event))
        except Exception as error:  # noqa: BLE001 - raised by the next step, in the engine's thread
            self._told.put((held, error))

    async def _finish(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.shut()
