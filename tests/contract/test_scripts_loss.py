"""What a server forgets, and what it keeps: flushes, full memory, sudden death."""

import pytest

from shared.cli.valkey import Valkey
from shared.connection import connect
from shared.dead_letters import DeadLetters
from shared.errors import BrokerUnavailable
from shared.lanes import Lane
from shared.lease import Emission, Ending
from shared.sections import RedisSettings
from tests.support.desk import DONE, MODEL, Desk, piece
from tests.support.ear import Ear
from tests.support.stores import immortal_keys

CHANNEL = "bw:gw:g"


async def test_after_all_data_is_lost_the_groups_are_made_again(desk):
    await desk.hold("a")
    await desk.redis.flushall()
    assert await desk.fetch() == []
    await desk.redis.flushall()
    assert await desk.claim() == []
    await desk.redis.flushall()

    assert await desk.enqueue("b") == [0]
    assert [one.id for one in await desk.fetch()] == ["b"]


async def test_after_all_data_is_lost_a_worker_learns_it_from_any_call(desk):
    """And leaves nothing behind: a hash or a log without a TTL would stay for ever."""
    [held] = await desk.hold("a")
    await desk.redis.flushall()

    assert not await desk.emit("w1", held, 0, 5)
    assert not await desk.finish("w1", held)
    assert not await desk.park("w1", held)
    assert (await desk.beat("w1", held)).lost == (held,)
    assert await desk.cancel("a") == "unknown"
    assert await desk.state("a") is None


async def test_a_request_queued_again_after_the_loss_is_a_new_one(desk):
    """The zombie of before holds attempt 1, and so does the new owner: the log is what tells them apart."""
    [before] = await desk.hold("a")
    await desk.emit("w1", before, 0, 5)
    await desk.redis.flushall()
    [after] = await desk.hold("a", worker="w2")

    assert after.attempt == 1
    assert await desk.emit("w2", after, 0, 6)
    assert not await desk.finish("w1", before, 2)


async def test_scripts_that_the_server_forgot_are_taught_again(real_desk):
    desk = real_desk
    await desk.enqueue("a", "b")
    await desk.redis.script_flush()
    a, b = await desk.fetch()
    await desk.redis.script_flush()

    said = await desk.lease("w1").report([Emission(a, 0, piece(5))], [Ending(a, 1, DONE), Ending(b, 0, DONE)])

    assert said.refused == ()
    assert [await desk.state(one) for one in "ab"] == ["done", "done"]


async def test_every_key_of_a_request_has_a_time_to_live_in_every_state(desk):
    """The lane's streams and counters and the capped dead letters are all that stays."""
    await desk.enqueue("queued", "cancelled")
    await desk.cancel("cancelled")
    _, running, parked, done, poison = await desk.hold("running", "parked", "done", "poison")
    await desk.enqueue("still queued")
    for one in (running, parked, done, poison):
        await desk.emit("w1", one, 0, 5)
    await desk.park("w1", parked)
    await desk.finish("w1", done, 1)
    await desk.silence(poison)
    await desk.claim("w2", max_deaths=1)
    await desk.beat("w1", running)

    assert await immortal_keys(desk.redis) == []


@pytest.fixture
async def full_desk(real_desk):
    """A desk whose server has no memory left once `fill` is called."""

    async def fill():
        await real_desk.redis.config_set("maxmemory", 1)

    before = (await real_desk.redis.config_get("maxmemory"))["maxmemory"]
    real_desk.fill = fill
    yield real_desk
    await real_desk.redis.config_set("maxmemory", before)


async def test_with_memory_full_nothing_enters(full_desk):
    await full_desk.enqueue("a")
    await full_desk.fill()

    with pytest.raises(BrokerUnavailable, match="maxmemory"):
        await full_desk.enqueue("b")

    assert await full_desk.state("b") is None
    assert await full_desk.redis.xlen(full_desk.keys.stream("interactive")) == 1


async def test_with_memory_full_no_dead_letter_is_retried_and_none_is_lost(full_desk):
    await full_desk.silence(*await full_desk.hold("a"))
    await full_desk.claim("w2", max_deaths=1)
    letters = DeadLetters(full_desk.redis)
    [letter] = await letters.find("a", [MODEL])
    await full_desk.fill()

    with pytest.raises(BrokerUnavailable, match="maxmemory"):
        await letters.retry(letter, Lane())

    assert [one.entry for one in await letters.find("a", [MODEL])] == [letter.entry]
    assert await full_desk.state("a") == "failed"


async def test_with_memory_full_what_runs_goes_on_and_ends(full_desk):
    """Otherwise nothing would ever make room."""
    desk = full_desk
    async with Ear(desk.redis, CHANNEL) as ear:
        a, b, c, d = await desk.hold("a", "b", "c", "d", channel=CHANNEL)
        await desk.fill()

        assert await desk.emit("w1", a, 0, 5)
        said = await desk.lease("w1").report([Emission(a, 1, piece(6))], [Ending(a, 2, DONE)])
        assert said.refused == ()
        assert (await desk.beat("w1", b, c, d)).lost == ()
        await desk.silence(b)
        assert [one.id for one in await desk.claim("w2", max_deaths=3)] == ["b"]
        assert await desk.park("w1", c)
        assert await desk.cancel("c") == "settled"
        assert await desk.cancel("d") == "running"
        assert (await desk.beat("w1", d)).cancelled == (d,)
        assert await ear.ends() == {"a": "done", "c": "cancelled"}
    assert [frame.ids for frame in await desk.broker.replay("m", "a")] == [(5,), (6,)]


async def test_with_memory_full_what_waits_is_still_fetched(full_desk):
    await full_desk.enqueue("a", "late")
    await full_desk.set("late", expires=1)
    await full_desk.fill()

    assert [one.id for one in await full_desk.fetch()] == ["a"]
    assert await full_desk.state("late") == "expired"


async def test_a_server_that_is_killed_keeps_what_waits_and_what_runs(tmp_path):
    """The append-only file holds pending entries and logs: after a restart the request goes on."""
    server = Valkey(tmp_path)
    server.start()
    client = connect(RedisSettings(url=server.url))
    desk = Desk(client)
    try:
        running, parked = await desk.hold("running", "parked")
        await desk.emit("w1", running, 0, 5, 6)
        await desk.park("w1", parked)
        await desk.enqueue("queued")

        server.kill()
        server.start()

        assert await desk.waiting() == {"interactive": 2, "bulk": 0}
        assert await desk.waiting_tokens() == 20
        assert await desk.emit("w1", running, 2, 7), "its owner goes on as if nothing had been"
        await desk.silence(running)
        [claimed] = await desk.claim("w2")
        assert (claimed.id, claimed.prior_ids) == ("running", (5, 6, 7))
        assert [one.id for one in await desk.fetch("w2")] == ["parked", "queued"]
    finally:
        await client.aclose()
        server.stop()
