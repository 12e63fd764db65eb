"""An answer as an ASGI response: what it sends, when, and what it does to a client that is deaf or gone."""

import asyncio
import json

import pytest

from gateway import stream as module
from tests.support.waiting import wait_until
from tests.unit.gateway.scene import DONE, FAILED, Scene


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
