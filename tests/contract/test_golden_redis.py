"""What scripts write into Redis, field by field, is frozen: processes of two releases share it."""

import json
import re
from pathlib import Path

import pytest

from shared.broker import Submission
from shared.dead_letters import DeadLetters
from shared.keys import GROUP, Keys
from shared.lanes import Lane
from tests.support.desk import LEASE_MS, MODEL, request
from tests.support.ear import Ear

GOLDEN = Path(__file__).parent / "golden"
VOLATILE = {"queued", "waited", "expires", "deadline", "started", "ended", "entry", "seen"}


def masked(fields: dict[bytes, bytes]) -> dict[str, str]:
    """Times and stream ids replaced by their shape."""
    table = {name.decode(): value.decode() for name, value in sorted(fields.items())}
    return {name: re.sub(r"\d+", "N", value) if name in VOLATILE else value for name, value in table.items()}


def same_as_golden(name: str, found) -> None:
    path = GOLDEN / f"{name}.json"
    assert found == json.loads(path.read_text()), path.name


@pytest.fixture
async def held(desk):
    """One request as a worker holds it, and what its hash looked like before."""
    submission = Submission(
        id="r-1",
        model=MODEL,
        lane="interactive",
        request=request(),
        cost_tokens=10,
        channel="bw:gw:g",
        deadline_ms=5000,
    )
    await desk.broker.enqueue(submission, Lane())
    desk.hashes = {"queued": masked(await desk.redis.hgetall(desk.keys.request("r-1")))}
    desk.entry = (await desk.redis.xrange(desk.keys.stream("interactive")))[0][1]
    return (await desk.fetch())[0]


async def test_the_request_hash_is_frozen_in_every_state(desk, held):
    key = desk.keys.request("r-1")
    desk.hashes["running"] = masked(await desk.redis.hgetall(key))
    await desk.park("w1", held)
    desk.hashes["parked"] = masked(await desk.redis.hgetall(key))
    again = (await desk.fetch("w2"))[0]
    await desk.cancel("r-1")
    desk.hashes["running, cancel asked for"] = masked(await desk.redis.hgetall(key))
    await desk.finish("w2", again)
    desk.hashes["done"] = masked(await desk.redis.hgetall(key))

    same_as_golden("request_hash", desk.hashes)


async def test_the_lane_entry_is_frozen(desk, held):
    same_as_golden("lane_entry", {name.decode(): value.decode() for name, value in desk.entry.items()})
    assert (
        held.entry
        == (await desk.redis.xpending_range(desk.keys.stream("interactive"), GROUP, "-", "+", 1))[0][
            "message_id"
        ].decode()
    )


async def test_the_log_is_frozen(desk, held):
    await desk.emit("w1", held, 0, 5, 6)
    await desk.silence(held)
    again = (await desk.claim("w2"))[0]
    await desk.emit("w2", again, 2, 7)

    entries = await desk.redis.xrange(desk.keys.log("r-1"))

    same_as_golden(
        "log_entries", [[entry.decode(), {k.decode(): v.decode() for k, v in f.items()}] for entry, f in entries]
    )


async def test_the_dead_letter_is_frozen(desk, held):
    await desk.silence(held)
    await desk.claim("w2", max_deaths=1)

    [(_, letter)] = await desk.redis.xrange(desk.keys.dead_letters)

    same_as_golden("dead_letter", masked(letter))


async def test_the_hash_of_a_retried_request_is_frozen(desk, held):
    await desk.silence(held)
    await desk.claim("w2", max_deaths=1)
    letters = DeadLetters(desk.redis)
    [letter] = [one async for one in letters.read([MODEL])]

    await letters.retry(letter, Lane())

    same_as_golden("request_hash_revived", masked(await desk.redis.hgetall(desk.keys.request("r-1"))))


async def test_the_worker_hash_is_frozen(desk, held):
    await desk.beat("w1", held)

    fields = masked(await desk.redis.hgetall(desk.keys.worker("w1")))

    same_as_golden("worker_hash", fields)
    assert 0 < await desk.redis.pttl(desk.keys.worker("w1")) <= LEASE_MS


async def test_the_bell_names_the_lane(desk):
    async with Ear(desk.redis, desk.keys.bell) as bell:
        await desk.hold("r-1", lane="bulk")
        rung = await bell.heard()

    same_as_golden("bell", [raw.decode() for raw in rung])


def test_key_and_channel_names_are_frozen():
    names = Keys("org/model:1")

    assert names.stream("bulk") == "bw:{org/model:1}:q:bulk"
    assert names.stats("bulk") == "bw:{org/model:1}:lane:bulk"
    assert names.request("r") == "bw:{org/model:1}:req:r"
    assert names.log("r") == "bw:{org/model:1}:log:r"
    assert names.worker("w") == "bw:{org/model:1}:w:w"
    assert names.workers == "bw:{org/model:1}:workers"
    assert names.dead_letters == "bw:{org/model:1}:dlq"
    assert names.bell == "bw:{org/model:1}:bell"
