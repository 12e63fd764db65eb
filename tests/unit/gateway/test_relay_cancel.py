"""The relay takes back what has not ended: once, whenever its request arrives, whatever was lost."""

import pytest

from gateway import relay as module
from gateway.follower import LOST, Follower
from shared.broker import CANCELLED, EXPIRED
from tests.support.waiting import wait_until
from tests.unit.gateway.stubs import DONE, followed, frame, publish, running


async def test_a_request_whose_answer_is_lost_while_it_runs_is_taken_back(relay, broker):
    follower = followed(relay)
    broker.records["a"] = running()

    publish(relay, frame("a", 5, "f"))
    await wait_until(lambda: broker.cancels, "the worker to be told")
    relay.release(follower)

    assert follower.outcome is LOST
    assert broker.cancels == [("a", "cancelled")]


@pytest.mark.parametrize("record", [None, running(state="done", outcome=DONE, tokens=9)])
async def test_a_request_whose_answer_is_lost_after_its_end_is_not(relay, broker, record):
    follower = followed(relay)
    broker.records["a"] = record

    relay._on_resubscribed()
    await wait_until(lambda: follower.outcome is LOST, "the loss to be told")
    await relay.close()

    assert broker.cancels == []


async def test_an_unfinished_request_is_cancelled_once_and_a_finished_one_never(relay, broker):
    """B035."""
    unfinished, finished = followed(relay, "a"), followed(relay, "b")
    finished.end(DONE)

    for _ in range(3):
        relay.release(unfinished)
        relay.release(finished)
    await relay.close()

    assert broker.cancels == [("a", "cancelled")]
    assert relay.followers == 0


async def test_what_was_given_up_is_not_cancelled_again_when_it_is_released(relay, broker):
    follower = followed(relay)

    relay.give_up(follower, EXPIRED, "deadline")
    relay.give_up(follower, CANCELLED, "drain")
    relay.release(follower)
    await relay.close()

    assert follower.outcome is EXPIRED
    assert broker.cancels == [("a", "expired")]


async def test_a_cancel_outlasts_a_short_absence_of_redis(relay, broker, monkeypatch):
    monkeypatch.setattr(module, "CANCEL_RETRIES_S", (0.01, 0.01))
    follower = followed(relay)
    broker.away = 2

    relay.release(follower)

    await wait_until(lambda: broker.cancels == [("a", "cancelled")], "the cancel to get through")


async def test_a_cancel_that_overtakes_its_request_is_sent_again(relay, broker, monkeypatch):
    """The reply to its enqueue was lost, or the client left before it: it may yet arrive."""
    monkeypatch.setattr(module, "CANCEL_RETRIES_S", (0.01, 0.01))
    entering = Follower("a", "m", "interactive")
    relay.follow(entering)
    broker.unknown = 2

    relay.release(entering)

    await wait_until(lambda: broker.cancels == [("a", "cancelled")], "the cancel to meet its request")


async def test_an_accepted_request_that_redis_does_not_know_is_cancelled_once(relay, broker, monkeypatch):
    monkeypatch.setattr(module, "CANCEL_RETRIES_S", (0, 0))
    follower = followed(relay)
    broker.unknown = 1

    relay.release(follower)
    await relay.close()

    assert (broker.cancels, broker.unknown) == ([], 0)


async def test_a_request_given_up_while_it_enters_is_taken_back_once_it_is_in(relay, broker, monkeypatch):
    """A drain that ends in the middle of an admission."""
    monkeypatch.setattr(module, "CANCEL_RETRIES_S", ())
    entering = Follower("a", "m", "interactive")
    losses = relay.follow(entering)
    broker.unknown = 1
    relay.leave_all(CANCELLED)
    await wait_until(lambda: not broker.unknown, "the cancel that came too early")

    relay.accept(entering, losses)

    await wait_until(lambda: broker.cancels == [("a", "cancelled")], "the cancel to meet its request")


async def test_a_refused_request_is_forgotten_without_a_cancel(relay, broker):
    follower = Follower("a", "m", "interactive")
    relay.follow(follower)

    relay.drop(follower)
    relay.release(follower)
    await relay.close()

    assert (broker.cancels, relay.followers) == ([], 0)


async def test_who_comes_back_and_leaves_again_has_the_whole_grace_again(relay, broker):
    first = followed(relay)
    relay.release(first, grace_s=0.01)
    second = followed(relay)
    relay.release(second, grace_s=0.5)

    await wait_until(lambda: len(relay._errands) == 1, "the first grace to be over")

    assert broker.cancels == []
    await wait_until(lambda: broker.cancels == [("a", "cancelled")], "the second grace to be over")
    assert relay._last_to_leave == {}


async def test_a_cancel_that_is_tried_again_spares_a_client_that_has_come_back(relay, broker, monkeypatch):
    monkeypatch.setattr(module, "CANCEL_RETRIES_S", (0.05, 0.05))
    gone = followed(relay)
    broker.away = 1
    relay.release(gone)
    await wait_until(lambda: not broker.away, "the first try to fail")

    back = followed(relay)
    await wait_until(lambda: not len(relay._errands), "the cancel to be given up")

    assert broker.cancels == []
    assert back.outcome is None
