"""What a gateway refuses, always in OpenAI's envelope: paths, methods, bodies, keys, models."""

import asyncio
import json

import httpx
import pytest

from tests.integration.test_gateway import chat_body, client, gateway, http, worker  # noqa: F401
from tests.support.fleet import Fleet
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

KEY = "SENTINEL-123"


@pytest.fixture
async def fleet(valkey, tmp_path):
    fleet = Fleet(valkey.url, tmp_path)
    yield fleet
    fleet.stop()


def error_of(answer: httpx.Response) -> dict:
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"]
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    return answer.json()["error"]


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "not_found"), ("POST", "/v1/images/generations", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
        ("GET", "/openapi.json", 404, "not_found"), ("GET", "//v1/models", 404, "not_found"),
        ("GET", "/V1/models", 404, "not_found"), ("POST", "/v1/chat/completions/", 404, "not_found"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("PUT", "/v1/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"), ("POST", "/health", 405, "method_not_allowed"),
        ("GET", "/v1/models/no/such", 404, "model_not_found"),
    ],
)  # fmt: skip
async def test_unknown_paths_and_methods(http, method, path, status, code):  # noqa: F811
    answer = await http.request(method, path)

    assert (answer.status_code, error_of(answer)["code"]) == (status, code)
    assert ("allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 10_000, b'{"model": "\\ud800"}', b'{"n": NaN}']
)
async def test_bodies_that_are_no_json_object(http, path, raw):  # noqa: F811
    """B056, B060."""
    answer = await http.post(path, content=raw)

    assert (answer.status_code, error_of(answer)["code"]) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"max_tokens": -1}, "max_tokens", "invalid_value"), ({"n": 0, "stream": True}, "n", "invalid_value"),
        ({"tools": [{}]}, "tools", "unsupported_parameter"),
        ({"service_tier": "gold"}, "service_tier", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"stop": "x" * 257}, "stop", "invalid_value"), ({"stream_options": {}}, "stream_options", "invalid_value"),
        ({"max_tokens": 2**31 - 1}, "max_tokens", "context_length_exceeded"),
        ({"max_completion_tokens": 2048, "max_tokens": 1}, "max_completion_tokens", "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": ""}] * 200, "max_tokens": 1900}, "messages",
         "context_length_exceeded"),
        ({"model": None}, "model", "missing_required_parameter"),
    ],
)  # fmt: skip
async def test_wrong_fields(http, fields, param, code):  # noqa: F811
    """B015, B052."""
    answer = await http.post("/v1/chat/completions", json=chat_body(**fields))

    assert (answer.status_code, error_of(answer)["param"], error_of(answer)["code"]) == (400, param, code)


@pytest.mark.parametrize("model", ["gpt-5", "a{b}", "a b", "m\n", "m" * 5000, "../m"])
async def test_unknown_models(http, model):  # noqa: F811
    answer = await http.post("/v1/chat/completions", json=chat_body(model=model))

    assert (answer.status_code, error_of(answer)["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("value", ["0", "-1", "x", "1.5", "9" * 30, ""])
async def test_a_deadline_that_is_none(http, value):  # noqa: F811
    answer = await http.post("/v1/chat/completions", json=chat_body(), headers={"x-busway-deadline-ms": value})

    assert (answer.status_code, error_of(answer)["param"]) == (400, "x-busway-deadline-ms")


async def test_a_body_beyond_the_limit(http):  # noqa: F811
    """B074: by its announced length, or by what arrives."""

    async def chunks():
        for _ in range(40):
            yield b"x" * 1000

    announced = await http.post("/v1/chat/completions", content=b"x" * 40_000)
    chunked = await http.post("/v1/chat/completions", content=chunks())

    for answer in (announced, chunked):
        assert (answer.status_code, error_of(answer)["code"]) == (413, "request_too_large")


async def test_ignored_fields_are_named_in_a_header(http):  # noqa: F811
    answer = await http.post("/v1/chat/completions", json=chat_body(priority=1, user="u", **{"a\nb": 1, "frob": 2}))

    assert (answer.status_code, answer.headers["x-busway-ignored"]) == (200, "priority,frob")


async def test_request_ids_are_ours_and_a_sane_one_of_the_client_comes_back(http):  # noqa: F811
    """B159."""
    own = await http.get("/health", headers={"x-request-id": "mine", "x-client-request-id": "abc-1"})
    bad = await http.get("/health", headers={"x-client-request-id": "x" * 5000})

    assert own.headers["x-client-request-id"] == "abc-1"
    assert own.headers["x-request-id"] not in ("mine", bad.headers["x-request-id"])
    assert "x-client-request-id" not in bad.headers


async def test_a_client_that_leaves_before_its_body_is_complete_leaves_nothing(gateway, worker):  # noqa: F811
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{")
    await writer.drain()
    writer.close()
    await writer.wait_closed()

    async with gateway.client() as one:
        assert (await one.chat.completions.create(model="m", messages=[{"role": "user", "content": "a"}])).id
    assert "request.failed" not in gateway.process.log.read_text()


async def test_with_keys_every_path_but_the_probes_needs_one(fleet, redis):
    """B150, B162: deny by default, and the key shows up nowhere."""
    gateway = await fleet.gateway(needs_model=False, GATEWAY__API_KEYS=f"other, {KEY}")  # noqa: F811
    paths = [
        "/",
        "/v1/models",
        "//v1/models",
        "/V1/models",
        "/v1/models/",
        "/metrics",
        "/version",
        "/docs",
        "/v1%2Fmodels",
    ]
    async with httpx.AsyncClient(base_url=gateway.url) as http:  # noqa: F811
        for method in ("GET", "HEAD", "OPTIONS", "POST"):
            for path in paths:
                answer = await http.request(method, path)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), (method, path)
        for value in ("Bearer", "Bearer nope", KEY, f"Basic {KEY}", f"Bearer {KEY}x", "Bearer other,"):
            answer = await http.get("/v1/models", headers={"authorization": value})
            assert error_of(answer)["code"] == "invalid_api_key", value
        for path, status in (("/v1/models", 200), ("/metrics", 200), ("/nope", 404)):
            assert (await http.get(path, headers={"authorization": f"Bearer {KEY}"})).status_code == status
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/ready")).status_code == 503, "no worker lives"
        assert KEY not in (await http.get("/metrics", headers={"authorization": f"Bearer {KEY}"})).text

    assert KEY not in gateway.process.log.read_text()


@pytest.mark.parametrize("keys", [",", " ", " , "])
async def test_a_key_list_without_a_key_stops_the_start(fleet, keys):
    """B165."""
    process = fleet.start("gateway", GATEWAY__API_KEYS=keys, GATEWAY__PORT="0")

    assert await asyncio.to_thread(process.child.wait, 30) == 2
    assert process.log.read_text().splitlines() == [
        "gateway: BUSWAY_GATEWAY__API_KEYS is set but holds no key; unset it to let everyone in"
    ]


async def test_a_model_whose_workers_are_gone_is_refused_after_a_grace(fleet, redis):
    gateway = await fleet.gateway(needs_model=False, GATEWAY__ABSENT_GRACE_S="0")  # noqa: F811
    await redis.zadd("bw:models", {"gone": 1})
    await redis.expire("bw:models", 60)
    async with httpx.AsyncClient(base_url=gateway.url) as http:  # noqa: F811

        async def answered(status: int):
            answer = await http.post("/v1/chat/completions", json=chat_body(model="gone"))
            return answer.status_code == status and answer

        answer = await wait_until(lambda: answered(503), "the model to be known")
        listed = (await http.get("/v1/models")).json()

    assert error_of(answer)["code"] == "no_workers"
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert listed == {"object": "list", "data": []}


async def test_one_request_more_than_it_may_hold_is_refused(fleet, redis, valkey):
    gateway = await fleet.gateway(needs_model=False, GATEWAY__MAX_CONNECTIONS="1")  # noqa: F811
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{")
    await writer.drain()

    async with httpx.AsyncClient(base_url=gateway.url) as http:  # noqa: F811
        refused = await http.get("/v1/models")
        while refused.status_code == 200:
            refused = await http.get("/v1/models")
        assert (refused.status_code, error_of(refused)["code"]) == (503, "gateway_full")
        assert refused.headers["retry-after"] == "1"
        assert (await http.get("/health")).status_code == 200
    writer.close()
    await writer.wait_closed()


async def test_a_body_that_does_not_come_frees_its_place(fleet, redis):
    gateway = await fleet.gateway(  # noqa: F811
        needs_model=False, GATEWAY__MAX_CONNECTIONS="1", GATEWAY__BODY_TIMEOUT_S="0.3"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 999\r\n\r\n{")
    await writer.drain()

    head, _, body = (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n\r\n")
    async with httpx.AsyncClient(base_url=gateway.url) as http:  # noqa: F811
        after = await http.get("/v1/models")

    assert head.startswith(b"HTTP/1.1 400 ") and b"connection: close" in head
    assert json.loads(body)["error"]["code"] == "body_timeout"
    assert after.status_code == 200
    writer.close()


async def test_logs_hold_no_prompt(http, gateway):  # noqa: F811
    served, *refused = [
        await http.post("/v1/chat/completions", json=chat_body("a very private thing")),
        await http.post("/v1/chat/completions", content=json.dumps(chat_body("a very private thing"))[:-1]),
        await http.post("/v1/chat/completions", json=chat_body("a very private thing", stop=[""])),
    ]

    def told(answer):
        lines = gateway.process.events("request.finished")
        return next((one for one in lines if one["request_id"] == answer.headers["x-request-id"]), None)

    for answer in (served, *refused):
        await wait_until(lambda answer=answer: told(answer), "the line of each request")
    assert {"lane", "first_token_ms", "tokens", "outcome", "retry_count"} <= told(served).keys()
    assert "private" not in gateway.process.log.read_text()
