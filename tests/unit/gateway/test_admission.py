"""Which lane, and how long."""

from dataclasses import replace

import pytest

from gateway.admission import Admission, Ask
from gateway.metrics import Metrics
from gateway.openai.budget import CONTEXT_GUESSED
from gateway.terms import MAX_DEADLINE_MS, Terms, asked_deadline_ms
from shared.broker import Queued, ServedModel
from shared.errors import BrokerUnavailable, InvalidRequest, LaneFull, NoWorkers
from shared.settings import Settings
from shared.wire import GenerateRequest, Sampling


class StubBroker:
    def __init__(self, ahead: int | None = 4) -> None:
        self.costs: list[int] = []
        self._ahead = ahead

    async def enqueue(self, submission, _lane):
        self.costs.append(submission.cost_tokens)
        return Queued(self._ahead)


class StubRelay:
    listening, channel = True, "c"

    def follow(self, _follower) -> int:
        return 0

    def __init__(self) -> None:
        self.released: list[str] = []
        self.graces: dict[str, float] = {}

    def accept(self, _follower, _losses) -> None:
        pass

    def drop(self, _follower) -> None:
        pass

    def release(self, follower, reason="disconnect", *, grace_s) -> None:
        self.released.append(follower.id)
        self.graces[follower.id] = grace_s


class StubInspector:
    async def find(self, _request_id, _models):
        return None


class StubCatalogue:
    models = ()

    def __init__(self, *lengths: str) -> None:
        self._workers = tuple({"id": "w", "max_model_len": length} for length in lengths)

    async def find(self, name):
        return ServedModel(name=name, seen_s_ago=0, workers=self._workers)


def ask(requests, tier=None) -> Ask:
    """For one chat, or several choices."""
    return Ask(
        id="r",
        model="m",
        requests=requests,
        limit_field="max_completion_tokens",
        service_tier=tier,
        stream=False,
        endpoint="chat.completions",
        terms=Terms.of({}, stream=False),
    )


async def admit(broker: StubBroker, *lengths: str, **sampling):
    """One chat let in where workers say that they have these contexts."""
    lanes = Settings.of({}).lanes
    gate = Admission(broker, StubRelay(), StubCatalogue(*lengths), None, None, lanes=lanes, default_lane="interactive")
    request = GenerateRequest(sampling=Sampling(seed=1, **sampling), messages=({"role": "user", "content": "hi"},))
    return await gate.admit(ask((request,)))


async def test_what_no_worker_could_hold_never_reaches_the_broker():
    broker = StubBroker()

    with pytest.raises(InvalidRequest, match="4096 tokens") as caught:
        await admit(broker, "2048", "4096", max_tokens=4096)

    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "max_completion_tokens")
    assert broker.costs == []


async def test_what_the_largest_worker_may_hold_enters():
    broker = StubBroker()

    await admit(broker, "2048", "4096", max_tokens=4000)

    assert broker.costs == [1 + 2 + 4000]


@pytest.mark.parametrize("lengths", [(), ("",)])
async def test_a_lane_is_not_closed_by_a_number_where_no_worker_says_its_context(lengths):
    broker = StubBroker()

    await admit(broker, *lengths, max_tokens=2**31 - 1)

    assert broker.costs == [CONTEXT_GUESSED]


@pytest.mark.parametrize("ahead", [0, 4, None])
async def test_the_number_ahead_is_what_the_broker_says(ahead):
    assert (await admit(StubBroker(ahead), "2048")).queued.ahead == ahead


def admission(default_lane: str = "interactive", **environ: str) -> Admission:
    lanes = Settings.of(environ).lanes
    return Admission(None, None, None, None, None, lanes=lanes, default_lane=default_lane)


@pytest.mark.parametrize(
    ("tier", "lane"),
    [
        (None, "interactive"), ("auto", "interactive"), ("default", "interactive"), ("scale", "interactive"),
        ("flex", "bulk"), ("priority", "interactive"), ("fast", "interactive"), ("bulk", "bulk"), ("night", "night"),
    ],
)  # fmt: skip
def test_a_service_tier_is_a_lane(tier, lane):
    assert admission(BUSWAY_EXTRA_LANES="night", BUSWAY_LANES__NIGHT__WEIGHT="2").lane_of(tier) == lane


def request(text: str) -> GenerateRequest:
    return GenerateRequest(sampling=Sampling(seed=1), messages=({"role": "user", "content": text},))


def long_lanes(**environ: str) -> Admission:
    bound = {"BUSWAY_EXTRA_LANES": "long", "BUSWAY_LANES__INTERACTIVE__MAX_PROMPT_TOKENS": "100"}
    return admission(**bound, **environ)


@pytest.mark.parametrize(("chars", "lane"), [(4, "interactive"), (390, "interactive"), (401, "long")])
def test_a_long_prompt_goes_to_the_lane_of_the_overflow(chars, lane):
    admission_ = long_lanes(BUSWAY_LANES__INTERACTIVE__OVERFLOW="long")

    assert admission_._for_length("interactive", request("x" * chars)) == lane


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"BUSWAY_LANES__INTERACTIVE__OVERFLOW": "long", "BUSWAY_LANES__LONG__MAX_PROMPT_TOKENS": "90"},
        {"BUSWAY_LANES__INTERACTIVE__OVERFLOW": "interactive"},
    ],
    ids=["no overflow", "too long there, too", "itself"],
)
def test_a_prompt_that_no_lane_takes_is_refused(more):
    with pytest.raises(InvalidRequest) as caught:
        long_lanes(**more)._for_length("interactive", request("x" * 401))

    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_no_tier_is_the_default_lane():
    assert [admission("bulk").lane_of(tier) for tier in (None, "auto", "default")] == ["bulk"] * 3


@pytest.mark.parametrize("tier", ["gold", "", "BULK", "night"])
def test_a_tier_that_is_no_lane_is_refused(tier):
    with pytest.raises(InvalidRequest) as caught:
        admission().lane_of(tier)

    assert caught.value.param == "service_tier"


@pytest.mark.parametrize(
    ("headers", "stream", "deadline_ms"),
    [
        ({}, False, MAX_DEADLINE_MS),
        ({"x-busway-deadline-ms": "1500"}, True, 1500),
        ({"x-stainless-read-timeout": "600"}, False, 599_000),
        ({"x-stainless-read-timeout": "2.0"}, False, 1_800),
        ({"x-stainless-read-timeout": "600"}, True, MAX_DEADLINE_MS),
        ({"x-stainless-read-timeout": "600", "x-busway-deadline-ms": "1500"}, False, 1500),
        ({"x-stainless-read-timeout": "1", "x-busway-deadline-ms": "1500"}, False, 900),
        *(({"x-stainless-read-timeout": bad}, False, MAX_DEADLINE_MS) for bad in ("None", "nan", "inf", "-1", "0", "")),
    ],
)
def test_a_client_may_shorten_the_deadline(headers, stream, deadline_ms):
    assert asked_deadline_ms(headers, stream=stream) == deadline_ms


@pytest.mark.parametrize("value", ["0", "-5", "1.5", "x", "", "٣", "9" * 30])
def test_a_deadline_that_is_none_is_refused(value):
    with pytest.raises(InvalidRequest):
        asked_deadline_ms({"x-busway-deadline-ms": value}, stream=True)


async def test_either_all_parts_enter_or_none():
    class Filling(StubBroker):
        async def enqueue(self, submission, _lane):
            self.costs.append(submission.cost_tokens)
            if len(self.costs) == 3:
                raise LaneFull("full", retry_after_s=1)
            return Queued(0)

    relay, broker, lanes = StubRelay(), Filling(), Settings.of({}).lanes
    gate = Admission(broker, relay, StubCatalogue(), None, Metrics(), lanes=lanes, default_lane="interactive")
    request = GenerateRequest(sampling=Sampling(seed=1), messages=({"role": "user", "content": "hi"},))

    with pytest.raises(LaneFull):
        await gate.admit(ask((request,) * 5))

    assert relay.released == ["r", "r-1"]
    assert len(broker.costs) == 3


async def test_a_lane_that_no_worker_serves_takes_nothing():
    class Pool(StubCatalogue):
        async def find(self, name):
            return ServedModel(name=name, seen_s_ago=0, workers=({"id": "w", "lanes": "interactive"},))

    gate = Admission(
        StubBroker(), StubRelay(), Pool(), None, None, lanes=Settings.of({}).lanes, default_lane="interactive"
    )
    request = GenerateRequest(sampling=Sampling(seed=1), prompt="hi")

    with pytest.raises(NoWorkers, match="lane bulk"):
        await gate.admit(ask((request,), "flex"))
    assert (await gate.admit(ask((request,)))).lane == "interactive"


@pytest.mark.parametrize(("fingerprint", "grace_s"), [("f", 2), ("", 0)])
async def test_who_can_ask_again_by_key_has_time_to_do_so_where_a_reply_was_lost(fingerprint, grace_s):
    """It may have got in. Cancelled at once, it would end under the hands of the client that was told to try again."""

    class Losing(StubBroker):
        async def enqueue(self, submission, _lane):
            if submission.id == "r-1":
                raise BrokerUnavailable("away")
            return Queued(0)

    relay, lanes = StubRelay(), Settings.of({}).lanes
    gate = Admission(
        Losing(), relay, StubCatalogue(), StubInspector(), Metrics(), lanes=lanes, default_lane="interactive", grace_s=2
    )
    request = GenerateRequest(sampling=Sampling(seed=1), prompt="hi")

    with pytest.raises(BrokerUnavailable):
        await gate.admit(replace(ask((request,) * 2), fingerprint=fingerprint))

    assert relay.graces == {"r": grace_s, "r-1": grace_s}
