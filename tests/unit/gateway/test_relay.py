"""The relay: routes, repairs, and looks after the silent without asking too much."""

import asyncio

import pytest

from gateway import relay as module
from gateway.follower import LOST, Follower
from shared.broker import EXPIRED
from tests.support.waiting import wait_until
from tests.unit.gateway.stubs import DONE, followed, frame, publish, running, texts


async def test_one_message_serves_many_followers(relay):
    first, second = followed(relay, "a"), followed(relay, "b")

    publish(relay, frame("a", 0, "x"), frame("b", 0, "y"), frame("nobody", 0, "z"))

    assert (texts(first), texts(second)) == (["x"], ["y"])


async def test_a_message_that_cannot_be_read_hurts_nobody(relay):
    follower = followed(relay)

    for body in (b"", b"{", b'{"frames": 5}', b'{"frames": [], "v": 99}', b"\xff"):
        relay._hear(relay.channel, body)
    publish(relay, frame("a", 0, "x"))

    assert texts(follower) == ["x"]


async def test_a_gap_is_filled_once_however_many_frames_show_it(relay, broker):
    follower = followed(relay)
    broker.records["a"] = running()
    broker.logs["a"] = [frame("a", at, str(at)) for at in range(5)]

    publish(relay, *(frame("a", at, str(at)) for at in (2, 3, 4)))
    await wait_until(lambda: follower.tokens == 5, "the gap to be filled")

    assert ("".join(texts(follower)), broker.probes) == ("01234", ["a"])


async def test_a_resubscription_looks_after_everyone_that_was_accepted(relay, broker):
    follower, entering = followed(relay, "a"), Follower("b", "m", "interactive")
    broker.records = {"a": running(state="done", outcome=DONE, tokens=1), "b": running()}
    broker.logs = {"a": [frame("a", 0, "x")], "b": [frame("b", 0, "y")]}
    losses = relay.follow(entering)

    relay._on_resubscribed()
    await wait_until(lambda: follower.outcome is DONE, "the missed end")
    assert broker.probes == ["a"], "b is not in the broker yet, so it is not missing"
    relay.accept(entering, losses)
    await wait_until(lambda: entering.tokens == 1, "what it missed while it entered")

    assert (texts(follower), texts(entering)) == (["x"], ["y"])


async def test_what_was_missed_while_a_repair_was_under_way_is_looked_for_too(relay, broker):
    follower = followed(relay)
    broker.records["a"], broker.logs["a"] = running(), [frame("a", 0, "x")]
    broker.may_read.clear()
    relay._on_resubscribed()
    await wait_until(lambda: broker.probes, "the first reading")
    await asyncio.sleep(0)

    broker.logs["a"].append(frame("a", 1, "y"))  # written, published, and not heard
    relay._on_resubscribed()
    broker.may_read.set()

    await wait_until(lambda: follower.tokens == 2, "the second reading")


async def test_a_repair_that_finds_redis_away_is_tried_again(relay, broker):
    follower = followed(relay)
    broker.records["a"], broker.logs["a"] = running(), [frame("a", 0, "x"), frame("a", 1, "y")]
    broker.away = 1
    publish(relay, frame("a", 1, "y"))
    await wait_until(lambda: not follower.repairing, "the first try")
    assert (follower.tokens, follower.outcome) == (0, None)

    publish(relay, frame("a", 1, "y"))

    await wait_until(lambda: follower.tokens == 2, "the second try")


async def test_the_silent_are_looked_after_a_bounded_number_at_a_time(relay, broker, monkeypatch):
    monkeypatch.setattr(module, "SWEEP_S", 0.01)
    monkeypatch.setattr(module, "QUIET_SWEEPS", 3)
    monkeypatch.setattr(module, "PROBES_PER_SWEEP", 2)
    names = [str(number) for number in range(6)]
    followers = [followed(relay, name) for name in names]
    broker.records = dict.fromkeys(names, running(state="queued", attempt=0))
    del broker.records["5"]
    sweeping = asyncio.create_task(relay._sweep())

    await wait_until(lambda: followers[5].outcome is LOST, "the lost one to be told")
    sweeping.cancel()

    assert set(broker.probes) == set(names), "nobody starves behind the others"
    assert all(follower.outcome is None for follower in followers[:5])


@pytest.mark.parametrize(
    ("record", "outcome"),
    [(running(state="queued", attempt=0), EXPIRED), (running(), None), (running(state="parked"), None), (None, LOST)],
)
async def test_only_who_still_waits_for_its_first_worker_runs_out_of_queue_time(relay, broker, record, outcome):
    follower = followed(relay)
    broker.records["a"] = record

    relay.give_up_if_queued(follower)
    await wait_until(lambda: broker.probes and not len(relay._errands), "the look into the queue")

    assert follower.outcome is outcome


async def test_a_defect_in_a_loop_restarts_it_and_looks_after_everyone(relay, broker, monkeypatch):
    monkeypatch.setattr(module, "RESTART_S", 0)
    follower = followed(relay)
    broker.records["a"] = running(state="done", outcome=DONE, tokens=0)
    tries = []

    async def work():
        tries.append(True)
        if len(tries) == 1:
            raise ValueError("a bug")
        await asyncio.Event().wait()

    loop = asyncio.create_task(relay._again(work))
    await wait_until(lambda: follower.outcome is DONE and len(tries) == 2, "the second life")
    loop.cancel()
