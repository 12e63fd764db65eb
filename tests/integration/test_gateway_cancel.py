"""Who leaves takes an unfinished request along, once; who stays gets everything, whatever is lost on the way."""

import asyncio
import json
import socket
import struct

import httpx
import pytest

from tests.integration.test_gateway import ASK, chat_body, client, gateway, http, stream_text, worker  # noqa: F401
from tests.support.waiting import wait_until
from tests.unit.gateway.scripted import Stage, done

pytestmark = pytest.mark.integration


async def count_until_cancelled(stage: Stage):
    while True:
        await stage.say("x")
        await asyncio.sleep(0.01)


async def silent_until_cancelled(stage: Stage):
    await asyncio.Event().wait()


def request_bytes(**fields) -> bytes:
    body = json.dumps(chat_body(**fields)).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class RawClient:
    """A client that is just a socket, and can leave in every way a socket can."""

    def __init__(self, port: int, **fields) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.sendall(request_bytes(**fields))

    def close(self) -> None:
        self._socket.close()

    def reset(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def half_close(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)


@pytest.fixture
def raw_client(gateway):  # noqa: F811
    clients = []

    def connect(**fields) -> RawClient:
        clients.append(RawClient(gateway.port, **fields))
        return clients[-1]

    yield connect
    for one in clients:
        one.close()


@pytest.mark.parametrize("script", [count_until_cancelled, silent_until_cancelled])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("way", [RawClient.close, RawClient.reset, RawClient.half_close])
async def test_a_client_that_leaves_cancels_its_request_once(worker, raw_client, way, stream, script):  # noqa: F811
    """B034, B036, B038: each way of leaving, streaming or not, talking or silent."""
    worker.script = script
    leaver = raw_client(stream=stream)
    await wait_until(lambda: worker.stages, "the worker to start")

    way(leaver)

    await wait_until(lambda: not worker.stages, "the worker to stop", timeout_s=5)
    assert len(worker.cancels) == 1


async def test_every_early_close_is_one_cancel(gateway, worker, raw_client):  # noqa: F811
    """B034, B035: and nothing of the requests stays."""
    worker.script = silent_until_cancelled
    before = await gateway.metric("busway_cancels_sent_total")
    leavers = [raw_client(stream=number % 2 == 0) for number in range(20)]
    await wait_until(lambda: len(worker.stages) == 20, "the worker to start all")

    for leaver in leavers:
        leaver.close()

    await wait_until(lambda: not worker.stages, "the worker to stop", timeout_s=5)
    assert (len(worker.cancels), len(set(worker.cancels))) == (20, 20)
    assert await gateway.metric("busway_cancels_sent_total") == before + 20
    assert await gateway.metric("busway_requests_in_flight") == 0


async def test_the_real_client_cancels_by_closing_its_stream(client, worker):  # noqa: F811
    """B036."""
    worker.script = count_until_cancelled
    stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
    await anext(aiter(stream))

    await stream.close()

    await wait_until(lambda: not worker.stages, "the worker to stop", timeout_s=5)
    assert len(worker.cancels) == 1


async def test_finished_requests_are_never_cancelled(client, gateway, worker):  # noqa: F811
    """B035: a cancel for each unfinished one, none for the others."""
    before = await gateway.metric("busway_cancels_sent_total")

    texts = await asyncio.gather(*(stream_text(client) for _ in range(100)))

    assert texts == ["one two three"] * 100
    assert worker.cancels == []
    assert await gateway.metric("busway_cancels_sent_total") == before


async def test_a_client_that_leaves_the_queue_is_never_run(gateway, worker, redis, raw_client):  # noqa: F811
    """B039, B042."""
    await worker.pause()
    leavers = [raw_client(stream=number % 2 == 0) for number in range(10)]
    stays = asyncio.create_task(ask(gateway))
    stream = worker.lease.keys.stream("interactive")
    await wait_until(lambda: has_length(redis, stream, 11), "eleven requests to wait")

    for leaver in leavers:
        leaver.close()

    await wait_until(lambda: has_length(redis, stream, 1), "ten to leave the queue", timeout_s=5)
    worker.slots = 4
    assert (await stays).status_code == 200
    assert worker.started == 1


async def ask(gateway) -> httpx.Response:  # noqa: F811
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as one:
        return await one.post("/v1/chat/completions", json=chat_body())


async def has_length(redis, stream: str, length: int) -> bool:
    return await redis.xlen(stream) == length


async def test_a_cut_subscription_loses_nothing(client, gateway, worker, redis):  # noqa: F811
    """Frames that were published while nobody listened are read from the log."""
    counted = 60

    async def script(stage: Stage):
        for number in range(counted):
            await stage.say(f"{number} ")
            await asyncio.sleep(0.02)
        await stage.end()

    worker.script = script
    before = await gateway.metric("busway_stream_resubscribes_total")
    streams = asyncio.gather(*(stream_text(client) for _ in range(20)))
    for _ in range(4):
        await asyncio.sleep(0.2)
        await redis.client_kill_filter(_type="pubsub")

    texts = await streams

    assert texts == ["".join(f"{number} " for number in range(counted))] * 20
    assert await gateway.metric("busway_stream_resubscribes_total") > before


async def test_an_end_that_nobody_heard_is_found(client, worker, redis):  # noqa: F811
    """The subscription is cut just before the end: the sweep or the resubscription finds it."""

    async def script(stage: Stage):
        await stage.say("a")
        await redis.client_kill_filter(_type="pubsub")
        await stage.say("b")
        await stage.end(done(2))

    worker.script = script

    assert await stream_text(client) == "ab"


async def test_a_request_that_redis_forgot_is_told_so(http, worker, redis):  # noqa: F811
    """FLUSHALL in the middle: within seconds an error that may be repeated, not silence until the deadline."""

    async def script(stage: Stage):
        await redis.flushall()

    worker.script = script
    answer = await http.post("/v1/chat/completions", json=chat_body())

    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "request_lost")


async def test_a_client_that_does_not_read_is_dropped(gateway, worker, raw_client):  # noqa: F811
    """Its request is cancelled, its connection cut; nobody else waits for it."""
    piece = "x" * 20_000

    async def script(stage: Stage):
        while True:
            await stage.say(piece)
            await asyncio.sleep(0)

    worker.script = script
    before = await gateway.metric("busway_stream_dropped_total")
    raw_client(stream=True)

    await wait_until(lambda: worker.started and not worker.stages, "the request to be cancelled", timeout_s=30)

    assert await gateway.metric("busway_stream_dropped_total") == before + 1
    assert len(worker.cancels) == 1
