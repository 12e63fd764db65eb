"""Lanes and deadlines: which lane a request takes, when it is full, and how long anything may last."""

import asyncio

import pytest

from tests.integration.test_gateway import chat_body, data, depth, gateway, http, worker  # noqa: F401
from tests.support.waiting import wait_until
from tests.unit.gateway.scripted import Stage

pytestmark = pytest.mark.integration


async def hang(stage: Stage):
    await stage.say("a")
    await asyncio.Event().wait()


async def test_an_open_stream_ends_at_its_deadline(http, worker):  # noqa: F811
    worker.script = hang
    answer = await http.post(
        "/v1/chat/completions", json=chat_body(stream=True), headers={"x-busway-deadline-ms": "600"}
    )

    *_, error, last = data(answer.text)
    assert (error["error"]["code"], last) == ("deadline_exceeded", "[DONE]")
    await wait_until(lambda: len(worker.cancels) == 1 and not worker.stages, "the worker to stop")


@pytest.mark.parametrize("headers", [{"x-busway-deadline-ms": "300"}, {"x-stainless-read-timeout": "0.3"}])
async def test_a_silent_wait_ends_at_its_deadline_with_a_status_that_is_not_repeated(http, worker, headers):  # noqa: F811
    worker.script = hang
    answer = await http.post("/v1/chat/completions", json=chat_body(), headers=headers)

    assert (answer.status_code, answer.headers["x-should-retry"]) == (504, "false")
    assert answer.json()["error"]["code"] == "deadline_exceeded"


async def test_a_request_that_no_worker_takes_ends_at_its_queue_timeout(http, worker):  # noqa: F811
    await worker.pause()
    answer = await http.post("/v1/chat/completions", json=chat_body(service_tier="flex"))

    assert (answer.status_code, answer.headers["x-should-retry"]) == (504, "false")
    await wait_until(lambda: depth(worker, "bulk", 0), "the request to leave the queue")
    assert (worker.started, worker.cancels) == (0, [])


async def test_a_full_lane_refuses_with_a_time_to_come_back(http, worker):  # noqa: F811
    await worker.pause()
    waiting = [
        asyncio.create_task(http.post("/v1/chat/completions", json=chat_body(service_tier="bulk"))) for _ in range(2)
    ]
    await wait_until(lambda: depth(worker, "bulk", 2), "two requests to wait")

    answer = await http.post("/v1/chat/completions", json=chat_body(service_tier="bulk", stream=True))

    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "lane_full")
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    await asyncio.gather(*waiting)


@pytest.mark.parametrize(
    ("tier", "lane", "said"),
    [
        ("auto", "interactive", "default"), ("default", "interactive", "default"),
        ("priority", "interactive", "default"),
        ("flex", "bulk", "flex"), ("bulk", "bulk", "flex"), ("interactive", "interactive", "default"),
    ],
)  # fmt: skip
async def test_the_service_tier_selects_the_lane_and_says_which_was_used(http, tier, lane, said):  # noqa: F811
    answer = await http.post("/v1/chat/completions", json=chat_body(service_tier=tier))

    assert (answer.headers["x-busway-lane"], answer.json()["service_tier"]) == (lane, said)
