"""claim: what a silent worker held goes on elsewhere, and what kills workers is given up."""

import pytest

from shared import wire
from shared.keys import GROUP, PARKED
from shared.lease import POISONED
from tests.support.desk import MANY, MODEL
from tests.support.ear import Ear
from tests.support.waiting import wait_until

CHANNEL = "bw:gw:g"


async def consumers(desk, lane="interactive"):
    return {one["name"].decode() for one in await desk.redis.xinfo_consumers(desk.keys.stream(lane), GROUP)}


async def test_only_silent_owners_lose_their_requests(desk):
    silent, fresh = await desk.hold("a", "b")
    await desk.silence(silent)

    claimed = await desk.claim("w2")

    assert [one.id for one in claimed] == ["a"]
    assert (await desk.beat("w1", silent, fresh)).lost == (silent,)


async def test_a_claimed_request_goes_on_after_the_tokens_in_its_log(desk):
    async with Ear(desk.redis, CHANNEL) as ear:
        [old] = await desk.hold("a", channel=CHANNEL)
        await desk.emit("w1", old, 0, 5, 6)
        await desk.silence(old)
        [new] = await desk.claim("w2")
        await desk.emit("w2", new, 2, 7)
        await desk.finish("w2", new, 3)
        frames = await ear.frames()

    assert (new.attempt, new.prior_ids, new.request) == (2, (5, 6), old.request)
    assert [(frame.attempt, frame.at, frame.ids) for frame in frames] == [(1, 0, (5, 6)), (2, 2, (7,)), (2, 3, ())]


async def test_a_zombie_is_refused_whatever_it_tries(desk):
    [old] = await desk.hold("a")
    await desk.silence(old)
    [new] = await desk.claim("w2")

    assert not await desk.emit("w1", old, 0, 5)
    assert not await desk.finish("w1", old)
    assert not await desk.park("w1", old)
    assert (await desk.beat("w1", old)).lost == (old,)
    owners = await desk.redis.xpending_range(desk.keys.stream("interactive"), GROUP, "-", "+", 9)
    assert [owner["consumer"] for owner in owners] == [b"w2"], "its heartbeat did not steal the entry back"
    assert await desk.finish("w2", new)


async def test_never_more_than_there_is_room_for_and_the_oldest_first(desk):
    await desk.enqueue("a", "b", "c")
    await desk.enqueue("d", lane="bulk")
    await desk.silence(*await desk.fetch())

    assert [one.id for one in await desk.claim("w2", 2)] == ["a", "b"]
    assert [one.id for one in await desk.claim("w3", 0)] == []
    assert [one.id for one in await desk.claim("w3", 9)] == ["c", "d"]


@pytest.mark.parametrize("fresh", [60, 620])
async def test_silent_entries_behind_many_fresh_ones_are_found(desk, fresh):
    """XAUTOCLAIM with COUNT 1 looks at ten pending entries a call; one free slot must be enough."""
    await desk.enqueue(*(f"r{n}" for n in range(fresh)), "silent")
    held = await desk.fetch("w1")
    await desk.silence(held[-1])

    assert [one.id for one in await desk.claim("w2", 1)] == ["silent"]


async def test_what_took_down_too_many_workers_is_given_up(desk):
    """`max_deaths` workers, not one more; it ends like any other request, and is put on the list."""
    async with Ear(desk.redis, CHANNEL) as ear:
        [held] = await desk.hold("a", worker="w0", channel=CHANNEL)
        for attempt in (1, 2):
            await desk.silence(held, owner=f"w{attempt - 1}")
            [held] = await desk.claim(f"w{attempt}", max_deaths=3)
        await desk.emit("w2", held, 0, 5)
        await desk.silence(held, owner="w2")

        assert await desk.claim("w3", max_deaths=3) == []
        [end] = (await ear.frames())[-1:]
    record = await desk.broker.record("m", "a")
    [(_, letter)] = await desk.redis.xrange(desk.keys.dead_letters)
    assert (end.at, end.end) == (1, POISONED)
    assert (record.state, record.deaths, record.tokens) == ("failed", 3, 1)
    assert (letter[b"id"], letter[b"deaths"], letter[b"owner"]) == (b"a", b"3", b"w2")
    assert wire.decode(letter[b"payload"], wire.GenerateRequest) == held.request
    assert not await desk.finish("w2", held, 1)
    assert await desk.redis.xlen(desk.keys.stream("interactive")) == 0


async def test_what_is_given_up_takes_nobodys_place(desk):
    await desk.silence(*await desk.hold("poison", "good"))
    await desk.set("poison", deaths=9)

    assert [one.id for one in await desk.claim("w2", 1)] == ["good"]


async def test_a_claimed_request_past_its_deadline_is_settled(desk):
    async with Ear(desk.redis, CHANNEL) as ear:
        [held] = await desk.hold("a", channel=CHANNEL)
        await desk.silence(held)
        await desk.set("a", deadline=1)

        assert await desk.claim("w2") == []
        assert await ear.ends() == {"a": "expired"}


async def test_an_entry_whose_request_is_forgotten_is_dropped(desk):
    await desk.silence(*await desk.hold("a"))
    await desk.redis.delete(desk.keys.request("a"))

    assert await desk.claim("w2") == []
    assert await desk.redis.xlen(desk.keys.stream("interactive")) == 0
    assert not await desk.redis.exists(desk.keys.request("a"))


async def test_a_reply_that_was_lost_costs_a_lease_and_no_request(desk):
    """The worker never knew of it, so it never renews it, and finds it again itself."""
    await desk.silence(*await desk.hold("a"))

    assert [one.id for one in await desk.claim("w1")] == ["a"]


async def test_the_record_of_a_dead_worker_goes_once_it_is_empty(desk):
    """Not before: the group forgets what a deleted consumer held. And never that of parked requests."""
    held, parked, done = await desk.hold("a", "b", "c", worker="dead")
    await desk.park("dead", parked)
    [parked] = await desk.fetch("w2", total=1)
    await desk.finish("w2", parked)
    await desk.finish("dead", done)

    async def only_the_living():
        await desk.claim("w3", 0, lease_ms=1)
        return "w2" not in await consumers(desk)

    await wait_until(only_the_living, "the record of w2, which is empty, to be deleted")
    assert await consumers(desk) >= {"dead", PARKED}
    await desk.silence(held, owner="dead")
    assert [one.id for one in await desk.claim("w3", MANY)] == ["a"]
    await desk.claim("w3", 0, lease_ms=1)
    assert PARKED in await consumers(desk)


async def test_what_a_worker_takes_back_from_itself_is_no_death(desk):
    """It was silent for a while (the broker was away), and lives: the request has done nothing to anybody."""
    [held] = await desk.hold("a", worker="w1")
    for _ in range(5):
        await desk.silence(held)
        [held] = await desk.claim("w1")

    record = await desk.broker.record(MODEL, "a")
    assert (record.deaths, record.attempt) == (0, 6)


async def suspects(desk, *ids, owner="w1"):
    """Each has taken a worker down already, and now the one that held them all has gone silent."""
    held = await desk.hold(*ids, worker=owner)
    for one in ids:
        await desk.set(one, deaths=1)
    await desk.silence(*held, owner=owner)


async def deaths(desk, *ids):
    return [(await desk.broker.record(MODEL, one)).deaths for one in ids]


async def test_a_claim_brings_one_suspect_at_most_and_innocents_beside_it(desk):
    """A suspect is what would be given up with one more death: two of them must not die together."""
    await suspects(desk, "s1", "s2", "s3")
    await desk.silence(*await desk.hold("innocent"))

    claimed = await desk.claim("w2")

    assert [one.id for one in claimed] == ["s1", "innocent"]
    assert [desk.lease("w2").is_suspect(one) for one in claimed] == [True, False]


async def test_a_suspect_that_waits_for_its_turn_has_killed_nobody(desk):
    """Its worker died of something else, before it began with it."""
    await suspects(desk, "s1")
    [waiting] = await desk.claim("w2", begins=False)
    await desk.silence(waiting, owner="w2")

    [again] = await in_turn(desk, "w3")
    assert (again.deaths, await deaths(desk, "s1")) == (2, [2])
    await desk.silence(again, owner="w3")

    assert await in_turn(desk, "w4") == []
    assert await desk.state("s1") == "failed", "it had begun"


async def test_one_worker_at_a_time_runs_a_suspect_and_the_others_go_on(desk):
    await suspects(desk, "s1", "s2")
    await desk.silence(*await desk.hold("innocent"))
    [first] = await desk.claim("w2", 1)

    assert [one.id for one in await desk.claim("w3")] == ["innocent"]

    await desk.beat("w2", first)
    assert await desk.redis.get(f"{desk.keys.prefix}alone") == b"w2"
    await desk.beat("w3")
    assert await desk.redis.pttl(f"{desk.keys.prefix}alone") > 0, "it ends with its worker"


async def test_a_suspect_that_is_handed_back_is_found_by_the_next_at_once(desk):
    await suspects(desk, "s1", "s2", "s3")

    found = [[one.id for one in await in_turn(desk, worker)] for worker in ("w2", "w3", "w4", "w5")]

    assert found == [["s1"], ["s2"], ["s3"], []]


async def in_turn(desk, worker):
    """Claim, when nobody else runs a suspect any more."""
    await desk.redis.delete(f"{desk.keys.prefix}alone")
    return await desk.claim(worker)


async def test_a_suspect_that_was_cancelled_is_ended_and_takes_nobodys_turn(desk):
    await suspects(desk, "s1", "s2")
    await desk.cancel("s1")

    assert [one.id for one in await desk.claim("w2")] == ["s2"]
    assert await desk.state("s1") == "cancelled"


async def test_a_death_is_counted_once_however_often_its_request_is_handed_back(desk):
    await suspects(desk, "s1", "s2")

    [first] = await desk.claim("w2")
    handed_back = await deaths(desk, "s2")
    [second] = await in_turn(desk, "w3")

    assert handed_back == [1], "the record follows when somebody takes it"
    assert (first.deaths, second.deaths) == (2, 2)
    assert await deaths(desk, "s1", "s2") == [2, 2]


async def test_what_is_handed_back_is_still_its_last_owners(desk):
    """Who only seemed to be dead may go on with it until another takes it."""
    held = await desk.hold("s0", "s1")
    for one in held:
        await desk.set(one.id, deaths=1)
    await desk.silence(*held)
    assert [one.id for one in await desk.claim("w2")] == ["s0"]
    held = held[1:]

    beat = await desk.beat("w1", *held)

    assert (beat.lost, beat.cancelled) == ((), ())
    assert await desk.emit("w1", held[0], 0, 5)
    assert await in_turn(desk, "w3") == []


async def test_a_parked_suspect_is_fetched_as_one(desk):
    await suspects(desk, "s1")
    [held] = await desk.claim("w2")
    await desk.park("w2", held)

    [again] = await desk.fetch("w3")

    assert again.deaths == 2
    assert desk.lease("w3").is_suspect(again)


async def test_innocents_that_ran_beside_a_killer_end_well(desk):
    """Three deaths: the killer dies alone at last, and nobody else is given up with it."""
    await desk.enqueue("killer", "a", "b", "c")
    await desk.silence(*await desk.fetch("w0"), owner="w0")
    await desk.silence(*await desk.claim("w1"), owner="w1")
    [alone] = [one for one in await desk.claim("w2") if one.id == "killer"]
    await desk.silence(alone, owner="w2")

    rest = [one for number in range(3, 9) for one in await in_turn(desk, f"w{number}")]

    assert await desk.state("killer") == "failed"
    assert [one.id for one in rest] == ["a", "b", "c"]
    assert [await desk.state(one) for one in "abc"] == ["running"] * 3
