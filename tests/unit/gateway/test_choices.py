"""Several choices in one answer."""

import json

import pytest
from msgspec import structs

from shared.wire import Usage
from tests.support.waiting import wait_until
from tests.unit.gateway.scene import DONE, FAILED, Scene


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
