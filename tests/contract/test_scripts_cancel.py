"""cancel: ends what waits, tells the owner of what runs, and is harmless anywhere else."""

from shared import wire
from shared.broker import CANCELLED, EXPIRED
from shared.keys import control_channel
from tests.support.desk import DONE
from tests.support.ear import Ear

CHANNEL = "bw:gw:g"


async def test_a_queued_request_ends_at_once(desk):
    async with Ear(desk.redis, CHANNEL) as ear:
        await desk.enqueue("a", "b", channel=CHANNEL)

        assert await desk.cancel("a") == "settled"
        assert await ear.ends() == {"a": "cancelled"}
    record = await desk.broker.record("m", "a")
    assert (record.state, record.tokens, record.outcome) == ("cancelled", 0, CANCELLED)
    assert await desk.redis.hget(desk.keys.request("a"), "payload") is None
    assert [one.id for one in await desk.fetch()] == ["b"]


async def test_a_parked_request_ends_at_once_with_what_it_has(desk):
    async with Ear(desk.redis, CHANNEL) as ear:
        [held] = await desk.hold("a", channel=CHANNEL)
        await desk.emit("w1", held, 0, 5)
        await desk.park("w1", held)
        await ear.heard()

        assert await desk.cancel("a") == "settled"
        [end] = await ear.frames()
    assert (end.at, end.attempt, end.end) == (1, 2, CANCELLED)
    assert await desk.fetch() == []
    assert await desk.waiting_tokens() == 0


async def test_a_running_requests_owner_is_told_and_the_mark_stays(desk):
    async with Ear(desk.redis, control_channel("w1")) as control:
        [held] = await desk.hold("a")

        assert await desk.cancel("a") == "running"
        assert [wire.decode(raw, wire.Control) for raw in await control.heard()] == [wire.Control(id="a")]
    assert await desk.state("a") == "running"
    assert (await desk.beat("w1", held)).cancelled == (held,), "should the message be lost"


async def test_its_worker_ends_a_running_request_and_may_also_be_too_late(desk):
    a, b = await desk.hold("a", "b")
    await desk.cancel("a")
    await desk.cancel("b")

    assert await desk.finish("w1", a, 0, CANCELLED)
    assert await desk.finish("w1", b, 0, DONE)
    assert [await desk.state(one) for one in "ab"] == ["cancelled", "done"]


async def test_a_cancel_that_its_worker_did_not_live_to_see_is_settled_at_claim(desk):
    async with Ear(desk.redis, CHANNEL) as ear:
        [held] = await desk.hold("a", channel=CHANNEL)
        await desk.emit("w1", held, 0, 5)
        await desk.cancel("a")
        await desk.silence(held)

        assert await desk.claim("w2") == []
        assert await ear.ends() == {"a": "cancelled"}
    assert not await desk.finish("w1", held, 1)


async def test_an_ended_request_stays_as_it_ended(desk):
    [held] = await desk.hold("a")
    await desk.finish("w1", held)

    assert await desk.cancel("a") == "ended"
    assert await desk.state("a") == "done"


async def test_an_unknown_request_leaves_nothing_behind(desk):
    assert await desk.cancel("never") == "unknown"
    assert await desk.redis.keys("*") == []


async def test_twice_is_the_same_as_once(desk):
    async with Ear(desk.redis, CHANNEL) as ear:
        await desk.enqueue("a", channel=CHANNEL)
        assert [await desk.cancel("a"), await desk.cancel("a")] == ["settled", "ended"]
        assert await ear.ends() == {"a": "cancelled"}
    await desk.hold("b")
    assert [await desk.cancel("b"), await desk.cancel("b")] == ["running", "running"]
    assert await desk.waiting_tokens() == 0


async def test_the_outcome_is_the_callers(desk):
    """A gateway whose own clock says that the deadline is over ends it as expired."""
    await desk.enqueue("a")

    await desk.broker.cancel("m", "interactive", "a", EXPIRED)

    assert await desk.state("a") == "expired"
