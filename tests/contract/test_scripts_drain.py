"""The pace of a lane: what is measured, and whom it refuses. Time passes by setting the lane's fields."""

import pytest

from shared import broker
from shared.broker import estimate_ms, retry_after_s
from shared.errors import DeadlineTooNear, LaneFull
from shared.inspection import Inspector
from shared.lanes import Lane
from tests.support.desk import MODEL, submission

FULL = 20
NARROW = Lane(max_queued=FULL)


async def estimate(desk, request_id):
    """When it would start, in ms, by the lane's pace."""
    return (await Inspector(desk.redis).inspect(MODEL, "interactive", request_id)).starts_in_ms


async def measured(desk):
    """How many left while others waited, and in how many ms."""
    served, busy = await desk.redis.hmget(desk.keys.stats("interactive"), ["served", "busy"])
    return float(served), int(busy)


async def queue(desk, request_id, bounds=None, **more):
    return await desk.broker.enqueue(submission(request_id, **more), bounds or Lane())


async def fill(desk, count):
    await desk.enqueue(*(f"r{n}" for n in range(count)))


async def test_nothing_is_known_while_nobody_waited(desk):
    """They were all taken at once: that is no pace of the lane's, it could have given more."""
    await desk.hold(*(f"gone-{n}" for n in range(9)))
    await fill(desk, 2)
    await desk.enqueue("last")

    assert await estimate(desk, "last") is None
    assert await estimate(desk, "r0") == 0, "the first needs no pace"


async def test_what_leaves_while_others_wait_makes_the_pace(desk):
    await fill(desk, 8)
    await desk.pace(0, 10_000)

    await desk.fetch(total=5)

    assert await measured(desk) == (5, 10_000)


@pytest.mark.parametrize("way", ["fetched", "claimed"])
async def test_every_way_to_a_worker_counts(desk, way):
    if way == "claimed":
        [held] = await desk.hold("r0")
        await desk.park("w1", held)
        await desk.silence(held, owner="parked")
    else:
        await desk.enqueue("r0")
    await desk.enqueue("r1")
    await desk.pace(0, 10_000)

    leave = {"fetched": desk.fetch, "claimed": desk.claim}
    await leave[way](total=1)

    assert await measured(desk) == (1, 10_000)


async def test_what_is_cancelled_is_no_pace_of_the_lanes(desk):
    await fill(desk, 5)
    await desk.pace(2, 10_000)

    for number in range(4):
        await desk.cancel(f"r{number}")

    assert await measured(desk) == (2, 10_000)


async def test_the_one_that_empties_the_lane_does_not_count(desk):
    """Nobody had to wait for it, and from then on nobody waits."""
    await fill(desk, 2)
    await desk.pace(7, 10_000, ago_ms=20_000)

    await desk.fetch()

    assert await measured(desk) == (7, 10_000)
    assert not await desk.redis.hexists(desk.keys.stats("interactive"), "mark")


async def test_what_empties_the_lane_faster_than_its_pace_disproves_it(desk):
    """As after a time without workers: what waited is taken at once, and the lane is not slow any more."""
    await fill(desk, 9)
    await desk.pace(1, 30_000, ago_ms=100)

    await desk.fetch()

    assert not await desk.redis.hexists(desk.keys.stats("interactive"), "served")


async def test_time_in_which_nobody_waits_does_not_lower_the_pace(desk):
    """It counts again with the first that waits; what was seen before weighs the less, the longer that took."""
    await fill(desk, 1)
    await desk.pace(100, 10_000, ago_ms=1000)
    await desk.fetch()
    emptied = await desk.now_ms()
    await desk.redis.hset(desk.keys.stats("interactive"), "idle", emptied - 24_000)

    await desk.enqueue("next")

    served, busy_ms = await measured(desk)
    assert served / busy_ms == pytest.approx(100 / 10_000, rel=0.01)
    assert busy_ms < 1000, "after so long a rest it refuses nobody any more"
    assert int(await desk.redis.hget(desk.keys.stats("interactive"), "mark")) >= emptied


async def test_the_pace_is_told_with_the_place(desk):
    await fill(desk, 4)
    await desk.pace(20, 10_000)

    assert await queue(desk, "new") == broker.Queued(ahead=4, starts_in_ms=2000)


async def test_a_full_lane_says_when_a_twentieth_of_it_will_have_left(desk):
    await fill(desk, FULL)
    await desk.pace(5, 10_000)

    with pytest.raises(LaneFull) as caught:
        await queue(desk, "late", NARROW)

    assert caught.value.retry_after_s == 2


async def test_a_full_lane_that_does_not_drain_says_the_longest(desk):
    await fill(desk, FULL)

    with pytest.raises(LaneFull) as caught:
        await queue(desk, "late", NARROW)

    assert caught.value.retry_after_s == broker.MAX_RETRY_AFTER_S


@pytest.mark.parametrize(("timeout_s", "deadline_ms"), [(20, None), (600, 20_000)])
async def test_what_would_not_start_in_time_is_refused_and_told_when_it_would(desk, timeout_s, deadline_ms):
    """Five wait, one leaves in ten seconds: 50 s, and there are 20."""
    await fill(desk, 5)
    await desk.pace(1, 10_000)

    with pytest.raises(DeadlineTooNear, match=r"5 requests wait.*0\.1 a second.*within 20 s") as caught:
        await queue(desk, "late", Lane(queue_timeout_s=timeout_s), deadline_ms=deadline_ms)

    assert caught.value.retry_after_s == 30
    assert await desk.state("late") is None
    assert await desk.waiting_tokens() == 50


async def test_what_would_just_start_in_time_is_queued(desk):
    await fill(desk, 5)
    await desk.pace(1, 10_000)

    assert (await queue(desk, "a", Lane(queue_timeout_s=50))).starts_in_ms == 50_000


async def test_an_empty_lane_refuses_nobody_however_slow_it_was(desk):
    await desk.pace(1, 10_000_000)

    assert (await queue(desk, "a", Lane(queue_timeout_s=1))).ahead == 0


@pytest.mark.parametrize(("busy_ms", "is_refused"), [(999, False), (1000, True)])
async def test_a_pace_seen_for_less_than_a_second_refuses_nobody(desk, busy_ms, is_refused):
    await fill(desk, 5)
    await desk.pace(0.1, busy_ms)

    try:
        await queue(desk, "a", Lane(queue_timeout_s=20))
    except DeadlineTooNear:
        assert is_refused
    else:
        assert not is_refused


async def test_a_lane_that_has_all_but_stopped_refuses_in_words(desk):
    """Less than one in a thousand seconds: no division by a pace that was rounded to nothing."""
    await fill(desk, 5)
    await desk.pace(1, 10_000_000)

    with pytest.raises(DeadlineTooNear) as caught:
        await queue(desk, "late", Lane(queue_timeout_s=20))

    assert caught.value.retry_after_s == broker.MAX_RETRY_AFTER_S
    assert await estimate(desk, "r4") is not None


@pytest.mark.parametrize("since_s", [0, 10, 25])
async def test_a_lane_whose_requests_leave_in_batches_keeps_its_pace_between_two_of_them(desk, since_s):
    """64 leave every 30 s. Shortly before the next batch that is still a pace, and 60 that wait will start in time."""
    await fill(desk, 60)
    await desk.pace(64, 30_000, ago_ms=since_s * 1000)

    assert (await queue(desk, "a", Lane(queue_timeout_s=120))).ahead == 60
    assert await estimate(desk, "a") == pytest.approx(42_000, rel=0.6)


async def test_a_lane_that_stops_is_seen_to_be_slower_and_slower(desk):
    await fill(desk, 3)
    estimates = []
    for stopped_s in (0, 10, 100, 1000):
        await desk.pace(100, 10_000, ago_ms=stopped_s * 1000)
        estimates.append(await estimate(desk, "r2"))

    assert estimates == sorted(estimates)
    assert estimates[-1] > 10 * estimates[0]


async def test_time_without_a_worker_tells_nothing_of_the_pace(desk):
    """After an outage the first who comes is not refused for it."""
    await fill(desk, 6)
    await desk.pace(20, 10_000, ago_ms=300_000)
    await desk.redis.delete(f"{desk.keys.prefix}alive_since")
    assert await queue(desk, "nobody lives") == broker.Queued(ahead=6, starts_in_ms=3000)

    await desk.beat("w1")
    await desk.fetch("w1", 2)

    served, busy_ms = await measured(desk)
    assert served / busy_ms >= 20 / 10_000


async def test_the_fleet_is_alive_since_its_first_worker_came(desk):
    await desk.beat("w1")
    since = await desk.redis.get(f"{desk.keys.prefix}alive_since")
    await desk.beat("w2")
    await desk.beat("w1")

    assert await desk.redis.get(f"{desk.keys.prefix}alive_since") == since
    assert await desk.redis.pttl(f"{desk.keys.prefix}alive_since") > 0


@pytest.mark.parametrize(
    ("bound", "per_second", "seconds"),
    [(1000, 100, 1), (1000, 10, 5), (1000, 0.1, 60), (1, 0.5, 2), (1000, 0, 60), (1000, -1, 60), (1000, 1e9, 1)],
)
def test_the_time_to_come_back_is_that_of_a_twentieth_of_the_lane(bound, per_second, seconds):
    assert retry_after_s(bound=bound, per_second=per_second) == seconds


@pytest.mark.parametrize(("ahead", "per_second", "ms"), [(0, 0, 0), (0, 5, 0), (1, 0, None), (3, 2, 1500), (1, 3, 334)])
def test_the_time_to_the_start_is_that_of_those_ahead(ahead, per_second, ms):
    assert estimate_ms(ahead, per_second) == ms
