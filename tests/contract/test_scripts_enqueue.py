"""enqueue: absent -> queued, within exact bounds, once."""

import pytest

from shared import broker
from shared.broker import retry_after_s
from shared.errors import LaneFull
from shared.lanes import Lane
from tests.support.desk import MANY
from tests.support.ear import Ear

ROOMY = Lane(max_queued=MANY, max_queued_tokens=10**9)


async def test_an_accepted_request_is_queued_and_learns_how_many_are_ahead(desk):
    ahead = await desk.enqueue("a", "b", "c")

    assert ahead == [0, 1, 2]
    assert await desk.state("c") == "queued"
    assert await desk.waiting() == {"interactive": 3, "bulk": 0}
    assert await desk.waiting_tokens() == 30


async def test_the_same_id_again_changes_nothing_in_any_state(desk):
    await desk.enqueue("a")
    await desk.enqueue("a")
    assert await desk.waiting() == {"interactive": 1, "bulk": 0}
    [held] = await desk.fetch()
    await desk.enqueue("a")
    assert await desk.state("a") == "running"
    await desk.finish("w1", held)

    await desk.enqueue("a")

    assert await desk.state("a") == "done"
    assert await desk.redis.xlen(desk.keys.stream("interactive")) == 0
    assert await desk.waiting_tokens() == 0


async def test_the_bell_rings_once_for_each_accepted_request(desk):
    async with Ear(desk.redis, desk.keys.bell) as bell:
        await desk.enqueue("a", "a", "b", lane="bulk")

        assert await bell.heard() == [b"bulk", b"bulk"]


async def test_one_more_than_the_bound_of_requests_is_refused(desk):
    bounds = Lane(max_queued=2)
    await desk.enqueue("a", "b", bounds=bounds)

    with pytest.raises(LaneFull, match="2 requests and 20 tokens"):
        await desk.enqueue("c", bounds=bounds)

    assert await desk.state("c") is None
    assert await desk.waiting_tokens() == 20
    assert await desk.enqueue("d", lane="bulk", bounds=bounds) == [0], "the other lane has room"


async def test_a_repeat_of_a_queued_request_passes_a_full_lane(desk):
    """Its first reply was lost; the request is in, and saying 'full' would lie."""
    bounds = Lane(max_queued=1)
    await desk.enqueue("a", bounds=bounds)

    assert await desk.enqueue("a", bounds=bounds) == [None]


async def test_the_bound_of_tokens_is_met_exactly(desk):
    bounds = Lane(max_queued_tokens=30)
    await desk.enqueue("a", "b", bounds=bounds)
    with pytest.raises(LaneFull):
        await desk.enqueue("c", cost=11, bounds=bounds)

    assert await desk.enqueue("d", cost=10, bounds=bounds) == [2]


async def test_one_oversized_request_enters_an_empty_lane_and_no_second(desk):
    """It could never run otherwise."""
    bounds = Lane(max_queued_tokens=30)
    await desk.enqueue("a", cost=1000, bounds=bounds)

    with pytest.raises(LaneFull):
        await desk.enqueue("b", cost=1, bounds=bounds)


async def test_running_requests_do_not_count_against_the_bound_but_parked_ones_do(desk):
    bounds = Lane(max_queued=1)
    [held] = await desk.hold("a", bounds=bounds)
    assert await desk.enqueue("b", bounds=bounds) == [0]
    await desk.fetch("w2")

    await desk.park("w1", held)

    with pytest.raises(LaneFull):
        await desk.enqueue("c", bounds=bounds)


async def test_depth_and_tokens_are_right_in_every_state(desk):
    """Depth is what is in the stream, less what is pending, plus what is parked."""

    async def waits():
        return (await desk.waiting())["interactive"], await desk.waiting_tokens()

    await desk.enqueue("a", "b", "c", "d")
    assert await waits() == (4, 40)
    a, b, c = await desk.fetch(total=3)
    assert await waits() == (1, 10)
    await desk.park("w1", a)
    await desk.park("w1", b)
    assert await waits() == (3, 30)
    await desk.finish("w1", c)
    assert await waits() == (3, 30)
    await desk.cancel("a")
    await desk.cancel("d")
    assert await waits() == (1, 10)
    [again] = await desk.fetch("w2")
    assert await waits() == (0, 0)
    await desk.silence(again, owner="w2")
    await desk.claim("w3", max_deaths=1)
    assert await waits() == (0, 0)
    assert await desk.redis.xlen(desk.keys.stream("interactive")) == 0


async def test_a_wrong_token_counter_heals_when_the_lane_is_empty(desk):
    await desk.redis.hset(desk.keys.stats("interactive"), "tokens", 10**9)

    await desk.enqueue("a", bounds=Lane(max_queued_tokens=100))

    assert await desk.waiting_tokens() == 10


async def test_the_wait_is_bounded_by_the_shorter_deadline(desk):
    lane = Lane(queue_timeout_s=60, deadline_s=600)
    await desk.enqueue("long", bounds=lane)
    await desk.enqueue("short", bounds=lane, deadline_ms=5_000)
    await desk.enqueue("greedy", bounds=lane, deadline_ms=10**9)

    async def limits(request_id):
        raw = await desk.redis.hmget(desk.keys.request(request_id), ["queued", "expires", "deadline"])
        queued, expires, deadline = (int(value) for value in raw)
        return expires - queued, deadline - queued

    assert await limits("long") == (60_000, 600_000)
    assert await limits("short") == (5_000, 5_000)
    assert await limits("greedy") == (60_000, 600_000)
    kept = await desk.redis.pttl(desk.keys.request("short"))
    assert 5_000 < kept <= 5_000 + broker.KEEP_BEYOND_DEADLINE_MS


async def test_a_full_lane_that_drains_says_when_to_come_back(desk):
    """Ten left within the window: between a half and one a second."""
    bounds = Lane(max_queued=20)
    await desk.hold(*(f"gone-{n}" for n in range(10)), bounds=bounds)
    await desk.enqueue(*(f"wait-{n}" for n in range(20)), bounds=bounds)

    with pytest.raises(LaneFull) as caught:
        await desk.enqueue("late", bounds=bounds)

    assert 1 <= caught.value.retry_after_s <= 2


async def test_a_full_lane_that_does_not_drain_says_the_longest(desk):
    bounds = Lane(max_queued=1)
    await desk.enqueue("a", bounds=bounds)

    with pytest.raises(LaneFull) as caught:
        await desk.enqueue("b", bounds=bounds)

    assert caught.value.retry_after_s == broker.MAX_RETRY_AFTER_S


@pytest.mark.parametrize(
    ("bound", "per_second", "seconds"),
    [(1000, 100, 1), (1000, 10, 5), (1000, 0.1, 60), (1, 0.5, 2), (1000, 0, 60), (1000, -1, 60), (1000, 1e9, 1)],
)
def test_the_time_to_come_back_is_that_of_a_twentieth_of_the_lane(bound, per_second, seconds):
    assert retry_after_s(bound=bound, per_second=per_second) == seconds
