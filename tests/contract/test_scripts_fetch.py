"""fetch: queued or parked -> running, by quotas, in order, never more than asked for."""

import asyncio

import pytest

from shared.broker import EXPIRED
from shared.keys import GROUP
from shared.lease import Room
from tests.support.desk import request
from tests.support.ear import Ear


def ids(assignments):
    return [one.id for one in assignments]


async def test_an_assignment_carries_what_the_worker_needs(desk):
    await desk.enqueue("a", lane="bulk")

    [held] = await desk.fetch()

    assert (held.id, held.lane, held.attempt, held.deaths) == ("a", "bulk", 1, 0)
    assert held.request == request("a")
    assert held.prior_ids == ()
    assert 0 < held.deadline_ms <= 600_000
    assert 0 <= held.queued_ms < 600_000
    assert await desk.state("a") == "running"
    assert await desk.positions("a") == ["1-0"], "the marker that opens the log"


async def test_requests_come_in_the_order_in_which_they_were_queued(desk):
    await desk.enqueue("a", "b", "c", "d")

    assert ids(await desk.fetch(total=2)) == ["a", "b"]
    assert ids(await desk.fetch(total=2)) == ["c", "d"]
    assert await desk.fetch() == []


async def test_nothing_is_handed_out_twice(desk):
    await desk.enqueue("a", "b", "c")

    assert ids(await desk.fetch("w1", total=1)) == ["a"]
    assert ids(await desk.fetch("w2")) == ["b", "c"]
    assert await desk.fetch("w3") == []


async def test_quotas_come_first_and_what_is_left_spills_in_lane_order(desk):
    await desk.enqueue(*(f"i{n}" for n in range(10)))
    await desk.enqueue(*(f"b{n}" for n in range(10)), lane="bulk")

    taken = ids(await desk.fetch(total=6, interactive=(2, 10), bulk=(1, 10)))

    assert taken == ["i0", "i1", "b0", "i2", "i3", "i4"]


async def test_a_quota_that_finds_nothing_spills_to_the_other_lane(desk):
    await desk.enqueue("b0", "b1", "b2", lane="bulk")

    assert ids(await desk.fetch(total=3, interactive=(2, 3), bulk=(1, 3))) == ["b0", "b1", "b2"]


async def test_a_cap_holds_even_when_slots_stay_free(desk):
    await desk.enqueue("b0", "b1", "b2", lane="bulk")

    taken = await desk.fetch(total=10, bulk=(1, 2))

    assert ids(taken) == ["b0", "b1"]
    assert await desk.waiting() == {"interactive": 0, "bulk": 1}


@pytest.mark.parametrize(("total", "quota", "cap"), [(0, 5, 5), (5, 5, 0), (5, 0, 0)])
async def test_no_room_takes_nothing(desk, total, quota, cap):
    await desk.enqueue("a", "b")

    assert await desk.fetch(total=total, interactive=(quota, cap)) == []
    assert (await desk.redis.xpending(desk.keys.stream("interactive"), GROUP))["pending"] == 0


async def test_the_total_is_never_exceeded_by_quotas(desk):
    await desk.enqueue(*(f"i{n}" for n in range(9)))
    await desk.enqueue(*(f"b{n}" for n in range(9)), lane="bulk")

    assert ids(await desk.fetch(total=3, interactive=(2, 9), bulk=(9, 9))) == ["i0", "i1", "b0"]
    pending = [
        (await desk.redis.xpending(desk.keys.stream(lane), GROUP))["pending"] for lane in ("interactive", "bulk")
    ]
    assert pending == [2, 1], "nothing is delivered that is not returned"


async def test_what_still_waits_is_reported_by_lane(desk):
    await desk.enqueue("a", "b", "c")
    await desk.enqueue("d", lane="bulk")

    await desk.fetch(total=1)

    assert await desk.waiting() == {"interactive": 2, "bulk": 1}


async def test_parked_requests_go_before_new_ones_and_in_their_old_order(desk):
    a, b = await desk.hold("a", "b")
    await desk.enqueue("c")
    await desk.park("w1", b)
    await desk.park("w1", a)

    assert ids(await desk.fetch("w2")) == ["a", "b", "c"]


async def test_a_request_that_waited_too_long_ends_at_fetch_and_takes_nobodys_place(desk):
    async with Ear(desk.redis, "bw:gw:g") as ear:
        await desk.enqueue("late", "later", "fresh", channel="bw:gw:g")
        await desk.set("late", expires=1)
        await desk.set("later", deadline=1)

        taken = await desk.fetch(total=1)
        frames = await ear.frames()

    assert ids(taken) == ["fresh"]
    assert [(frame.id, frame.at, frame.end) for frame in frames] == [("late", 0, EXPIRED), ("later", 0, EXPIRED)]
    assert [await desk.state(one) for one in ("late", "later")] == ["expired", "expired"]
    assert (await desk.waiting(), await desk.waiting_tokens()) == ({"interactive": 0, "bulk": 0}, 0)


async def test_the_queue_timeout_binds_only_until_the_first_start(desk):
    """What has produced tokens and was parked is bounded by its deadline alone."""
    [held] = await desk.hold("a")
    await desk.emit("w1", held, 0, 5)
    await desk.park("w1", held)
    await desk.set("a", expires=1)

    assert ids(await desk.fetch("w2")) == ["a"]


async def test_a_parked_request_past_its_deadline_ends_with_the_tokens_it_has(desk):
    async with Ear(desk.redis, "bw:gw:g") as ear:
        [held] = await desk.hold("a", channel="bw:gw:g")
        await desk.emit("w1", held, 0, 5, 6)
        await desk.park("w1", held)
        await desk.set("a", deadline=1)
        await ear.heard()

        taken = await desk.fetch("w2")
        [end] = await ear.frames()

    record = await desk.broker.record("m", "a")
    assert taken == []
    assert (end.at, end.end) == (2, EXPIRED)
    assert (record.state, record.tokens, record.outcome) == ("expired", 2, EXPIRED)
    assert await desk.waiting_tokens() == 0


async def test_a_cancel_that_reached_no_worker_is_settled_at_fetch(desk):
    """Cancelled while it ran, the message lost, then parked: the mark is read when it would start again."""
    [held] = await desk.hold("a")
    assert await desk.cancel("a") == "running"
    await desk.park("w1", held)

    assert await desk.fetch("w2") == []
    assert await desk.state("a") == "cancelled"


async def test_an_entry_whose_request_is_forgotten_is_dropped(desk):
    await desk.enqueue("a", "b")
    await desk.redis.delete(desk.keys.request("a"))

    assert ids(await desk.fetch(total=1)) == ["b"]
    assert await desk.redis.xlen(desk.keys.stream("interactive")) == 1
    assert await desk.waiting_tokens() == 0


async def test_a_long_row_of_dead_entries_is_cleared_over_several_calls(desk):
    """One call settles some hundreds at most, so that Redis is not held up."""
    await desk.enqueue(*(f"dead-{n}" for n in range(600)), "alive")
    async with desk.redis.pipeline(transaction=False) as pipe:
        for n in range(600):
            pipe.hset(desk.keys.request(f"dead-{n}"), "expires", 1)
        await pipe.execute()
    rooms = [Room("interactive", 16, 16)]

    fetched = [await desk.lease("w1").fetch(rooms, total=16) for _ in range(2)]

    assert [ids(one.assignments) for one in fetched] == [[], ["alive"]]
    assert [one.again for one in fetched] == [True, False]
    assert (await desk.waiting())["interactive"] == 0


async def test_a_payload_of_a_newer_version_arrives_as_unreadable(desk):
    await desk.enqueue("a")
    await desk.set("a", payload='{"sampling":{"seed":1},"v":99}')

    [held] = await desk.fetch()

    assert held.request is None
    assert await desk.finish("w1", held)


async def test_a_log_that_cannot_be_read_makes_the_request_unreadable_and_it_can_still_be_ended(desk):
    [held] = await desk.hold("a")
    await desk.emit("w1", held, 0, 1, 2)
    await desk.park("w1", held)
    entry = (await desk.redis.xrange(desk.keys.log("a"), "1-2"))[0][0]
    await desk.redis.xdel(desk.keys.log("a"), entry)
    await desk.redis.xadd(desk.keys.log("a"), {"p": '"ids":"from the future"'}, id="1-3")

    [again] = await desk.fetch("w2")

    assert again.request is None
    assert await desk.finish("w2", again, again.position)


async def test_the_age_of_the_oldest_request_is_told_parked_or_not(desk):
    rooms = [Room("interactive", 0, 0), Room("bulk", 0, 0)]
    [held] = await desk.hold("first")
    await desk.enqueue("second")
    await asyncio.sleep(0.02)

    fresh = await desk.lease("w1").fetch(rooms, 0)
    await desk.park("w1", held)
    parked = await desk.lease("w1").fetch(rooms, 0)

    assert 0 < fresh.head_age_ms["interactive"] <= parked.head_age_ms["interactive"]
    assert fresh.head_age_ms["bulk"] == 0
