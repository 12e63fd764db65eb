"""watch, and what follows from who watches: who is told, what may come in portions, and what nobody wants any more."""

import pytest

from shared import wire
from shared.broker import CANCELLED
from shared.keys import control_channel
from shared.lease import Emission
from tests.support.desk import DONE, GRACE_MS, KEEP_MS, piece
from tests.support.ear import Ear

ONE, TWO = "bw:gw:1", "bw:gw:2"


async def step(desk, *held, at=0):
    """One piece for each; what the broker said of who watches, by the requests' ids."""
    said = await desk.lease("w1").report([Emission(one, at, piece(at + 1)) for one in held], [])
    assert said.refused == ()
    return [one.id for one in said.unwatched], [one.id for one in said.orphans]


async def test_a_second_gateway_hears_all_from_then_on_and_the_first_as_before(desk):
    async with Ear(desk.redis, ONE) as one, Ear(desk.redis, TWO) as two:
        [held] = await desk.hold("a", channel=ONE)
        await desk.emit("w1", held, 0, 5)

        assert await desk.watch("a", TWO)
        await desk.emit("w1", held, 1, 6)
        await desk.finish("w1", held, 2)
        first, second = await one.frames(), await two.frames()

    assert [(frame.at, frame.end) for frame in first] == [(0, None), (1, None), (2, DONE)]
    assert [(frame.at, frame.end) for frame in second] == [(1, None), (2, DONE)]
    assert (await desk.broker.replay("m", "a"))[0] == first[0], "what it missed is in the log"


async def test_who_watches_while_it_waits_hears_all_of_it(desk):
    async with Ear(desk.redis, ONE) as one:
        await desk.enqueue("a")
        await desk.watch("a", ONE)
        [held] = await desk.fetch()
        await desk.emit("w1", held, 0, 5)

        assert [frame.ids for frame in await one.frames()] == [(5,)]


async def test_who_watches_twice_is_told_once(desk):
    async with Ear(desk.redis, ONE) as one:
        [held] = await desk.hold("a", channel=ONE)

        assert await desk.watch("a", ONE)
        await desk.emit("w1", held, 0, 5)

        assert [frame.ids for frame in await one.frames()] == [(5,)]


async def test_the_worker_hears_of_one_more_who_watches_and_of_no_other(desk):
    async with Ear(desk.redis, control_channel("w1")) as control:
        await desk.hold("a", channel=ONE)
        await desk.enqueue("waits")

        await desk.watch("a", TWO)
        await desk.watch("a", TWO)
        await desk.watch("waits", TWO)

        heard = [wire.decode(raw, wire.Control) for raw in await control.heard()]
    assert heard == [wire.Control(id="a", kind="watch")]


async def test_what_has_ended_may_be_watched_and_says_nothing_more(desk):
    async with Ear(desk.redis, ONE) as one:
        [held] = await desk.hold("a")
        await desk.finish("w1", held)

        assert await desk.watch("a", ONE)
        assert await one.frames() == []
    assert 0 < await desk.redis.pttl(desk.keys.request("a")) <= KEEP_MS


async def test_watching_what_nobody_knows_leaves_nothing_behind(desk):
    assert not await desk.watch("never", ONE)
    assert await desk.redis.keys("*") == []


@pytest.mark.parametrize(("runs", "said"), [(False, "settled"), (True, "running")])
async def test_the_last_who_leaves_cancels_and_no_other(desk, runs, said):
    await desk.enqueue("a", channel=ONE)
    await desk.watch("a", TWO)
    if runs:
        await desk.fetch()

    assert await desk.cancel("a", leaves=ONE) == "kept"
    assert await desk.cancel("a", leaves=ONE) == "kept", "leaving twice counts once"
    assert await desk.cancel("a", leaves=TWO) == said


async def test_who_has_left_is_told_nothing_more(desk):
    async with Ear(desk.redis, ONE) as one, Ear(desk.redis, TWO) as two:
        [held] = await desk.hold("a", channel=ONE)
        await desk.watch("a", TWO)
        await desk.cancel("a", leaves=ONE)

        await desk.emit("w1", held, 0, 5)
        await desk.finish("w1", held, 1)

        assert await one.frames() == []
        assert [frame.at for frame in await two.frames()] == [0, 1]


@pytest.mark.parametrize("state", ["queued", "running", "parked"])
async def test_a_detached_request_is_kept_when_the_last_leaves(desk, state):
    await desk.enqueue("a", channel=ONE, detached=True)
    if state != "queued":
        [held] = await desk.fetch()
    if state == "parked":
        await desk.park("w1", held)

    assert await desk.cancel("a", leaves=ONE) == "kept"

    assert await desk.state("a") == state
    if state == "running":
        assert await step(desk, held) == (["a"], [])
        assert (await desk.beat("w1", held)).cancelled == ()


async def test_a_cancel_without_a_leaver_cancels_whoever_watches_and_the_detached_too(desk):
    async with Ear(desk.redis, ONE) as one, Ear(desk.redis, TWO) as two:
        await desk.enqueue("a", channel=ONE, detached=True)
        await desk.watch("a", TWO)

        assert await desk.cancel("a") == "settled"

        assert await one.ends() == await two.ends() == {"a": "cancelled"}


@pytest.mark.parametrize(("before", "said"), [("nothing", "unknown"), ("done", "ended")])
async def test_leaving_what_is_not_there_any_more_changes_nothing(desk, before, said):
    if before == "done":
        [held] = await desk.hold("a", channel=ONE)
        await desk.finish("w1", held)

    assert await desk.cancel("a", leaves=ONE) == said


async def test_emit_names_what_nobody_watches(desk):
    async with Ear(desk.redis, ONE):
        await desk.enqueue("alone")
        await desk.enqueue("watched", channel=ONE)
        alone, watched = await desk.fetch()

        assert await step(desk, alone, watched) == (["alone"], []), "nobody asked to be told of it: it is no orphan"
        await desk.watch("alone", ONE)
        assert await step(desk, alone, watched, at=1) == ([], [])


async def test_emit_names_the_orphans_of_gateways_that_have_gone(desk):
    """All of a request's gateways, for longer than the grace; one that is detached is only unwatched."""
    async with Ear(desk.redis, ONE):
        await desk.enqueue("here", channel=ONE)
        await desk.enqueue("gone", "half", channel=TWO)
        await desk.enqueue("detached", channel=TWO, detached=True)
        await desk.watch("half", ONE)
        held = await desk.fetch()
        await desk.be_gone(TWO)

        assert await step(desk, *held) == (["gone", "detached"], ["gone"])


async def test_a_gateway_that_is_missing_for_less_than_the_grace_may_come_back(desk):
    [held] = await desk.hold("a", channel=ONE)
    await desk.be_gone(ONE, for_ms=GRACE_MS // 2)

    assert await step(desk, held) == ([], [])


async def test_a_gateway_that_was_missed_long_ago_may_have_been_there_in_between(desk):
    """Nothing was published for it meanwhile: its absence counts from now."""
    [held] = await desk.hold("a", channel=ONE)
    await desk.be_gone(ONE, for_ms=5 * GRACE_MS, last_ms=2 * GRACE_MS)

    assert await step(desk, held) == ([], [])
    assert await step(desk, held, at=1) == ([], [])


async def test_a_gateway_that_listens_again_was_never_gone(desk):
    [held] = await desk.hold("a", channel=ONE)
    await desk.be_gone(ONE)
    async with Ear(desk.redis, ONE):
        assert await step(desk, held) == ([], [])

    assert await step(desk, held, at=1) == ([], []), "its absence counts from now"


async def test_a_refused_piece_says_nothing_of_who_watches(desk):
    [old] = await desk.hold("a")
    await desk.silence(old)
    await desk.claim("w2")

    said = await desk.lease("w1").report([Emission(old, 0, piece(5))], [])

    assert (said.refused, said.unwatched, said.orphans) == ((old,), (), ())


async def waits(desk):
    return await desk.enqueue("a", channel=ONE, detached=False)


async def parked(desk):
    await waits(desk)
    [held] = await desk.fetch()
    await desk.park("w1", held)


async def silent(desk):
    await waits(desk)
    await desk.silence(*await desk.fetch())


MET = [(waits, "fetch"), (parked, "fetch"), (silent, "claim")]


@pytest.mark.parametrize(("state", "by"), MET)
async def test_what_nobody_wants_any_more_is_not_started(desk, state, by):
    await state(desk)
    await desk.be_gone(ONE)

    assert await getattr(desk, by)("w2") == []

    record = await desk.broker.record("m", "a")
    assert (record.state, record.outcome) == ("cancelled", CANCELLED)
    assert (await desk.waiting_tokens(), await desk.redis.xlen(desk.keys.stream("interactive"))) == (0, 0)


@pytest.mark.parametrize("kept", ["detached", "in grace", "watched", "back", "nobody's"])
@pytest.mark.parametrize(("state", "by"), MET)
async def test_what_somebody_may_still_want_is_started(desk, state, by, kept):
    async with Ear(desk.redis, TWO):
        await state(desk)
        await desk.be_gone(ONE, for_ms=GRACE_MS // 2 if kept == "in grace" else 2 * GRACE_MS)
        if kept == "detached":
            await desk.set("a", detach=1)
        elif kept == "watched":
            await desk.watch("a", TWO)
        elif kept == "nobody's":
            await desk.set("a", gw="")
        elif kept == "back":
            await desk.redis.hdel(f"{desk.keys.prefix}gone", ONE)

        assert [one.id for one in await getattr(desk, by)("w2")] == ["a"]


async def test_orphans_take_nobodys_place(desk):
    await desk.enqueue("orphan", channel=ONE)
    await desk.enqueue("wanted")
    await desk.be_gone(ONE)

    assert [one.id for one in await desk.fetch(total=1)] == ["wanted"]
