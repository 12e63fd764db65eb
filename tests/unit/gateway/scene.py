"""An answer and its client, as a stage for tests."""

import asyncio
import json

from gateway.admission import Admitted
from gateway.answer import JsonAnswer
from gateway.context import KEY, Trace
from gateway.follower import Follower, Reader
from gateway.metrics import Metrics
from gateway.openai.dialects import Chat, Heading
from gateway.stream import EventStream, Pace
from shared.broker import Queued
from shared.wire import ErrorInfo, Frame, Meta, Outcome

DONE = Outcome(state="done", reason="stop")
FAILED = Outcome(state="failed", error=ErrorInfo(code="invalid_value", message="no", param="prompt"))


class StubRelay:
    def __init__(self) -> None:
        self.released: list[Follower] = []
        self.given_up: list[str] = []
        self.queue_looks = 0
        self.dropped = 0

    def release(self, follower, _reason, *, grace_s=0.0) -> None:
        if follower not in self.released:  # the real one knows whom it follows
            self.released.append(follower)

    def give_up(self, follower, outcome, reason) -> None:
        self.given_up.append(reason)
        follower.end(outcome)

    def give_up_if_queued(self, _follower) -> None:
        self.queue_looks += 1

    def count_dropped(self) -> None:
        self.dropped += 1


class Browser:
    """The other end: keeps what it is sent, and may stop reading or leave."""

    def __init__(self) -> None:
        self.messages: list[dict] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.left = asyncio.Event()
        self.aborted = 0

    async def send(self, message) -> None:
        await self.reads.wait()
        self.messages.append(message)

    async def receive(self):
        await self.left.wait()
        return {"type": "http.disconnect"}

    def abort(self) -> None:
        self.aborted += 1
        self.left.set()
        self.reads.set()

    @property
    def status(self) -> int | None:
        return self.messages[0]["status"] if self.messages else None

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


class Scene:
    def __init__(
        self,
        *,
        stream: bool = True,
        hold_s: float = 5,
        keepalive_s: float = 5,
        deadline_s: float = 60,
        ahead: int | None = 0,
        choices: int = 1,
    ) -> None:
        self.reader, self.relay, self.browser = Reader(is_patient=not stream), StubRelay(), Browser()
        names = ["r", *(f"r-{number}" for number in range(1, choices))]
        self.followers = tuple(Follower(name, "m", "interactive", self.reader) for name in names)
        self.follower = self.followers[0]
        admitted = Admitted(
            id="r",
            lane="interactive",
            followers=self.followers,
            reader=self.reader,
            meta=Meta(endpoint="chat.completions", created=1, tier="default", choices_per_prompt=choices),
            deadline_s=deadline_s,
            queue_timeout_s=30,
            queued=Queued(ahead),
        )
        parts = (
            admitted,
            Chat(Heading("r", 1, "m", "default", choices_per_prompt=choices), choices),
            self.relay,
            Metrics().meters("interactive", "m"),
        )
        self.answer = EventStream(*parts, Pace(hold_s, keepalive_s)) if stream else JsonAnswer(*parts)
        self.trace = Trace("r", started=0.0, abort=self.browser.abort)
        scope = {"type": "http", KEY: self.trace}
        self.task = asyncio.create_task(self.answer(scope, self.browser.receive, self.browser.send))

    def say(self, at: int, text: str, choice: int = 0) -> None:
        self.followers[choice].offer(Frame(id="r", attempt=1, at=at, ids=(at,), text=text))

    def events(self) -> list[dict]:
        lines = self.browser.body.decode().split("\n")
        return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
