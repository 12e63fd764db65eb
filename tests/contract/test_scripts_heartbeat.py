"""heartbeat: a worker lives, and what it still holds stays its own."""

from shared import keys
from shared.keys import GROUP
from tests.support.desk import LEASE_MS


async def idle_ms(desk, held):
    [entry] = await desk.redis.xpending_range(desk.keys.stream(held.lane), GROUP, held.entry, held.entry, 1)
    return entry["time_since_delivered"]


async def test_a_heartbeat_renews_what_the_worker_holds_in_every_lane(desk):
    await desk.enqueue("a")
    await desk.enqueue("b", lane="bulk")
    held = await desk.fetch()
    await desk.silence(*held)

    beat = await desk.beat("w1", *held)

    assert (beat.lost, beat.cancelled) == ((), ())
    assert all([await idle_ms(desk, one) < LEASE_MS for one in held])
    assert await desk.claim("w2") == []


async def test_what_the_worker_does_not_name_is_not_renewed(desk):
    """An assignment whose reply was lost must go silent, or nobody would ever run it."""
    a, b = await desk.hold("a", "b")
    await desk.silence(a, b)

    await desk.beat("w1", a)

    assert [one.id for one in await desk.claim("w2")] == ["b"]


async def test_lost_and_cancelled_requests_are_named(desk):
    kept, cancelled, taken, ended, parked, gone = await desk.hold("a", "b", "c", "d", "e", "f")
    await desk.cancel("b")
    await desk.silence(taken)
    await desk.claim("w2")
    await desk.finish("w1", ended)
    await desk.park("w1", parked)
    await desk.redis.delete(desk.keys.request("f"))

    beat = await desk.beat("w1", kept, cancelled, taken, ended, parked, gone)

    assert beat.lost == (taken, ended, parked, gone)
    assert beat.cancelled == (cancelled,)


async def test_a_renewal_is_no_delivery(desk):
    [held] = await desk.hold("a")

    await desk.beat("w1", held)

    [entry] = await desk.redis.xpending_range(desk.keys.stream("interactive"), GROUP, "-", "+", 1)
    assert entry["times_delivered"] == 1
    assert (await desk.broker.record("m", "a")).attempt == 1


async def test_a_worker_that_beats_is_listed_and_one_that_left_is_not(desk):
    await desk.beat("w1")
    await desk.beat("w2")
    await desk.lease("w2").leave()

    [served] = await desk.broker.models()

    assert (served.name, [worker["id"] for worker in served.workers]) == ("m", ["w1"])
    assert served.workers[0]["slots"] == "4"
    assert served.seen_s_ago < LEASE_MS
    assert 0 < await desk.redis.pttl(desk.keys.worker("w1")) <= LEASE_MS


async def test_a_worker_that_was_silent_for_its_time_to_live_is_struck_off(desk):
    await desk.redis.zadd(desk.keys.workers, {"dead": 1})

    await desk.beat("w1")

    assert await desk.redis.zrange(desk.keys.workers, 0, -1) == [b"w1"]


async def test_a_model_that_nobody_serves_any_more_is_known_for_a_day(desk):
    await desk.beat("w1")
    await desk.lease("w1").leave()
    await desk.redis.zadd(keys.MODELS, {"yesterday": 1})
    [*_, served] = await desk.broker.models()
    assert (served.name, served.workers) == ("m", ())

    await desk.beat("w1")

    assert await desk.redis.zrange(keys.MODELS, 0, -1) == [b"m"]
