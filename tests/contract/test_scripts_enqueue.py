"""enqueue: absent -> queued, within exact bounds, once."""

import pytest

from shared import broker
from shared.broker import CANCELLED, EXPIRED, Queued
from shared.errors import KeyReused, LaneFull
from shared.lanes import Lane
from tests.support.desk import DONE, FAILED, MANY, request, submission
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


async def again(desk, request_id, *, fingerprint="p", bounds=ROOMY, **more):
    """The client's own key once more."""
    return await desk.broker.enqueue(submission(request_id, fingerprint=fingerprint, **more), bounds)


ENDS = {one.state: one for one in (DONE, FAILED, CANCELLED, EXPIRED)}


async def end(desk, request_id, state):
    """Queue it, have it produce two tokens unless it never starts, and end it so."""
    await again(desk, request_id)
    if state == "never started":
        await desk.cancel(request_id)
        return
    [held] = await desk.fetch()
    await desk.emit("w1", held, 0, 5, 6)
    await desk.finish("w1", held, 2, ENDS[state])


@pytest.mark.parametrize("state", ["failed", "cancelled", "expired"])
async def test_with_its_key_a_request_that_was_not_answered_goes_on_from_its_log(desk, state):
    await end(desk, "a", state)

    assert await again(desk, "a") == Queued(ahead=0, starts_in_ms=0)

    [held] = await desk.fetch("w2")
    assert (held.attempt, held.prior_ids, held.request) == (2, (5, 6), request("a"))
    assert await desk.emit("w2", held, 2, 7)
    assert await desk.finish("w2", held, 3)
    assert [frame.ids for frame in await desk.broker.replay("m", "a")] == [(5, 6), (7,)]
    record = await desk.broker.record("m", "a")
    assert (record.state, record.attempt, record.tokens) == ("done", 2, 3)


async def test_with_its_key_a_request_that_never_started_starts(desk):
    await end(desk, "a", "never started")

    await again(desk, "a")

    [held] = await desk.fetch()
    assert held.prior_ids == ()
    assert await desk.emit("w1", held, 0, 5)


async def test_a_request_that_is_queued_again_knows_nothing_of_its_first_end(desk):
    """It waits as long as any other, is kept as long, and its first cancel is forgotten."""
    await again(desk, "a", detached=True, channel="bw:gw:old")
    [held] = await desk.fetch()
    await desk.emit("w1", held, 0, 5)
    await desk.cancel("a")
    await desk.finish("w1", held, 1, CANCELLED)

    await again(desk, "a", bounds=Lane(queue_timeout_s=60, deadline_s=600))

    fields = await desk.redis.hgetall(desk.keys.request("a"))
    assert set(fields) == {
        *(b"state", b"lane", b"entry", b"cost", b"attempt", b"queued", b"expires", b"deadline", b"payload", b"print"),
        b"turn",
    }
    assert int(fields[b"expires"]) - int(fields[b"queued"]) == 60_000
    for key in (desk.keys.request("a"), desk.keys.log("a")):
        assert await desk.redis.pttl(key) > 600_000
    await desk.set("a", expires=1)
    assert await desk.fetch() == [], "it waits for its first worker"
    assert await desk.state("a") == "expired"


async def test_deaths_are_counted_on(desk):
    await end(desk, "a", "failed")
    await desk.set("a", deaths=2)

    await again(desk, "a")

    assert [one.deaths for one in await desk.fetch()] == [2]


@pytest.mark.parametrize("state", ["queued", "running", "done"])
async def test_with_its_key_a_request_that_is_or_was_answered_is_joined(desk, state):
    if state == "done":
        await end(desk, "a", state)
    else:
        await again(desk, "a")
    if state == "running":
        await desk.fetch()

    assert await again(desk, "a") == Queued(joined=True)

    assert await desk.state("a") == state
    assert await desk.redis.xlen(desk.keys.stream("interactive")) == (state != "done")


@pytest.mark.parametrize("state", ["queued", "failed", "done"])
async def test_a_key_that_came_with_another_request_is_refused(desk, state):
    await (again(desk, "a") if state == "queued" else end(desk, "a", state))

    with pytest.raises(KeyReused):
        await again(desk, "a", fingerprint="another")

    assert await desk.state("a") == state


async def test_an_id_without_a_key_is_never_queued_again(desk):
    [held] = await desk.hold("a")
    await desk.finish("w1", held, 0, FAILED)

    assert await desk.enqueue("a") == [None]
    assert await desk.state("a") == "failed"


async def test_a_full_lane_leaves_the_first_end_as_it_was(desk):
    await end(desk, "a", "failed")
    await desk.enqueue("b")

    with pytest.raises(LaneFull):
        await again(desk, "a", bounds=Lane(max_queued=1))

    record = await desk.broker.record("m", "a")
    assert (record.state, record.tokens, record.outcome) == ("failed", 2, FAILED)
