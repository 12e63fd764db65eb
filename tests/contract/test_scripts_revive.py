"""revive: a dead letter's request goes back into its lane, once, and on from its log."""

import pytest

from shared.dead_letters import DeadLetters, Letter, Retried
from shared.lanes import Lane
from tests.support.desk import KEEP_MS, MODEL, Desk, request, submission
from tests.support.ear import Ear

LANE = Lane(max_queued=1, queue_timeout_s=60, deadline_s=600)
CHANNEL = "bw:gw:g"
QUEUED = Retried("queued")


async def bury(desk: Desk, *ids: str, tokens: tuple[int, ...] = (), **more) -> list[Letter]:
    """Have the requests take a worker down; the letters of all."""
    for held in await desk.hold(*ids, **more):
        if tokens:
            assert await desk.emit("w1", held, 0, *tokens)
        await desk.silence(held)
    assert await desk.claim("w2", max_deaths=1) == []
    return await letters(desk)


async def letters(desk: Desk) -> list[Letter]:
    return [letter async for letter in DeadLetters(desk.redis).read([MODEL])]


async def retry(desk: Desk, letter: Letter) -> Retried:
    return await DeadLetters(desk.redis).retry(letter, LANE)


async def test_a_letter_says_whose_it_is_and_nothing_of_what_was_asked(desk):
    [letter] = await bury(desk, "a", lane="bulk")

    assert (letter.model, letter.request_id, letter.lane, letter.cause) == (MODEL, "a", "bulk", "worker_lost")
    assert (letter.deaths, letter.owner) == (1, "w1")
    assert letter.payload_bytes > 0 and letter.age_ms < 60_000
    assert '"prompt":"a"' in (await DeadLetters(desk.redis).payload(letter)).decode()


async def test_it_is_queued_with_its_id_and_without_its_deaths_and_the_letter_is_gone(desk):
    [letter] = await bury(desk, "a")
    async with Ear(desk.redis, desk.keys.bell) as bell:
        assert await retry(desk, letter) == QUEUED

        assert await bell.heard() == [b"interactive"]
    record = await desk.broker.record(MODEL, "a")
    assert (record.state, record.deaths, record.outcome) == ("queued", 0, None)
    assert await letters(desk) == []
    assert (await desk.waiting(), await desk.waiting_tokens()) == ({"interactive": 1, "bulk": 0}, 10)


async def test_it_goes_on_from_its_log_and_ends_like_any_other(desk):
    [letter] = await bury(desk, "a", tokens=(5, 6))

    await retry(desk, letter)
    [held] = await desk.fetch("w3")
    await desk.emit("w3", held, 2, 7)

    assert (held.prior_ids, held.position, held.deaths, held.request) == ((5, 6), 2, 0, request("a"))
    assert await desk.finish("w3", held, 3)
    replayed = await desk.broker.replay(MODEL, "a")
    assert [token for frame in replayed for token in frame.ids] == [5, 6, 7]
    assert await desk.state("a") == "done"


async def test_it_runs_to_its_end_though_nobody_watches(desk):
    async with Ear(desk.redis, CHANNEL) as ear:
        [letter] = await bury(desk, "a", channel=CHANNEL)
        await retry(desk, letter)
        [held] = await desk.fetch("w3")
        await desk.finish("w3", held)

        assert await ear.ends() == {"a": "failed"}, "who asked was told once, and is not told again"
    assert await desk.redis.hget(desk.keys.request("a"), "detach") == b"1"


async def test_a_zombie_of_the_life_before_is_refused(desk):
    [old] = await desk.hold("a")
    await desk.silence(old)
    await desk.claim("w2", max_deaths=1)
    [letter] = await letters(desk)
    await retry(desk, letter)
    assert not await desk.emit("w1", old, 0, 5)
    [new] = await desk.fetch("w3")

    assert not await desk.emit("w1", old, 0, 5)
    assert not await desk.finish("w1", old)
    assert await desk.emit("w3", new, 0, 5)


async def test_repeating_it_changes_nothing(desk):
    [letter] = await bury(desk, "a")
    await retry(desk, letter)

    assert await retry(desk, letter) == Retried("gone", "queued")
    [held] = await desk.fetch("w3")
    assert await retry(desk, letter) == Retried("gone", "running")
    await desk.finish("w3", held)
    assert await retry(desk, letter) == Retried("gone", "done")
    assert await desk.redis.xlen(desk.keys.stream("interactive")) == 0


async def test_a_letter_that_was_dropped_is_not_retried(desk):
    [letter] = await bury(desk, "a")
    store = DeadLetters(desk.redis)

    assert (await store.drop([letter]), await store.drop([letter])) == (1, 0)

    assert await retry(desk, letter) == Retried("gone", "failed")
    assert await desk.state("a") == "failed"


async def test_a_request_that_is_forgotten_starts_anew_under_its_id(desk):
    [letter] = await bury(desk, "a", tokens=(5, 6), tenant="t", fingerprint="f")
    await desk.redis.delete(desk.keys.request("a"), desk.keys.log("a"))

    assert await retry(desk, letter) == QUEUED

    found = await desk.redis.hmget(desk.keys.request("a"), ["tenant", "print", "detach"])
    [held] = await desk.fetch("w3")
    assert found == [b"t", b"f", b"1"]
    assert (held.attempt, held.prior_ids, held.request) == (1, (), request("a"))
    assert await desk.emit("w3", held, 0, 5)


async def test_a_log_that_outlived_its_request_is_in_nobodys_way(desk):
    [letter] = await bury(desk, "a", tokens=(5, 6))
    await desk.redis.delete(desk.keys.request("a"))

    await retry(desk, letter)

    [held] = await desk.fetch("w3")
    assert (held.attempt, held.position) == (1, 0)
    assert await desk.finish("w3", held)


@pytest.mark.parametrize("state", ["queued", "running", "done"])
async def test_of_a_request_that_was_asked_for_again_only_the_letter_goes(desk, state):
    """Its client came back with the same key before the operator did."""
    [letter] = await bury(desk, "a", fingerprint="f")
    again = await desk.broker.enqueue(submission("a", fingerprint="f"), Lane())
    assert not again.joined
    if state != "queued":
        [held] = await desk.fetch("w3")
    if state == "done":
        await desk.finish("w3", held)

    assert await retry(desk, letter) == Retried("moot", state)

    assert (await desk.state("a"), await letters(desk)) == (state, [])
    assert (await desk.waiting())["interactive"] == int(state == "queued")


async def test_the_later_letter_of_a_request_that_died_twice_decides(desk):
    [first] = await bury(desk, "a", fingerprint="f")
    await desk.broker.enqueue(submission("a", fingerprint="f"), Lane())
    [held] = await desk.fetch("w3")
    await desk.silence(held, owner="w3")
    await desk.claim("w2", max_deaths=1)
    both = await DeadLetters(desk.redis).find("a", [MODEL])

    told = [await retry(desk, letter) for letter in reversed(both)]

    assert both[0].entry == first.entry
    assert told == [QUEUED, Retried("moot", "queued")]


async def test_a_letter_without_a_payload_stays(desk):
    """Those of an earlier release have none."""
    entry = await desk.redis.xadd(desk.keys.dead_letters, {"id": "a", "deaths": "3", "owner": "w1"})
    [letter] = await letters(desk)

    assert await retry(desk, letter) == Retried("empty")

    assert [one.entry for one in await letters(desk)] == [entry.decode()]
    assert await desk.state("a") is None


async def test_it_enters_a_full_lane_and_lives_as_long_as_the_lane_lets_it(desk):
    [letter] = await bury(desk, "a")
    await desk.enqueue("b", bounds=LANE)

    assert await retry(desk, letter) == QUEUED

    queued, expires, deadline = map(
        int, await desk.redis.hmget(desk.keys.request("a"), ["queued", "expires", "deadline"])
    )
    assert (expires - queued, deadline - queued) == (60_000, 600_000)
    assert await desk.redis.pttl(desk.keys.request("a")) > 600_000 > KEEP_MS
    assert (await desk.waiting())["interactive"] == 2


async def test_all_letters_are_read_whatever_a_page_holds(desk, monkeypatch):
    monkeypatch.setattr("shared.dead_letters.PAGE", 2)
    for number in range(5):
        await bury(desk, f"r{number}")

    assert [letter.request_id for letter in await letters(desk)] == [f"r{number}" for number in range(5)]


async def test_a_letter_is_found_by_request_and_by_entry(desk):
    first, second = await bury(desk, "a", "b")
    store = DeadLetters(desk.redis)

    assert [one.entry for one in await store.find("b", [MODEL])] == [second.entry]
    assert [one.entry for one in await store.find(first.entry, ["other", MODEL])] == [first.entry]
    assert await store.find("c", [MODEL]) == []
