"""What a gateway reads: records, replays, models, and clear words when Redis is not there."""

import pytest
from redis import exceptions
from redis._parsers.base import BaseParser

from shared import wire
from shared.broker import Broker
from shared.cli.valkey import Valkey
from shared.connection import connect, reachable
from shared.errors import BrokerUnavailable
from shared.sections import RedisSettings
from tests.support.desk import DONE, Desk


async def test_a_record_follows_the_request_through_its_states(desk):
    assert await desk.broker.record("m", "a") is None
    await desk.enqueue("a")
    queued = await desk.broker.record("m", "a")
    [held] = await desk.fetch()
    running = await desk.broker.record("m", "a")
    await desk.emit("w1", held, 0, 5)
    await desk.finish("w1", held, 1)
    done = await desk.broker.record("m", "a")

    assert (queued.state, queued.attempt, queued.deaths, queued.tokens, queued.outcome) == ("queued", 0, 0, None, None)
    assert (running.state, running.attempt, running.tokens) == ("running", 1, None)
    assert (done.state, done.tokens, done.outcome) == ("done", 1, DONE)


async def test_a_replay_joins_all_attempts_and_leaves_markers_out(desk):
    [held] = await desk.hold("a")
    await desk.emit("w1", held, 0, 5, 6)
    await desk.park("w1", held)
    [held] = await desk.fetch("w2")
    await desk.emit("w2", held, 2, 7)

    frames = await desk.broker.replay("m", "a")

    assert frames == [
        wire.Frame(id="a", attempt=1, at=0, ids=(5, 6), text="<5><6>"),
        wire.Frame(id="a", attempt=2, at=2, ids=(7,), text="<7>"),
    ]


@pytest.mark.parametrize(("after", "places"), [(0, [0, 2, 3]), (2, [2, 3]), (3, [3]), (5, []), (99, [])])
async def test_a_replay_starts_after_the_tokens_that_the_reader_holds(desk, after, places):
    [held] = await desk.hold("a")
    await desk.emit("w1", held, 0, 1, 2)
    await desk.emit("w1", held, 2, 3)
    await desk.emit("w1", held, 3, 4, 5)

    assert [frame.at for frame in await desk.broker.replay("m", "a", after)] == places


async def test_a_replay_of_what_nobody_knows_is_empty(desk):
    assert await desk.broker.replay("m", "never") == []


async def test_a_reader_that_lost_messages_fills_the_gap_from_the_log(desk):
    """What is on the channel is also in the log, frame by frame: `at` tells what is missing."""
    [held] = await desk.hold("a")
    for at, token in enumerate((5, 6, 7, 8)):
        await desk.emit("w1", held, at, token)
    have = [5]

    for frame in await desk.broker.replay("m", "a", after=len(have)):
        assert frame.at == len(have)
        have += frame.ids

    assert have == [5, 6, 7, 8]


async def test_lane_depths_count_waiting_and_running(desk):
    await desk.hold("a")
    await desk.enqueue("b")

    assert await desk.broker.lane_depths("m", ["interactive", "bulk"]) == {"interactive": 2, "bulk": 0}


async def test_no_models_are_known_to_an_empty_store(desk):
    assert await desk.broker.models() == []


@pytest.mark.parametrize(
    "reply",
    [
        "OOM command not allowed when used memory > 'maxmemory'.",
        "READONLY You can't write against a read only replica.",
        "MISCONF Errors writing to the AOF file: No space left on device",
        "NOREPLICAS Not enough good replicas to write.",
        "MASTERDOWN Link with MASTER is down.",
        "CLUSTERDOWN The cluster is down",
        "LOADING Redis is loading the dataset in memory",
    ],
)
async def test_a_server_that_takes_no_commands_is_unavailable(reply):
    """Through the client library's own parser: it cuts the code off those replies that it knows."""
    with pytest.raises(BrokerUnavailable):
        async with reachable():
            raise BaseParser.parse_error(reply)


@pytest.mark.parametrize("error", [exceptions.ConnectionError("gone"), exceptions.TimeoutError("slow")])
async def test_a_server_that_does_not_answer_is_unavailable(error):
    with pytest.raises(BrokerUnavailable) as caught:
        async with reachable():
            raise error

    assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", [exceptions.ResponseError("WRONGTYPE of key"), ValueError("ours"), KeyError("ours")])
async def test_our_own_bugs_are_not_called_unavailable(error):
    with pytest.raises(type(error)):
        async with reachable():
            raise error


async def test_a_server_that_is_not_there_is_unavailable_in_every_call(tmp_path):
    client = connect(RedisSettings(url=f"unix://{tmp_path}/nobody.sock", timeout_s=0.2))
    desk = Desk(client)

    for call in (
        desk.enqueue("a"),
        desk.cancel("a"),
        desk.state("a"),
        desk.fetch(),
        desk.claim(),
        desk.beat("w1"),
        desk.broker.models(),
        desk.broker.replay("m", "a"),
        desk.lease("w1").leave(),
    ):
        with pytest.raises(BrokerUnavailable):
            await call
    await client.aclose()


async def test_a_client_of_before_goes_on_after_a_restart(tmp_path):
    server = Valkey(tmp_path)
    server.start()
    client = connect(RedisSettings(url=server.url))
    broker = Broker(client, keep_ms=1000)
    try:
        assert await broker.models() == []
        server.kill()
        with pytest.raises(BrokerUnavailable):
            await broker.models()
        server.start()

        assert await broker.models() == []
    finally:
        await client.aclose()
        server.stop()
