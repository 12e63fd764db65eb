"""A real gateway process, the real client, a worker that says what the test tells it to."""

import asyncio
import json

import httpx
import openai
import pytest

from shared.connection import connect_subscriber
from shared.sections import RedisSettings
from tests.support.fleet import Fleet, Gateway, free_port
from tests.support.waiting import wait_until
from tests.unit.gateway.scripted import Stage, failed, scripted_worker

pytestmark = pytest.mark.integration

LINE_ENDS = "a\u2028b\u2029c\u0085d\u000be\u000cf\ng"
ASK = [{"role": "user", "content": "one two three"}]


@pytest.fixture(scope="module")
def gateway(valkey, tmp_path_factory):
    """One gateway for the module, with short clocks and a small bulk lane."""
    fleet = Fleet(valkey.url, tmp_path_factory.mktemp("gateway"))
    port = free_port()
    process = fleet.start(
        "gateway",
        GATEWAY__PORT=str(port),
        GATEWAY__HEADER_HOLD_S="0.3",
        GATEWAY__KEEPALIVE_S="0.2",
        GATEWAY__DISCONNECT_GRACE_S="0",
        GATEWAY__MAX_BODY_BYTES="20000",
        LANES__BULK__MAX_QUEUED="2",
        LANES__BULK__QUEUE_TIMEOUT_S="1",
    )
    yield Gateway(process, port)
    fleet.stop()


@pytest.fixture
async def worker(gateway, redis, valkey):
    listener = connect_subscriber(RedisSettings(url=valkey.url))
    async with scripted_worker(redis, listener) as worker, httpx.AsyncClient() as http:

        async def ready():
            assert gateway.process.status is None, gateway.process.log.read_text()
            try:
                models = (await http.get(f"{gateway.url}/v1/models")).json().get("data", [])
            except httpx.TransportError:
                return False
            return models and (await http.get(f"{gateway.url}/ready")).status_code == 200

        await wait_until(ready, "the gateway to see the worker")
        yield worker
    await listener.aclose()


@pytest.fixture
async def client(gateway, worker):
    async with gateway.client() as client:
        yield client


@pytest.fixture
async def http(gateway, worker):
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        yield http


def chat_body(content="one two three", **fields) -> dict:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **fields}


def data(text: str) -> list:
    """The events of a stream; comments are none."""
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) if line != "[DONE]" else line for line in lines]


async def test_a_chat_is_answered_whole_and_as_a_stream(client):
    """B019: the same answer and the same usage both ways."""
    whole = await client.chat.completions.create(model="m", messages=ASK)
    stream = await client.chat.completions.create(
        model="m", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]

    assert whole.choices[0].message.content == "one two three"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "one two three"
    assert whole.usage == chunks[-1].usage
    assert (whole.service_tier, whole.choices[0].finish_reason) == ("default", "stop")
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_completion_is_answered_whole_and_as_a_stream(client):
    whole = await client.completions.create(model="m", prompt="one two three")
    stream = await client.completions.create(model="m", prompt="one two three", stream=True)

    assert whole.choices[0].text == "one two three"
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "one two three"


async def test_text_that_breaks_lines_travels_unharmed(http, client):
    """B033: through Redis, the event and the client."""
    raw = (await http.post("/v1/chat/completions", json=chat_body(LINE_ENDS, stream=True))).content
    whole = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": LINE_ENDS}])

    assert raw.decode().splitlines() == raw.decode().split("\n")[:-1]
    texts = [event["choices"][0]["delta"].get("content", "") for event in data(raw.decode())[:-1]]
    assert "".join(texts) == LINE_ENDS == whole.choices[0].message.content


async def test_a_stream_says_what_proxies_need_to_know(http):
    """B032."""
    answer = await http.post("/v1/chat/completions", json=chat_body(stream=True))

    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in answer.headers
    assert (answer.headers["x-busway-lane"], bool(answer.headers["x-request-id"])) == ("interactive", True)


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_a_stream_ends_with_done_and_the_end_of_the_body(gateway, worker, connection):
    """B016: on a raw socket, [DONE], the last chunk, and the end of the connection if that was asked for."""
    body = json.dumps(chat_body(stream=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: {connection}\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(head.encode() + body)

    raw = await asyncio.wait_for(reader.readuntil(b"data: [DONE]\n\n"), 20)
    end = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 1)

    assert raw.startswith(b"HTTP/1.1 200 OK\r\n")
    assert end == b"\r\n0\r\n\r\n"
    if connection == "close":
        assert await asyncio.wait_for(reader.read(), 1) == b""
    writer.close()


@pytest.mark.parametrize(
    ("options", "expected"), [(None, 0), ({"include_usage": False}, 0), ({"include_usage": True}, 1), ({}, 0)]
)
async def test_usage_comes_only_to_those_who_asked(http, options, expected):
    """B011, B013."""
    answer = await http.post("/v1/chat/completions", json=chat_body(stream=True, stream_options=options))

    *chunks, last = data(answer.text)
    assert last == "[DONE]"
    assert sum(chunk["choices"] == [] for chunk in chunks) == expected


async def test_pieces_without_text_make_no_event_but_count(http, worker):
    async def script(stage: Stage):
        await stage.say("", "", "é", "")
        await stage.end()

    worker.script = script
    answer = await http.post(
        "/v1/chat/completions", json=chat_body(stream=True, stream_options={"include_usage": True})
    )

    *chunks, usage, _ = data(answer.text)
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks] == ["", "é", None]
    assert usage["usage"]["completion_tokens"] == 4


async def test_a_silent_wait_is_filled_with_comments_that_no_client_stumbles_over(http, client, worker):
    """B020, B021: every data line is JSON while the request waits and while it is silent in the middle."""
    go = asyncio.Event()

    async def script(stage: Stage):
        await go.wait()
        await stage.say("a")
        await asyncio.sleep(0.5)
        await stage.say("b")
        await stage.end()

    worker.script = script
    async with http.stream("POST", "/v1/chat/completions", json=chat_body(stream=True)) as answer:
        assert answer.status_code == 200, "the headers came before the first token"
        lines = answer.aiter_lines()
        first = [await anext(lines) for _ in range(4)]
        reading = asyncio.create_task(stream_text(client))
        go.set()
        rest = [line async for line in lines]

    assert first == [": queued", "", ": ping", ""]
    assert ": ping" in rest
    assert data("\n".join(rest))[-1] == "[DONE]"
    assert await reading == "ab"


async def stream_text(client) -> str:
    stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


@pytest.mark.parametrize(
    ("code", "status"),
    [("context_length_exceeded", 400), ("invalid_value", 400), ("worker_lost", 500), ("TypeError", 500)],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_token_has_a_status(http, worker, code, status, stream):
    """B015, B066."""
    worker.script = lambda stage: stage.end(failed(code))

    answer = await http.post("/v1/chat/completions", json=chat_body(stream=stream))

    assert answer.status_code == status
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert answer.headers["content-type"] == "application/json"


async def test_a_failure_after_the_first_token_is_an_event_that_names_the_request(http, client, gateway, worker):
    """B015, B017."""

    async def script(stage: Stage):
        await stage.say("a", "b")
        await asyncio.sleep(0.1)
        await stage.end(failed("worker_lost", "Gone."))

    worker.script = script
    before = await gateway.metric("busway_requests_total", outcome="worker_lost")
    answer = await http.post("/v1/chat/completions", json=chat_body(stream=True))
    *_, error, last = data(answer.text)

    assert (answer.status_code, last) == (200, "[DONE]")
    assert error["error"]["code"] == "worker_lost"
    assert await gateway.metric("busway_requests_total", outcome="worker_lost") == before + 1
    assert answer.headers["x-request-id"] in error["error"]["message"]
    with pytest.raises(openai.APIError) as caught:
        await stream_text(client)
    assert caught.value.code == "worker_lost"


async def test_a_failure_after_the_hold_and_before_any_token_is_an_event(http, worker):
    async def script(stage: Stage):
        await asyncio.sleep(0.6)
        await stage.end(failed("internal_error"))

    worker.script = script
    answer = await http.post("/v1/chat/completions", json=chat_body(stream=True))

    assert answer.text.startswith(": queued\n\n")
    error, last = data(answer.text)
    assert (error["error"]["code"], last) == ("internal_error", "[DONE]")


async def test_the_end_of_a_request_frees_everything_it_took_in_redis(client, worker, redis):
    """B043: one channel a process, whatever the number of requests."""
    for _ in range(5):
        await stream_text(client)

    assert len(await redis.pubsub_channels("bw:gw:*")) == 1
    assert await depth(worker, "interactive", 0)


async def depth(worker, lane: str, expected: int) -> bool:
    return await worker.lease.redis.xlen(worker.lease.keys.stream(lane)) == expected
