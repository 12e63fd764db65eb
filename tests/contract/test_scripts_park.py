"""park: running -> parked, so that any worker goes on where the log ends."""

from tests.support.desk import MANY, piece
from tests.support.ear import Ear


async def test_a_parked_request_goes_on_elsewhere_with_all_its_tokens(desk):
    [held] = await desk.hold("a", lane="bulk")
    await desk.emit("w1", held, 0, 5, 6)
    await desk.emit("w1", held, 2, 7)

    assert await desk.park("w1", held)
    [again] = await desk.fetch("w2")

    assert (again.attempt, again.prior_ids, again.entry) == (2, (5, 6, 7), held.entry)
    assert await desk.emit("w2", again, 3, 8)
    assert await desk.finish("w2", again, 4)
    assert [frame.ids for frame in await desk.broker.replay("m", "a")] == [(5, 6), (7,), (8,)]


async def test_a_parked_request_waits_and_rings_the_bell(desk):
    async with Ear(desk.redis, desk.keys.bell) as bell:
        [held] = await desk.hold("a", lane="bulk", cost=30)
        await bell.heard()
        await desk.park("w1", held)

        assert await bell.heard() == [b"bulk"]
    assert await desk.state("a") == "parked"
    assert await desk.waiting() == {"interactive": 0, "bulk": 1}
    assert await desk.waiting_tokens("bulk") == 30


async def test_parking_twice_counts_once(desk):
    [held] = await desk.hold("a")

    assert [await desk.park("w1", held), await desk.park("w1", held)] == [True, False]
    assert await desk.waiting_tokens() == 10
    assert (await desk.waiting())["interactive"] == 1


async def test_only_the_owner_can_park(desk):
    [old] = await desk.hold("a")
    await desk.silence(old)
    [new] = await desk.claim("w2")

    assert not await desk.park("w1", old)
    assert (await desk.beat("w2", new)).lost == ()


async def test_an_ended_request_is_not_parked(desk):
    [held] = await desk.hold("a")
    await desk.finish("w1", held)

    assert not await desk.park("w1", held)
    assert await desk.waiting_tokens() == 0


async def test_who_parked_it_and_takes_it_up_again_owns_a_new_attempt(desk):
    [old] = await desk.hold("a")
    await desk.park("w1", old)
    [new] = await desk.fetch("w1")

    assert not await desk.emit("w1", old, 0, 5)
    assert await desk.emit("w1", new, 0, 5)


async def test_a_parked_request_that_nobody_fetches_is_taken_by_claim_and_is_no_death(desk):
    [held] = await desk.hold("a")
    await desk.park("w1", held)
    await desk.silence(held, owner="parked")

    [again] = await desk.claim("w2", MANY, max_deaths=1)

    assert again.attempt == 2
    assert (await desk.broker.record("m", "a")).deaths == 0
    assert await desk.waiting_tokens() == 0
    assert piece(*again.prior_ids).ids == ()
