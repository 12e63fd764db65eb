"""A gateway's start and stop, with and without Redis, alone and as several processes behind one port."""

import asyncio
import os
import signal
import socket
import sys

import httpx
import pytest

from shared.cli.processes import spawn, stop
from shared.cli.valkey import Valkey
from shared.connection import connect, connect_subscriber
from shared.sections import RedisSettings
from tests.integration.test_gateway import ASK, chat_body, data
from tests.support.fleet import ROOT, Fleet, free_port
from tests.support.waiting import wait_until
from tests.unit.gateway.scripted import Stage, scripted_worker

pytestmark = pytest.mark.integration


@pytest.fixture
async def fleet(valkey, tmp_path):
    fleet = Fleet(valkey.url, tmp_path)
    yield fleet
    fleet.stop()


@pytest.fixture
async def worker(redis, valkey):
    listener = connect_subscriber(RedisSettings(url=valkey.url))
    async with scripted_worker(redis, listener) as worker:
        yield worker
    await listener.aclose()


def slow(go: asyncio.Event):
    async def script(stage: Stage):
        await stage.say("a")
        await go.wait()
        await stage.say("b")
        await stage.end()

    return script


async def open_stream(gateway) -> asyncio.Task:
    client = gateway.client()
    stream = await client.chat.completions.create(model="m", messages=ASK, stream=True)
    first = await anext(aiter(stream))
    assert first.choices[0].delta.role == "assistant"

    async def rest():
        async with client:
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    return asyncio.create_task(rest())


async def test_a_stop_lets_open_streams_end_and_refuses_new_ones(fleet, worker):
    """B132."""
    go = asyncio.Event()
    worker.script = slow(go)
    gateway = await fleet.gateway()
    reading = await open_stream(gateway)

    gateway.process.signal(signal.SIGTERM)
    await wait_until(lambda: refuses(gateway.port), "the port to be closed")
    go.set()

    assert await reading == "ab"
    assert await asyncio.to_thread(gateway.process.child.wait, 20) == 0
    assert worker.cancels == []


async def refuses(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True
    writer.close()
    return False


async def test_what_outlasts_the_drain_gets_an_error_and_only_a_stream_can_be_asked_for_again(fleet, worker):
    """B132. Who waited for a whole answer does not know its name, so nobody will come back for it."""
    worker.script = slow(asyncio.Event())
    gateway = await fleet.gateway(GATEWAY__DRAIN_S="0.5")
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        asking = [
            asyncio.create_task(http.post("/v1/chat/completions", json=chat_body(stream=stream)))
            for stream in (True, False)
        ]
        await wait_until(lambda: len(worker.stages) == 2, "the worker to start both")

        gateway.process.signal(signal.SIGTERM)
        streamed, whole = await asyncio.gather(*asking)

    *_, error, last = data(streamed.text)
    assert (error["error"]["code"], last) == ("draining", "[DONE]")
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "draining")
    assert await asyncio.to_thread(gateway.process.child.wait, 20) == 0
    await wait_until(lambda: set(worker.stages) == {streamed.headers["x-request-id"]}, "the other to be cancelled")


async def test_a_second_signal_forces(fleet, worker):
    worker.script = slow(asyncio.Event())
    gateway = await fleet.gateway()
    reading = await open_stream(gateway)

    gateway.process.signal(signal.SIGTERM)
    await wait_until(lambda: refuses(gateway.port), "the drain to begin")
    gateway.process.signal(signal.SIGTERM)

    await asyncio.to_thread(gateway.process.child.wait, 10)
    with pytest.raises(Exception, match=r"peer closed|incomplete|disconnected|Connection"):
        await reading


async def test_a_gateway_starts_lives_and_recovers_without_redis(tmp_path):
    server = Valkey(tmp_path / "valkey")
    fleet = Fleet(server.url, tmp_path)
    try:
        gateway = await fleet.gateway(needs_model=False)
        async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
            ready = await http.get("/ready")
            asked = await http.post("/v1/chat/completions", json=chat_body())
            server.start()
            settings = RedisSettings(url=server.url)
            redis, listener = connect(settings), connect_subscriber(settings)
            async with scripted_worker(redis, listener):
                await wait_until(lambda: is_ready(http), "the gateway to find Redis and the worker")
                served = await http.post("/v1/chat/completions", json=chat_body())
            await redis.aclose()
            await listener.aclose()
            server.kill()
            await wait_until(lambda: is_not_ready(http), "the gateway to miss Redis")
            alive = await http.get("/health")
            missing = await http.post("/v1/chat/completions", json=chat_body())
            await wait_until(lambda: len(details(gateway)) == 2, "the reasons in the log")
    finally:
        fleet.stop()
        server.stop()

    assert (ready.status_code, ready.json()["problems"]) == (503, ["Redis does not answer"])
    for answer in (asked, missing):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "redis_unavailable")
        assert answer.headers["retry-after"] == "1"
        assert "valkey" not in answer.text, "where Redis is, and what it says, is for the log"
    assert all("Redis" in detail for detail in details(gateway))
    assert (served.status_code, alive.status_code) == (200, 200)


def details(gateway) -> list[str]:
    """What the log says of requests that were refused with fewer words."""
    return [one["detail"] for one in gateway.process.events("request.finished") if "detail" in one]


async def is_ready(http) -> bool:
    return (await http.get("/ready")).status_code == 200


async def is_not_ready(http) -> bool:
    return (await http.get("/ready")).status_code == 503


@pytest.mark.parametrize("variable", [("BUSWAY_GATEWAY__PROT", "1"), ("BUSWAY_GATEWAY__PORT", "x")])
async def test_wrong_settings_are_one_line_and_status_2(fleet, variable):
    fleet._env[variable[0]] = variable[1]

    process = fleet.start("gateway")

    assert await asyncio.to_thread(process.child.wait, 30) == 2
    assert len(process.log.read_text().splitlines()) == 1
    assert variable[0] in process.log.read_text()


async def test_a_port_that_is_taken_is_one_line_and_status_2(fleet):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = fleet.start("gateway", GATEWAY__PORT=str(taken.getsockname()[1]))

        assert await asyncio.to_thread(process.child.wait, 30) == 2
    assert "cannot listen on 127.0.0.1" in process.log.read_text()


async def test_several_processes_on_inherited_sockets_are_one_gateway(worker, valkey, tmp_path):
    """B148: every scrape tells the sum, whichever process it reaches."""
    (tmp_path / "metrics").mkdir()
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("BUSWAY_")},
        "BUSWAY_REDIS__URL": valkey.url,
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "metrics"),
        "PYTHONPATH": str(ROOT),
    }
    port, children = free_port(), []
    for number in range(2):
        with socket.socket() as listener, (tmp_path / f"{number}.log").open("wb") as output:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen()
            command = [sys.executable, "-m", "gateway", "--fd", str(listener.fileno())]
            children.append(spawn(command, env=env, pass_fds=[listener.fileno()], output=output))
    try:
        limits = httpx.Limits(max_keepalive_connections=0)  # a new connection each time: either process may answer
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", limits=limits, timeout=30) as http:
            await wait_until(lambda: both_ready(http, tmp_path), "both processes", timeout_s=30)
            for _ in range(20):
                assert (await http.post("/v1/chat/completions", json=chat_body())).status_code == 200
            scrapes = [(await http.get("/metrics")).text for _ in range(20)]
    finally:
        for child in children:
            stop(child, grace_s=5)

    counted = {total(text, "busway_requests_total") for text in scrapes}
    workers = {total(text, "busway_worker_up") for text in scrapes}
    assert (counted, workers) == ({20.0}, {1.0})
    assert [child.returncode for child in children] == [0, 0]
    served = [(tmp_path / f"{number}.log").read_text().count("request.finished") for number in range(2)]
    assert all(served), "both had a share"


async def both_ready(http, folder) -> bool:
    started = all("startup complete" in (folder / f"{number}.log").read_text() for number in range(2))
    return started and all([(await http.get("/ready")).status_code == 200 for _ in range(8)])


def total(text: str, name: str) -> float:
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name + "{"))


def test_the_gateway_needs_no_torch():
    """House law: neither torch nor transformers, whatever is installed."""
    code = "import sys; sys.modules['torch'] = sys.modules['transformers'] = None; import gateway.__main__"
    child = spawn([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)})

    assert child.wait() == 0
