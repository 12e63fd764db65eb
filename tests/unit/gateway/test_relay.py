"""The relay: routes, repairs, cancels once, and looks after the silent without asking too much."""

import asyncio

import pytest

from gateway import relay as module
from gateway.follower import LOST, Follower
from gateway.metrics import Metrics
from gateway.relay import Relay
from shared import wire
from shared.broker import CANCELLED, EXPIRED, Record
from shared.errors import BrokerUnavailable
from shared.wire import Frame, Frames, Outcome
from tests.support.waiting import wait_until

DONE = Outcome(state="done", reason="stop")


class StubBroker:
    """Redis as the relay sees it, with what it was asked."""

    def __init__(self) -> None:
        self.records: dict[str, Record | None] = {}
        self.logs: dict[str, list[Frame]] = {}
        self.cancels: list[tuple[str, str]] = []
        self.probes: list[str] = []
        self.away = 0
        """Calls that will find Redis away."""

    def _reach(self) -> None:
        if self.away:
            self.away -= 1
            raise BrokerUnavailable("away")

    async def record(self, _model, request_id):
        self.probes.append(request_id)
        self._reach()
        return self.records.get(request_id)

    async def replay(self, _model, request_id, after):
        self._reach()
        return [frame for frame in self.logs.get(request_id, []) if frame.at >= after]

    async def cancel(self, _model, _lane, request_id, outcome):
        self._reach()
        self.cancels.append((request_id, outcome.state))


class StubListener:
    def pubsub(self):
        raise AssertionError("nothing subscribes here")


def running(attempt: int = 1, state: str = "running", outcome=None, tokens=None) -> Record:
    return Record(state=state, attempt=attempt, deaths=0, tokens=tokens, outcome=outcome)


def frame(request_id: str, at: int, text: str) -> Frame:
    return Frame(id=request_id, attempt=1, at=at, ids=(at,), text=text)


@pytest.fixture
def broker():
    return StubBroker()


@pytest.fixture
async def relay(broker):
    one = Relay(broker, StubListener(), Metrics())
    yield one
    await one.close()


def followed(relay: Relay, request_id: str = "a") -> Follower:
    follower = Follower(request_id, "m", "interactive")
    relay.accept(follower, relay.follow(follower))
    return follower


def publish(relay: Relay, *frames: Frame) -> None:
    relay._hear(relay.channel, wire.encode(Frames(frames=frames)))


async def test_one_message_serves_many_followers(relay):
    first, second = followed(relay, "a"), followed(relay, "b")

    publish(relay, frame("a", 0, "x"), frame("b", 0, "y"), frame("nobody", 0, "z"))

    assert (first.read(), second.read()) == (["x"], ["y"])


async def test_a_message_that_cannot_be_read_hurts_nobody(relay):
    follower = followed(relay)

    for body in (b"", b"{", b'{"frames": 5}', b'{"frames": [], "v": 99}', b"\xff"):
        relay._hear(relay.channel, body)
    publish(relay, frame("a", 0, "x"))

    assert follower.read() == ["x"]


async def test_a_gap_is_filled_once_however_many_frames_show_it(relay, broker):
    follower = followed(relay)
    broker.records["a"] = running()
    broker.logs["a"] = [frame("a", at, str(at)) for at in range(5)]

    publish(relay, *(frame("a", at, str(at)) for at in (2, 3, 4)))
    await wait_until(lambda: follower.tokens == 5, "the gap to be filled")

    assert ("".join(follower.read()), broker.probes) == ("01234", ["a"])


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

    assert (follower.read(), entering.read()) == (["x"], ["y"])


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


async def test_a_refused_request_is_forgotten_without_a_cancel(relay, broker):
    follower = Follower("a", "m", "interactive")
    relay.follow(follower)

    relay.drop(follower)
    relay.release(follower)
    await relay.close()

    assert (broker.cancels, relay.followers) == ([], 0)


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
