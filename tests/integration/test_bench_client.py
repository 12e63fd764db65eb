"""The load tool against a server that stalls, breaks and refuses: what is asked, when, and how it is counted."""

import asyncio
import math
import time

import pytest

from shared.cli.bench.drive import Bench
from shared.cli.bench.plan import Load, Plan
from shared.cli.bench.result import Lane
from shared.errors import ConfigError
from tests.support.fleet import free_port
from tests.support.stub_openai import END, HEAD, WHOLE, Stub, event, refusal, token
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


def always(*parts):
    async def reply(_):
        for part in parts:
            yield part

    return Stub(reply)


async def run(url, load, **options):
    return await Bench(Plan(url, {"interactive": load}, **{"model": "m", "timeout_s": 30, **options})).run()


def kinds(result):
    return {lane: dict(one.errors) for lane, one in result.lanes.items()}


async def test_a_stall_is_in_the_latencies_of_all_who_arrived_in_it():
    """The client itself stands still as well, so it sends late; arrivals stay where they were planned."""
    ended = []

    async def reply(number):
        if number == 2:
            time.sleep(0.3)  # the whole loop: server and client
            ended.append(time.monotonic())
        yield WHOLE

    async with Stub(reply) as server:
        load = Load(rate=50, arrivals="constant", requests=25)
        bench = Bench(Plan(server.url, {"interactive": load}, model="m"))
        result = await bench.run()

    stall_ended = ended[0] - bench._origin
    caught = [one for one in result.samples if one.due < stall_ended < one.sent]
    assert [one.due for one in result.samples] == [number / 50 for number in range(25)]
    assert all(one.is_whole for one in result.samples)
    assert caught, "nobody was due in the stall"
    for one in caught:
        (ttft_ms,) = Lane([one], begin_s=0, over_s=1).ttft.ordered
        assert ttft_ms >= (stall_ended - one.due) * 1000


async def test_who_arrived_in_a_stall_is_asked_even_if_the_time_is_up_by_then():
    async def reply(number):
        if number == 2:
            time.sleep(0.5)
        yield WHOLE

    async with Stub(reply) as server:
        result = await run(server.url, Load(rate=50, arrivals="constant"), duration_s=0.3)

    assert [one.due for one in result.samples] == [number / 50 for number in range(15)]
    assert all(one.is_whole for one in result.samples)


async def test_a_server_that_stalls_is_asked_on():
    """The next arrivals go out while earlier ones wait."""
    go_on = asyncio.Event()

    async def reply(_):
        await go_on.wait()
        yield WHOLE

    async with Stub(reply) as server:
        running = asyncio.create_task(run(server.url, Load(rate=200, arrivals="constant", requests=20)))
        await wait_until(lambda: server.open == 20, "all of them at the server")
        go_on.set()
        result = await running

    released = max(one.sent for one in result.samples)
    assert all(one.events[0] >= released for one in result.samples)
    assert result.lanes["interactive"].ttft.ordered[-1] >= (released - result.samples[0].due) * 1000


async def test_arrivals_beyond_the_bound_are_errors_and_not_delayed():
    go_on = asyncio.Event()

    async def reply(_):
        await go_on.wait()
        yield WHOLE

    async with Stub(reply) as server:
        load = Load(rate=math.inf, requests=5, max_in_flight=2)
        running = asyncio.create_task(run(server.url, load))
        await wait_until(lambda: server.open == 2, "two requests")
        go_on.set()
        result = await running

    assert kinds(result) == {"interactive": {"not_sent": 3}}
    assert len(server.bodies) == 2


async def test_a_closed_loop_keeps_so_many_in_flight_on_so_many_connections():
    all_three = asyncio.Barrier(3)

    async def reply(_):
        await all_three.wait()
        yield WHOLE

    async with Stub(reply) as server:
        result = await run(server.url, Load(concurrency=3, requests=12))

    assert (len(server.bodies), server.most_open, server.connections) == (12, 3, 3)
    assert result.lanes["interactive"].as_dict()["completed"] == 12


async def test_a_server_that_closes_gets_new_connections():
    head = HEAD.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")

    async with always(head + token() + END, b"") as server:
        result = await run(server.url, Load(concurrency=1, requests=3))

    assert kinds(result) == {"interactive": {}}
    assert server.connections == 3


async def test_bulk_stops_when_the_last_interactive_answer_has_come():
    async with always(WHOLE) as server:
        loads = {"interactive": Load(rate=100, requests=10), "bulk": Load(concurrency=2)}
        result = await Bench(Plan(server.url, loads, model="m")).run()

    bulk, interactive = result.lanes["bulk"], result.lanes["interactive"]
    assert len(interactive.samples) == 10
    assert len(bulk.samples) > 0
    assert result.over_s >= max(one.ended for one in interactive.samples)
    assert max(one.due for one in bulk.samples) <= result.over_s
    assert sum(one["service_tier"] == "flex" for one in server.bodies) == len(bulk.samples)


async def test_a_duration_ends_the_asking_and_waits_for_answers():
    async def reply(_):
        yield HEAD + token()
        await asyncio.sleep(0.4)
        yield token() + END

    async with Stub(reply) as server:
        result = await run(server.url, Load(rate=20, arrivals="constant"), duration_s=0.3)

    assert [one.due for one in result.samples] == [number / 20 for number in range(6)]
    assert all(one.is_whole for one in result.samples)
    assert result.over_s == 0.3 < result.elapsed_s


async def test_an_interruption_reports_what_was_seen():
    async def reply(_):
        yield HEAD + token()
        await asyncio.Event().wait()

    async with Stub(reply) as server:
        bench = Bench(Plan(server.url, {"bulk": Load(concurrency=4)}, model="m", duration_s=600))
        running = asyncio.create_task(bench.run())
        await wait_until(lambda: sum(len(one.events) for one in bench.samples) == 4, "four first tokens")
        bench.interrupt()
        result = await running

    figures = result.as_dict()["lanes"]["bulk"]
    assert result.is_interrupted
    assert (figures["unfinished"], figures["errors"], figures["ttft_ms"]["count"]) == (4, 0, 4)


@pytest.mark.parametrize(
    ("parts", "kind", "detail"),
    [
        ([refusal(b"429 Too Many Requests", "full")], "http_429", "full"),
        ([HEAD + token(), b""], "broken", "the connection was cut"),
        ([b""], "broken", "the connection was closed unanswered"),
        ([b"220 mail.example ESMTP\r\n\r\n"], "broken", "no HTTP/1.1"),
        ([HEAD + b"0\r\n\r\n"], "broken", "without [DONE]"),
        ([HEAD + event({"error": {"message": "x"}}) + END], "error_event", "x"),
    ],
)
async def test_what_goes_wrong_is_counted_by_kind(parts, kind, detail):
    async with always(*parts) as server:
        result = await run(server.url, Load(rate=math.inf, requests=2))

    assert kinds(result) == {"interactive": {kind: 2}}
    assert detail in result.samples[0].detail


async def test_what_takes_too_long_is_an_error_and_its_connection_is_closed():
    closed = asyncio.Event()

    async def serve(reader, writer):
        await reader.read(1)
        writer.write(HEAD + token())
        await reader.read()  # until the client closes
        closed.set()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        result = await run(url, Load(concurrency=1, requests=1), timeout_s=0.2)
        await wait_until(closed.is_set, "the connection to be closed")

    assert kinds(result) == {"interactive": {"timeout": 1}}


async def test_a_dead_server_is_an_error_each_time_and_is_not_asked_without_end():
    result = await run(f"http://127.0.0.1:{free_port()}", Load(concurrency=2), duration_s=0.5)

    (count,) = [one.errors["connect"] for one in result.lanes.values()]
    assert count == len(result.samples)
    assert 2 <= count <= 10


@pytest.mark.parametrize("url", ["h:8000", "ftp://h", "http://", "http://h:x", "http://h/\r\nx: y", "http://a..b"])
async def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigError):
        Bench(Plan(url, {"bulk": Load(rate=1)}, model="m", duration_s=1))


async def test_a_key_that_would_break_out_of_its_header_is_refused():
    with pytest.raises(ConfigError):
        Bench(Plan("http://h", {"bulk": Load(rate=1)}, model="m", duration_s=1, api_key="a\r\nx: y"))
