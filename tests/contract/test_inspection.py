"""inspect: all that can be said of one request, in every state, without touching it."""

import pytest

from shared import wire
from shared.broker import CANCELLED, Broker
from shared.inspection import Found, Inspector
from shared.lanes import Lane
from tests.support.desk import DONE, KEEP_MS, MODEL, Desk, submission

LIVES = Lane(queue_timeout_s=60, deadline_s=600)
META = wire.Meta(endpoint="completions", created=5, tier="default")


async def seen(desk: Desk, request_id: str, lane: str = "interactive"):
    return await Inspector(desk.redis).inspect(MODEL, lane, request_id)


async def test_nothing_is_known_of_what_was_never_queued_and_nothing_is_made(desk):
    assert await seen(desk, "never") is None
    assert await desk.redis.keys("*") == []


async def test_a_queued_request(desk):
    await desk.enqueue("first", "a", bounds=LIVES)

    found = await seen(desk, "a")

    assert (found.id, found.model, found.lane, found.state) == ("a", MODEL, "interactive", "queued")
    assert (found.ahead, found.waiting, found.starts_in_ms) == (1, 2, None)
    assert (found.attempts, found.deaths, found.tokens, found.worker) == (0, 0, 0, "")
    assert (found.watched, found.detached, found.cancelling, found.outcome) == (False, False, False, None)
    assert found.queued_ms is None
    assert 0 <= found.age_ms < 60_000
    assert 0 < found.queue_timeout_in_ms <= 60_000 < found.deadline_in_ms <= 600_000


async def test_a_running_request(desk):
    [held] = await desk.hold("a", worker="w7", channel="bw:gw:1", detached=True, bounds=LIVES)
    await desk.emit("w7", held, 0, 5, 6)

    found = await seen(desk, "a")

    assert (found.state, found.worker, found.attempts, found.tokens) == ("running", "w7", 1, 2)
    assert (found.watched, found.detached) == (True, True)
    assert (found.ahead, found.waiting, found.starts_in_ms, found.queue_timeout_in_ms) == (None, 0, None, None)
    assert 0 <= found.queued_ms <= found.age_ms
    assert 0 < found.deadline_in_ms <= 600_000


async def test_a_parked_request_is_nobodys_and_keeps_its_tokens(desk):
    [held] = await desk.hold("a")
    await desk.emit("w1", held, 0, 5)
    await desk.park("w1", held)

    found = await seen(desk, "a")

    assert (found.state, found.worker, found.tokens, found.ahead) == ("parked", "", 1, 0)
    assert found.queue_timeout_in_ms is None, "it has been started once"


async def test_a_running_request_on_its_way_to_its_cancel(desk):
    [held] = await desk.hold("a")
    await desk.cancel("a")
    asked = await seen(desk, "a")
    await desk.finish("w1", held, 0, CANCELLED)
    ended = await seen(desk, "a")

    assert (asked.state, asked.cancelling) == ("running", True)
    assert (ended.state, ended.cancelling) == ("cancelled", False)


async def test_a_request_that_has_ended(desk):
    [held] = await desk.hold("a")
    await desk.emit("w1", held, 0, 5, 6)
    await desk.finish("w1", held, 2)

    found = await seen(desk, "a")

    assert (found.state, found.tokens, found.outcome, found.worker) == ("done", 2, DONE, "")
    assert (found.ahead, found.starts_in_ms, found.queue_timeout_in_ms, found.deadline_in_ms) == (None,) * 4


async def test_deaths_and_attempts_are_told(desk):
    [held] = await desk.hold("a")
    await desk.silence(held)
    await desk.claim("w2")

    found = await seen(desk, "a")

    assert (found.attempts, found.deaths, found.worker) == (2, 1, "w2")


async def test_ahead_are_all_that_wait_and_would_be_taken_before(desk):
    """First what is parked, the oldest first, whenever it was parked; then what was queued. Nothing that runs."""
    held = await desk.hold("runs", "p1", "p2")
    await desk.enqueue("q1", "q2")
    await desk.enqueue("elsewhere", lane="bulk")
    await desk.park("w1", held[2])
    await desk.park("w1", held[1])
    await desk.enqueue("q3")

    places = {name: (await seen(desk, name)).ahead for name in ("runs", "p1", "p2", "q1", "q2", "q3")}

    assert places == {"runs": None, "p1": 0, "p2": 1, "q1": 2, "q2": 3, "q3": 4}
    assert [one.id for one in await desk.fetch(total=5)] == ["p1", "p2", "q1", "q2", "q3"], "and so they are taken"


async def test_the_place_moves_up_whoever_leaves(desk):
    await desk.enqueue("a", "b", "c", "d")
    await desk.fetch(total=1)
    taken = (await seen(desk, "d")).ahead
    await desk.cancel("b")
    cancelled = (await seen(desk, "d")).ahead

    assert (taken, cancelled) == (2, 1)


async def test_the_place_of_one_far_back_is_reckoned(desk, monkeypatch):
    """Counting takes the server's time. Whatever leaves before it, and whatever comes back, is accounted for."""
    monkeypatch.setattr("shared.inspection.MOST_COUNTED", 3)
    names = [f"r{n}" for n in range(12)]
    await desk.enqueue(*names)
    places = [(await seen(desk, "r11")).ahead]
    first, second, *_ = await desk.fetch(total=4)
    places.append((await seen(desk, "r11")).ahead)
    await desk.park("w1", first)
    await desk.park("w1", second)
    places.append((await seen(desk, "r11")).ahead)
    await desk.cancel("r6")
    places.append((await seen(desk, "r11")).ahead)
    await desk.fetch(total=1)
    places.append((await seen(desk, "r11")).ahead)
    await desk.enqueue("new")

    assert places == [11, 7, 9, 8, 7]
    assert (await seen(desk, "new")).ahead == 8, "nothing that left before it came is counted"
    assert [(await seen(desk, name)).ahead for name in ("r4", "r5", "r7")] == [1, 2, 3], "those in front are counted"


async def test_a_reckoned_place_is_never_before_those_that_were_counted(desk, monkeypatch):
    """Those that were cancelled behind it are taken for ones ahead."""
    monkeypatch.setattr("shared.inspection.MOST_COUNTED", 3)
    await desk.enqueue(*(f"r{n}" for n in range(9)))
    for name in ("r6", "r7", "r8"):
        await desk.cancel(name)

    assert [(await seen(desk, name)).ahead for name in ("r2", "r3", "r5")] == [2, 3, 3]
    await desk.set("r5", turn=99)
    assert (await seen(desk, "r5")).ahead == 5, "nor behind the last"


async def test_the_start_is_estimated_by_the_pace_of_the_lane(desk):
    await desk.enqueue("a", "b", "c", "d")
    await desk.pace(50, 10_000)

    assert [(await seen(desk, name)).starts_in_ms for name in "abcd"] == [0, 200, 400, 600]


async def test_looking_changes_nothing(desk):
    _, held = await desk.hold("runs", "parked")
    await desk.park("w1", held)
    await desk.enqueue("waits")

    async def all_there_is():
        hashes = [desk.keys.request(name) for name in ("runs", "parked", "waits")] + [desk.keys.stats("interactive")]
        return [await desk.redis.hgetall(key) for key in hashes], sorted(await desk.redis.keys("*"))

    before = await all_there_is()
    for name in ("runs", "parked", "waits"):
        await seen(desk, name)

    assert await all_there_is() == before


async def test_a_request_is_found_among_the_models_with_whose_it_is(desk):
    other = submission("a", lane="bulk", tenant="t", meta=META)
    await Broker(desk.redis, keep_ms=KEEP_MS).enqueue(other, Lane())
    await desk.enqueue("b")
    inspector = Inspector(desk.redis)

    assert await inspector.find("a", ["x", MODEL]) == Found(MODEL, "bulk", "queued", "t", META)
    assert await inspector.find("b", [MODEL]) == Found(MODEL, "interactive", "queued", "", None)
    assert await inspector.find("never", [MODEL]) is None


@pytest.mark.parametrize("models", [[], ["x"]])
async def test_a_request_is_not_found_where_it_is_not(desk, models):
    await desk.enqueue("a")

    assert await Inspector(desk.redis).find("a", models) is None
