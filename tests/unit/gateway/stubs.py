"""Redis as the relay sees it, without Redis."""

import asyncio

from gateway.follower import Follower
from gateway.relay import Relay
from shared import wire
from shared.broker import Record
from shared.errors import BrokerUnavailable
from shared.wire import Frame, Frames, Outcome

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
        self.unknown = 0
        """Cancels that will come before their request does."""
        self.may_read = asyncio.Event()
        """A log that is being read is not read to its end before this is set."""
        self.may_read.set()

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
        found = [frame for frame in self.logs.get(request_id, []) if frame.at >= after]
        await self.may_read.wait()
        return found

    async def cancel(self, _model, _lane, request_id, outcome, *, leaves):
        assert leaves, "a gateway names itself, so that others who watch are asked"
        self._reach()
        if self.unknown:
            self.unknown -= 1
            return "unknown"
        self.cancels.append((request_id, outcome.state))
        return "settled"


class StubListener:
    def pubsub(self):
        raise AssertionError("nothing subscribes here")


def running(attempt: int = 1, state: str = "running", outcome=None, tokens=None) -> Record:
    return Record(state=state, attempt=attempt, deaths=0, tokens=tokens, outcome=outcome)


def frame(request_id: str, at: int, text: str) -> Frame:
    return Frame(id=request_id, attempt=1, at=at, ids=(at,), text=text)


def followed(relay: Relay, request_id: str = "a") -> Follower:
    follower = Follower(request_id, "m", "interactive")
    relay.accept(follower, relay.follow(follower))
    return follower


def texts(follower: Follower) -> list[str]:
    """What it has to show."""
    return [one.text for one in follower.read()]


def publish(relay: Relay, *frames: Frame) -> None:
    relay._hear(relay.channel, wire.encode(Frames(frames=frames)))
