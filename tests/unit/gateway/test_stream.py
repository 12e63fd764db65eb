"""An answer as an ASGI response: what it sends, when, and what it does to a client that is deaf or gone."""

import asyncio
import json

import pytest
from msgspec import structs

from gateway import stream as module
from gateway.admission import Admitted
from gateway.context import KEY, Trace
from gateway.follower import Follower, Reader
from gateway.metrics import Metrics
from gateway.openai.dialects import Chat, Heading
from gateway.stream import EventStream, JsonAnswer, Pace
from shared.wire import ErrorInfo, Frame, Outcome, Usage
from tests.support.waiting import wait_until

DONE = Outcome(state="done", reason="stop")
FAILED = Outcome(state="failed", error=ErrorInfo(code="invalid_value", message="no", param="prompt"))


class StubRelay:
    def __init__(self) -> None:
        self.released: list[Follower] = []
        self.given_up: list[str] = []
        self.queue_looks = 0
        self.dropped = 0

    def release(self, follower, _reason) -> None:
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
        admitted = Admitted("r", "interactive", self.followers, self.reader, "default", deadline_s, 30, ahead)
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


async def test_pieces_that_wait_together_leave_together():
    scene = Scene()
    for at, text in enumerate(("a", "b", "c")):
        scene.say(at, text)
    scene.follower.end(DONE)

    await scene.task

    assert len(scene.browser.messages) == 2, "the headers, and everything else"
    assert scene.browser.messages[-1]["more_body"] is False
    assert scene.browser.body.count(b"data: ") == 6
    assert (scene.trace.outcome, scene.trace.fields["tokens"]) == ("stop", 3)


async def test_an_answer_without_text_is_a_whole_stream():
    scene = Scene()
    scene.follower.end(DONE)

    await scene.task

    events = [json.loads(line[6:]) for line in scene.browser.body.decode().split("\n") if line.startswith("data: {")]
    assert [event["choices"][0]["delta"] for event in events] == [{"role": "assistant", "content": ""}, {}]
    assert scene.browser.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_failure_before_any_byte_is_a_status(stream):
    """B015."""
    scene = Scene(stream=stream)
    scene.follower.end(FAILED)

    await scene.task

    assert scene.browser.status == 400
    assert json.loads(scene.browser.body)["error"]["param"] == "prompt"
    headers = dict(scene.browser.messages[0]["headers"])
    assert headers[b"content-length"] == str(len(scene.browser.body)).encode()
    assert headers[b"content-type"] == b"application/json"


async def test_the_hold_ends_with_headers_and_a_comment():
    scene = Scene(hold_s=0.01)

    await wait_until(lambda: scene.browser.body, "the first bytes")
    assert (scene.browser.status, scene.browser.body) == (200, b": queued\n\n")

    scene.follower.end(FAILED)
    await scene.task
    assert b'"error"' in scene.browser.body and scene.browser.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_ends_the_answer(stream):
    """B034."""
    scene = Scene(stream=stream)
    await asyncio.sleep(0)

    scene.browser.left.set()
    await scene.task

    assert scene.relay.released == [scene.follower]
    assert (scene.browser.messages, scene.trace.outcome) == ([], "cancelled")


@pytest.mark.parametrize("stream", [True, False])
async def test_the_deadline_is_kept_even_if_nobody_says_anything(stream):
    scene = Scene(stream=stream, deadline_s=0.01)

    await scene.task

    assert (scene.relay.given_up, scene.browser.status) == (["deadline"], 504)
    assert (b"x-should-retry", b"false") in scene.browser.messages[0]["headers"]


async def test_a_task_that_is_cancelled_still_releases_its_request():
    scene = Scene()
    await asyncio.sleep(0)

    scene.task.cancel()
    await asyncio.gather(scene.task, return_exceptions=True)

    assert scene.relay.released == [scene.follower]


async def test_a_deaf_client_is_cut_off_when_time_is_up(monkeypatch):
    monkeypatch.setattr(module, "STALL_S", 0.02)
    scene = Scene(keepalive_s=0.01)
    scene.say(0, "a")
    await wait_until(lambda: scene.browser.body, "the first text")

    scene.browser.reads.clear()
    scene.say(1, "b")
    await scene.task

    assert (scene.browser.aborted, scene.relay.dropped) == (1, 1)
    assert scene.relay.released == [scene.follower]


async def test_a_deaf_client_is_cut_off_when_too_much_waits_for_it():
    scene = Scene()
    scene.say(0, "a")
    await wait_until(lambda: scene.browser.body, "the first text")

    scene.browser.reads.clear()
    scene.say(1, "b")
    await asyncio.sleep(0)
    await wait_until(lambda: scene.reader.writing, "the writer to be stuck")
    scene.say(2, "x" * 300_000)
    await scene.task

    assert (scene.browser.aborted, scene.relay.dropped) == (1, 1)


async def test_a_silent_stream_is_kept_alive():
    scene = Scene(keepalive_s=0.01)
    scene.say(0, "a")

    await wait_until(lambda: scene.browser.body.count(b": ping\n\n") > 2, "pings")
    scene.follower.end(DONE)
    await scene.task

    assert scene.browser.body.count(b"data: ") == 4
    assert len(scene.answer._timers) == 4, "deadline, queue, hold, and one for all beats"


@pytest.mark.parametrize("ahead", [0, 3, None])
async def test_the_log_says_how_many_were_ahead_if_that_is_known(ahead):
    scene = Scene(ahead=ahead)
    scene.follower.end(DONE)

    await scene.task

    assert scene.trace.fields.get("ahead", "left out") == ("left out" if ahead is None else ahead)


# Several choices -----------------------------------------------------------------------------------


async def test_choices_are_interleaved_and_each_ends_once():
    """B027, B069."""
    scene = Scene(choices=3)
    scene.say(0, "a", 1)
    scene.say(0, "b", 0)
    scene.followers[1].end(DONE)
    await wait_until(lambda: scene.browser.body, "the first text")
    scene.say(0, "c", 2)
    scene.say(1, "d", 0)
    scene.followers[0].end(DONE)
    scene.followers[2].end(DONE)

    await scene.task

    seen = {0: "", 1: "", 2: ""}
    for event in scene.events():
        [choice] = event["choices"]
        delta = choice["delta"]
        seen[choice["index"]] += (
            "<" * ("role" in delta) + delta.get("content", "") + ">" * bool(choice["finish_reason"])
        )
    assert seen == {0: "<bd>", 1: "<a>", 2: "<c>"}
    assert scene.browser.body.endswith(b"data: [DONE]\n\n")
    assert scene.trace.fields["tokens"] == 4


async def test_whole_choices_stand_in_order_and_a_prompt_counts_once():
    scene, counted = (
        Scene(stream=False, choices=2),
        structs.replace(DONE, usage=Usage(prompt_tokens=3, completion_tokens=5)),
    )
    scene.say(0, "second", 1)
    scene.followers[1].end(counted)
    scene.say(0, "first", 0)
    scene.followers[0].end(counted)

    await scene.task

    body = json.loads(scene.browser.body)
    assert [(one["index"], one["message"]["content"]) for one in body["choices"]] == [(0, "first"), (1, "second")]
    assert (body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]) == (3, 10)


@pytest.mark.parametrize("stream", [True, False])
async def test_one_choice_that_fails_fails_the_answer_and_releases_all(stream):
    scene = Scene(stream=stream, choices=3)
    scene.followers[2].end(DONE)
    scene.followers[1].end(FAILED)

    await scene.task

    assert scene.browser.status == 400
    assert scene.relay.released == list(scene.followers)


async def test_a_choice_that_fails_in_mid_stream_is_one_error_event():
    scene = Scene(choices=2)
    scene.say(0, "a", 0)
    await wait_until(lambda: scene.browser.body, "the first text")
    scene.followers[1].end(FAILED)

    await scene.task

    assert [event for event in scene.events() if "error" in event] == scene.events()[-1:]
    assert scene.browser.body.count(b"[DONE]") == 1
