"""emit: into the log, then onto the channels, by the attempt that owns the request."""

import json

import pytest

from shared import wire
from shared.lease import Emission, Reported
from tests.support.desk import piece
from tests.support.ear import Ear

CHANNEL = "bw:gw:g"


async def test_a_piece_is_logged_and_published(desk):
    async with Ear(desk.redis, CHANNEL) as ear:
        [held] = await desk.hold("a", channel=CHANNEL)
        taken = await desk.emit("w1", held, 0, 5, 6) and await desk.emit("w1", held, 2, 7)
        frames = await ear.frames()

    assert taken
    assert frames == [
        wire.Frame(id="a", attempt=1, at=0, ids=(5, 6), text="<5><6>"),
        wire.Frame(id="a", attempt=1, at=2, ids=(7,), text="<7>"),
    ]
    assert await desk.broker.replay("m", "a") == frames, "what was published can be replayed"
    assert await desk.positions("a") == ["1-0", "1-2", "1-3"]


async def test_text_survives_the_splice_into_a_frame(desk):
    nasty = wire.Piece(ids=(1,), text='"}\\\n\x00€ %s %d {"end":{}} \U0001f68c')
    async with Ear(desk.redis, CHANNEL) as ear:
        [held] = await desk.hold("a", channel=CHANNEL)
        await desk.lease("w1").report([Emission(held, 0, nasty)], [])
        [frame] = await ear.frames()

    assert frame.text == nasty.text
    assert frame.end is None


async def test_the_frames_of_a_step_are_one_publication_a_channel(desk):
    async with Ear(desk.redis, "bw:gw:1") as one, Ear(desk.redis, "bw:gw:2") as two:
        await desk.enqueue("a", "b", channel="bw:gw:1")
        await desk.enqueue("c", channel="bw:gw:2")
        held = await desk.fetch()
        await desk.lease("w1").report([Emission(each, 0, piece(1)) for each in held], [])

        assert [[frame.id for frame in frames] for frames in await one.publications()] == [["a", "b"]]
        assert [[frame.id for frame in frames] for frames in await two.publications()] == [["c"]]


async def test_what_nobody_watches_is_logged_and_not_published(desk):
    async with Ear(desk.redis, "") as nobody:
        [held] = await desk.hold("a")
        assert await desk.emit("w1", held, 0, 5)

        assert await nobody.heard() == []
    assert [frame.ids for frame in await desk.broker.replay("m", "a")] == [(5,)]


async def test_an_older_attempt_is_refused_and_published_nowhere(desk):
    async with Ear(desk.redis, CHANNEL) as ear:
        [old] = await desk.hold("a", channel=CHANNEL)
        await desk.emit("w1", old, 0, 5)
        await desk.silence(old)
        await desk.claim("w2")
        await ear.heard()

        assert not await desk.emit("w1", old, 1, 6)
        assert not await desk.emit("w1", old, 0, 5), "not even what it had logged itself"
        assert await ear.heard() == []
    assert await desk.positions("a") == ["1-0", "1-1", "2-1"]


async def test_one_refused_piece_does_not_hold_back_its_neighbours(desk):
    [old, other] = await desk.hold("a", "b")
    await desk.silence(old)
    await desk.claim("w2")

    said = await desk.lease("w1").report([Emission(old, 0, piece(5)), Emission(other, 0, piece(6))], [])

    assert said.refused == (old,)
    assert await desk.positions("b") == ["1-0", "1-1"]


async def test_a_piece_is_refused_when_the_log_is_gone(desk):
    """Data loss, or long after the end. It must not start a log without a TTL."""
    [held] = await desk.hold("a")
    await desk.redis.delete(desk.keys.log("a"))

    assert not await desk.emit("w1", held, 0, 5)
    assert not await desk.redis.exists(desk.keys.log("a"))


async def test_a_piece_is_refused_after_a_cancel_that_settled_the_parked_request(desk):
    [held] = await desk.hold("a")
    await desk.park("w1", held)
    await desk.cancel("a")

    assert not await desk.emit("w1", held, 0, 5)


async def test_a_repeated_call_is_taken_and_logged_once(desk):
    [held] = await desk.hold("a", channel=CHANNEL)
    step = [Emission(held, 0, piece(5)), Emission(held, 1, piece(6))]
    await desk.lease("w1").report(step, [])

    assert (await desk.lease("w1").report(step, [])).refused == ()
    assert (await desk.lease("w1").report([*step, Emission(held, 2, piece(7))], [])).refused == ()
    assert await desk.positions("a") == ["1-0", "1-1", "1-2", "1-3"]


async def test_a_repeat_publishes_again_and_a_reader_knows_it_by_its_place(desk):
    async with Ear(desk.redis, CHANNEL) as ear:
        [held] = await desk.hold("a", channel=CHANNEL)
        await desk.emit("w1", held, 0, 5)
        await desk.emit("w1", held, 0, 5)

        assert [(frame.at, frame.ids) for frame in await ear.frames()] == [(0, (5,)), (0, (5,))]


async def test_an_opening_marker_is_not_taken_for_a_piece(desk):
    """A zombie's piece that would land exactly on the marker's place is refused like any other."""
    [old] = await desk.hold("a")
    await desk.emit("w1", old, 0, 5)
    await desk.silence(old)
    [new] = await desk.claim("w2")

    assert not await desk.emit("w2", new, 0, 5), "id 2-1 is the marker's"
    assert await desk.emit("w2", new, 1, 6)


async def test_a_piece_without_tokens_is_a_bug_of_the_caller(desk):
    [held] = await desk.hold("a")

    with pytest.raises(AssertionError, match="without tokens"):
        await desk.lease("w1").report([Emission(held, 0, wire.Piece(text="x"))], [])


async def test_nothing_to_report_asks_nobody(desk):
    assert await desk.lease("w1").report([], []) == Reported()


async def test_the_publication_is_what_the_golden_frame_looks_like(desk):
    """Spliced by hand in Lua, so it is compared with what Python would have written."""
    async with Ear(desk.redis, CHANNEL) as ear:
        [held] = await desk.hold("a", channel=CHANNEL)
        await ear.heard()
        await desk.emit("w1", held, 0, 5)
        [raw] = await ear.heard()

    frame = wire.Frame(id="a", attempt=1, at=0, ids=(5,), text="<5>")
    assert json.loads(raw) == json.loads(wire.encode(wire.Frames(frames=(frame,))))


async def test_a_log_that_lost_its_end_takes_nothing_beyond_the_hole(desk):
    """After a failover the log may lack what was written last; the next attempt makes it anew, exactly."""
    [held] = await desk.hold("a")
    await desk.emit("w1", held, 0, 1)
    await desk.emit("w1", held, 1, 2)
    await desk.redis.xdel(desk.keys.log("a"), "1-2")

    assert not await desk.emit("w1", held, 2, 3)

    await desk.silence(held)
    [again] = await desk.claim()
    assert again.prior_ids == (1,)
    assert await desk.emit("w2", again, 1, 2)
    assert await desk.emit("w2", again, 2, 3)
    assert await desk.finish("w2", again, 3)
