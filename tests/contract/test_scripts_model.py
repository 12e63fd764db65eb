"""Random walks of three workers and a gateway, compared step by step with a model in Python.

Whatever the order of events: a request is in exactly one place or has ended exactly once, its log has no
hole, the depth is exact, and the token counter is the sum of what waits. Each failure names its seed.
"""

import random
from dataclasses import dataclass, field

import pytest

from shared.broker import CANCELLED
from shared.inspection import Inspector
from shared.keys import GROUP, PARKED
from shared.lease import Assignment
from tests.support.desk import DONE, LANES, MODEL, Desk
from tests.support.ear import Ear

WORKERS = ["w1", "w2", "w3"]
STEPS = 300
MAX_DEATHS, ALONE_AFTER = 3, 2
CHANNEL = "bw:gw:walk"
KEYED = {"channel": CHANNEL, "fingerprint": "p"}


@dataclass
class Modelled:
    """One request as it should be."""

    id: str
    lane: str
    cost: int
    number: int
    state: str = "queued"
    attempt: int = 0
    deaths: int = 0
    owner: str = ""
    tokens: list[int] = field(default_factory=list)
    asked_to_cancel: bool = False
    held: Assignment | None = None
    zombies: list[tuple[str, Assignment]] = field(default_factory=list)

    def end(self, state: str):
        if self.held is not None:
            self.zombies.append((self.owner, self.held))
        self.state, self.owner, self.held = state, "", None

    def run(self, held: Assignment, owner: str):
        if self.held is not None:
            self.zombies.append((self.owner, self.held))
        self.attempt += 1
        self.state, self.owner, self.held = "running", owner, held
        assert (held.attempt, held.prior_ids) == (self.attempt, tuple(self.tokens)), self.id


class Walk:
    """The model, the desk, and the moves."""

    def __init__(self, desk: Desk, seed: int):
        self.desk = desk
        self.random = random.Random(seed)
        self.requests: list[Modelled] = []
        self.ended: dict[str, str] = {}

    def all(self, *states: str, lane: str | None = None) -> list[Modelled]:
        return [one for one in self.requests if one.state in states and lane in (None, one.lane)]

    def one(self, *states: str) -> Modelled | None:
        found = self.all(*states)
        return self.random.choice(found) if found else None

    async def enqueue(self):
        number = len(self.requests)
        new = Modelled(f"r{number}", self.random.choice(LANES), self.random.randint(1, 50), number)
        ahead = len(self.all("queued", "parked", lane=new.lane))
        self.requests.append(new)
        assert await self.desk.enqueue(new.id, lane=new.lane, cost=new.cost, **KEYED) == [ahead]

    async def enqueue_again(self):
        """Its client comes back with its key: what was not answered is queued once more, behind all others."""
        if self.requests:
            old = self.random.choice(self.requests)
            ahead = None
            if old.state in {"failed", "cancelled"}:
                ahead = len(self.all("queued", "parked", lane=old.lane))
                self.requests.remove(old)
                self.requests.append(old)
                old.state, old.asked_to_cancel = "queued", False
                del self.ended[old.id]
            assert await self.desk.enqueue(old.id, lane=old.lane, cost=old.cost, **KEYED) == [ahead]

    def next_of(self, lane: str, count: int) -> list[Modelled]:
        """Takes them out of the waiting ones: parked before new, by age. Marked ones are settled on the way."""
        taken = []
        for state in ("parked", "queued"):
            for one in self.all(state, lane=lane):
                if len(taken) < count:
                    if one.asked_to_cancel:
                        one.attempt += 1
                        one.end("cancelled")
                    else:
                        one.state = "taken"
                        taken.append(one)
        return taken

    async def fetch(self):
        worker, total = self.random.choice(WORKERS), self.random.randint(0, 6)
        rooms = {lane: (self.random.randint(0, 4), self.random.randint(0, 5)) for lane in LANES}
        expected, left, caps = [], total, {}
        for lane in LANES:
            taken = self.next_of(lane, min(*rooms[lane], left))
            left, caps[lane] = left - len(taken), rooms[lane][1] - len(taken)
            expected += taken
        for lane in LANES:
            taken = self.next_of(lane, min(caps[lane], left))
            left -= len(taken)
            expected += taken
        fetched = await self.desk.fetch(worker, total, **rooms)
        assert [one.id for one in fetched] == [one.id for one in expected]
        for one, held in zip(expected, fetched, strict=True):
            one.run(held, worker)

    async def emit(self):
        if one := self.one("running"):
            ids = [self.random.randint(0, 9) for _ in range(self.random.randint(1, 3))]
            for _ in range(self.random.choice([1, 1, 2])):  # now and then the reply is lost, and the call repeated
                assert await self.desk.emit(one.owner, one.held, len(one.tokens), *ids)
            one.tokens += ids

    async def finish(self):
        if one := self.one("running"):
            owner, held, outcome = one.owner, one.held, CANCELLED if one.asked_to_cancel else DONE
            for _ in range(self.random.choice([1, 1, 2])):
                assert await self.desk.finish(owner, held, len(one.tokens), outcome)
            one.end(outcome.state)

    async def park(self):
        if one := self.one("running"):
            assert await self.desk.park(one.owner, one.held)
            one.end("parked")

    async def cancel(self):
        if self.requests:
            one = self.random.choice(self.requests)
            said = await self.desk.cancel(one.id, one.lane)
            if one.state in {"queued", "parked"}:
                assert said == "settled"
                one.attempt += 1
                one.end("cancelled")
            elif one.state == "running":
                assert said == "running"
                one.asked_to_cancel = True
            else:
                assert said == "ended"

    async def claim(self):
        """Some worker has been silent; another with little room looks for what it held."""
        silent, claimer = self.random.sample(WORKERS, 2)
        lost = [one for one in self.all("running") if one.owner == silent]
        await self.desk.silence(*(one.held for one in lost), owner=silent)
        left = self.random.randint(0, 4)
        await self.desk.redis.delete(f"{self.desk.keys.prefix}alone")  # whoever ran a suspect has ended it
        claimed = {one.id: one for one in await self.desk.claim(claimer, left, max_deaths=MAX_DEATHS)}
        may_take_suspect = True
        for one in [one for lane in LANES for one in lost if one.lane == lane]:
            if left == 0:
                break
            is_suspect = ALONE_AFTER <= one.deaths + 1 < MAX_DEATHS and not one.asked_to_cancel
            if is_suspect and not may_take_suspect:
                continue  # handed back as it was
            may_take_suspect = may_take_suspect and not is_suspect
            one.deaths += 1
            if one.deaths >= MAX_DEATHS or one.asked_to_cancel:
                one.attempt += 1
                one.end("failed" if one.deaths >= MAX_DEATHS else "cancelled")
            else:
                one.run(claimed.pop(one.id), claimer)
                left -= 1
        assert claimed == {}
        still = [one for one in lost if one.owner == silent]
        await self.desk.beat(silent, *(one.held for one in still))

    async def beat(self):
        worker = self.random.choice(WORKERS)
        mine = [one for one in self.all("running") if one.owner == worker]
        ghosts = [held for one in self.requests for owner, held in one.zombies[-1:] if owner == worker][-5:]
        beat = await self.desk.beat(worker, *(one.held for one in mine), *ghosts)
        assert list(beat.lost) == ghosts
        assert list(beat.cancelled) == [one.held for one in mine if one.asked_to_cancel]

    async def haunt(self):
        """Somebody who no longer owns a request goes on as if it did."""
        haunted = [one for one in self.requests if one.zombies and one.state != "parked"]
        if haunted:
            one = self.random.choice(haunted)
            owner, held = self.random.choice(one.zombies)
            if held.attempt < one.attempt:
                assert not await self.desk.emit(owner, held, len(one.tokens), 5)
                assert not await self.desk.finish(owner, held, len(one.tokens))
                assert not await self.desk.park(owner, held)

    async def check(self, ear: Ear):
        for lane in LANES:
            waiting = self.all("queued", "parked", lane=lane)
            assert (await self.desk.waiting())[lane] == len(waiting)
            assert await self.desk.waiting_tokens(lane) == sum(one.cost for one in waiting)
            stream = self.desk.keys.stream(lane)
            alive = self.all("queued", "parked", "running", lane=lane)
            assert await self.desk.redis.xlen(stream) == len(alive)
            pending = await self.desk.redis.xpending_range(stream, GROUP, "-", "+", 1000) if self.requests else []
            owners = sorted(entry["consumer"].decode() for entry in pending)
            owned = self.all("running", "parked", lane=lane)
            assert owners == sorted(one.owner or PARKED for one in owned)
        if one := self.one("queued", "parked"):
            row = self.all("parked", lane=one.lane) + self.all("queued", lane=one.lane)
            found = await Inspector(self.desk.redis).inspect(MODEL, one.lane, one.id)
            assert (found.state, found.ahead, found.waiting) == (one.state, row.index(one), len(row)), one.id
        for request_id, state in (await ear.ends()).items():
            assert request_id not in self.ended, f"{request_id} ended twice"
            self.ended[request_id] = state
        alive = ("queued", "parked", "running")
        assert self.ended == {one.id: one.state for one in self.requests if one.state not in alive}

    async def check_record(self, one: Modelled):
        record = await self.desk.broker.record(MODEL, one.id)
        assert (record.state, record.attempt, record.deaths) == (one.state, one.attempt, one.deaths), one.id
        frames = await self.desk.broker.replay(MODEL, one.id)
        at = 0
        for frame in frames:
            assert frame.at == at, f"a hole in the log of {one.id}"
            at += len(frame.ids)
        assert [token for frame in frames for token in frame.ids] == one.tokens


async def wander(walk: Walk, ear: Ear, moves: dict):
    for step in range(STEPS):
        move = walk.random.choices(list(moves), list(moves.values()))[0]
        try:
            await move()
            await walk.check(ear)
        except AssertionError as error:
            raise AssertionError(f"step {step}, {move.__name__}: {error}") from error


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
async def test_any_walk_leaves_every_request_in_one_place_or_ended_once(real_desk, seed):
    walk = Walk(real_desk, seed)
    moves = {walk.enqueue: 8, walk.enqueue_again: 3, walk.fetch: 5, walk.emit: 12, walk.finish: 3, walk.park: 3}
    moves |= {walk.cancel: 2, walk.claim: 8, walk.beat: 2, walk.haunt: 3}

    async with Ear(real_desk.redis, CHANNEL) as ear:
        await real_desk.waiting()
        await wander(walk, ear, moves)

    for one in walk.requests:
        await walk.check_record(one)
    assert {"done", "cancelled", "failed"} <= {one.state for one in walk.requests}, "the walk has seen every end"
