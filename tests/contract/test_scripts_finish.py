"""finish: running -> done or failed, by its owner, after its last piece, once."""

import pytest

from shared import scripts, wire
from shared.broker import EXPIRED
from shared.lease import Emission, Ending
from tests.support.desk import DONE, FAILED, KEEP_MS, piece
from tests.support.ear import Ear

CHANNEL = "bw:gw:g"


@pytest.mark.parametrize("outcome", [DONE, FAILED, EXPIRED], ids=lambda outcome: outcome.state)
async def test_a_request_ends_with_its_outcome(desk, outcome):
    async with Ear(desk.redis, CHANNEL) as ear:
        [held] = await desk.hold("a", channel=CHANNEL)
        await desk.emit("w1", held, 0, 5, 6)
        ended = await desk.finish("w1", held, 2, outcome)
        frames = await ear.frames()

    record = await desk.broker.record("m", "a")
    assert ended
    assert frames[-1] == wire.Frame(id="a", attempt=1, at=2, end=outcome)
    assert (record.state, record.attempt, record.tokens, record.outcome) == (outcome.state, 1, 2, outcome)


async def test_what_is_kept_after_the_end_is_the_answer_and_not_the_prompt(desk):
    [held] = await desk.hold("a")
    await desk.emit("w1", held, 0, 5)
    await desk.finish("w1", held, 1)

    assert await desk.redis.hget(desk.keys.request("a"), "payload") is None
    assert await desk.redis.xlen(desk.keys.stream("interactive")) == 0
    assert 0 < await desk.redis.pttl(desk.keys.request("a")) <= KEEP_MS
    assert 0 < await desk.redis.pttl(desk.keys.log("a")) <= KEEP_MS
    assert [frame.ids for frame in await desk.broker.replay("m", "a")] == [(5,)]


async def test_pieces_and_end_in_one_report_arrive_in_that_order(desk):
    async with Ear(desk.redis, CHANNEL) as ear:
        [held] = await desk.hold("a", channel=CHANNEL)
        await desk.lease("w1").report([Emission(held, 0, piece(5))], [Ending(held, 1, DONE)])
        first, last = await ear.frames()

    assert (first.ids, first.end) == ((5,), None)
    assert (last.at, last.end) == (1, DONE)


async def test_an_end_that_is_repeated_stands_and_is_told_once(desk):
    async with Ear(desk.redis, CHANNEL) as ear:
        [held] = await desk.hold("a", channel=CHANNEL)
        assert await desk.finish("w1", held)
        assert await desk.finish("w1", held)

        assert await ear.ends() == {"a": "done"}


async def test_a_second_end_of_another_kind_is_refused(desk):
    [held] = await desk.hold("a")
    await desk.finish("w1", held)

    assert not await desk.finish("w1", held, 0, FAILED)
    assert await desk.state("a") == "done"


async def test_a_stale_attempt_ends_nothing(desk):
    async with Ear(desk.redis, CHANNEL) as ear:
        [old] = await desk.hold("a", channel=CHANNEL)
        await desk.silence(old)
        [new] = await desk.claim("w2")

        assert not await desk.finish("w1", old)
        assert await ear.ends() == {}
        assert await desk.finish("w2", new)
        assert not await desk.finish("w1", old), "not even the same end"
        assert await ear.ends() == {"a": "done"}


async def test_a_parked_request_cannot_be_ended_by_who_parked_it(desk):
    [held] = await desk.hold("a")
    await desk.park("w1", held)

    assert not await desk.finish("w1", held)
    assert await desk.state("a") == "parked"


async def test_an_unknown_request_cannot_be_ended(desk):
    [held] = await desk.hold("a")
    await desk.redis.flushall()

    assert not await desk.finish("w1", held)
    assert not await desk.redis.exists(desk.keys.request("a"))


async def test_an_end_does_not_overtake_its_last_piece(desk):
    """The log must hold all tokens first: a reader fills its gaps from there."""
    async with Ear(desk.redis, CHANNEL) as ear:
        [held] = await desk.hold("a", channel=CHANNEL)
        await desk.emit("w1", held, 0, 5)

        assert not await desk.finish("w1", held, 2)
        assert await ear.ends() == {}
        await desk.emit("w1", held, 1, 6)
        assert await desk.finish("w1", held, 2)
        assert await ear.ends() == {"a": "done"}


async def test_a_server_that_forgot_only_emit_still_ends_after_the_last_piece(real_desk):
    """After a flush of scripts another worker may have taught it `finish` already."""
    desk = real_desk
    async with Ear(desk.redis, CHANNEL) as ear:
        [held] = await desk.hold("a", channel=CHANNEL)
        await desk.redis.script_flush()
        await desk.redis.script_load(scripts.FINISH.source)
        said = await desk.lease("w1").report([Emission(held, 0, piece(5))], [Ending(held, 1, DONE)])
        frames = await ear.frames()

    assert said.refused == ()
    assert [(frame.at, frame.end) for frame in frames] == [(0, None), (1, DONE)]


async def test_several_ends_in_one_report_are_told_apart(desk):
    old, other = await desk.hold("a", "b")
    await desk.silence(old)
    await desk.claim("w2")

    said = await desk.lease("w1").report([], [Ending(old, 0, DONE), Ending(other, 0, DONE)])

    assert said.refused == (old,)
    assert await desk.state("b") == "done"
