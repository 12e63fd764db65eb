"""The upstream engine against a server of a few lines: cuts, refusals, resumption, health."""

import asyncio
import json

import httpx
import pytest

from shared.errors import ConfigError
from shared.sections import WorkerSettings
from shared.wire import GenerateRequest, Prompt, Sampling, TokenLogprob, Usage
from tests.support.engines import chat
from tests.support.upstream import Stub, event, waited
from worker.engine import Ended, Progressed, Returned, Work
from worker.engines.upstream.engine import NO_TEXT, UpstreamEngine

USAGE = {"prompt_tokens": 3, "completion_tokens": 2}
HELLO = [event("Hel"), event("lo"), event(reason="stop"), event(usage=USAGE), "[DONE]"]


@pytest.fixture
def make():
    """Engines over a stub; closed afterwards."""
    made = []

    def of(stub, **fields):
        upstream = {"url": "http://up/v1/", "api_key": "k", "model": "there", "timeout_s": 5}
        settings = WorkerSettings(
            engine="upstream", model="here", slots=3, max_model_len=64, upstream=upstream, **fields
        )
        made.append(UpstreamEngine(settings, httpx.MockTransport(stub)))
        return made[-1]

    yield of
    for engine in made:
        engine.close()


def ask(engine, request=None, prior="", name="a"):
    """All events of one request; AssertionError if the last is not its end, or another one is."""
    engine.add(Work(name, request or chat(), tuple(map(ord, prior))))
    found = []
    while engine.free_slots < engine.slots:
        found += engine.step()
    assert [one for one in found if not isinstance(one, Progressed)] == found[-1:]
    return found


def text(found):
    return "".join(one.text for one in found if isinstance(one, Progressed))


def test_an_answer_is_relayed_as_it_is(make):
    stub = Stub(HELLO)
    engine = make(stub)

    found = ask(engine)

    assert found[0] == Progressed("a", tuple(map(ord, "Hel")), "Hel")
    assert text(found) == "Hello"
    assert found[-1].outcome.reason == "stop"
    assert found[-1].outcome.usage == Usage(prompt_tokens=3, completion_tokens=2)
    (request,) = stub.asked
    assert str(request.url) == "http://up/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer k"
    assert json.loads(request.content)["model"] == "there"
    assert engine.spent == {"interactive": 5}


@pytest.mark.parametrize("prior", ["H", "Hel", "Hello"])
def test_a_resumed_answer_goes_on_after_what_is_there(make, prior):
    found = ask(make(Stub(HELLO)), prior=prior)

    assert prior + text(found) == "Hello"
    assert found[-1].outcome.state == "done"


@pytest.mark.parametrize("prior", ["Hi", "Hello you"])
def test_another_answer_cannot_be_gone_on_with(make, prior):
    (found,) = ask(make(Stub(HELLO)), prior=prior)

    assert (found.outcome.state, found.outcome.error.code) == ("failed", "worker_lost")


def test_log_probabilities_are_relayed_once_over_all_attempts(make):
    tokens = [{"token": one, "bytes": None, "logprob": -0.5, "top_logprobs": []} for one in ("Hel", "lo", "<end>")]
    stream = [event("Hel", tokens[:1]), event("lo", tokens[1:2]), event("", tokens[2:], reason="stop"), "[DONE]"]

    first, *rest, _ = ask(make(Stub(stream)), prior="Hel")

    assert first.logprobs == (TokenLogprob(raw=b"lo", logprob=-0.5),)
    assert [(one.ids, one.text, one.logprobs[0].raw) for one in rest] == [((NO_TEXT,), "", b"<end>")]


@pytest.mark.parametrize("stream", [HELLO[:2], [], [*HELLO[:2], event(reason="error")], [*HELLO[:1], "nonsense"]])
def test_a_cut_answer_goes_back_to_the_lane(make, stream):
    found = ask(make(Stub(stream)))

    assert isinstance(found[-1], Returned)


def test_an_answer_that_breaks_off_too_often_is_given_up(make):
    engine = make(Stub(HELLO[:1]), max_deaths=3)

    ends = [ask(engine, name=f"r#{attempt}")[-1] for attempt in (1, 2, 3)]

    assert [type(one) for one in ends] == [Returned, Returned, Ended]
    assert ends[-1].outcome.error.code == "worker_lost"
    assert isinstance(ask(engine, name="other#1")[-1], Returned)


def test_a_busy_upstream_is_left_alone_for_as_long_as_it_asks_for(make):
    stub = Stub(status=429, headers={"retry-after": "60"})
    engine = make(stub)
    waited(lambda: engine.is_ready)

    for attempt in range(5):
        assert isinstance(ask(engine, name=f"r#{attempt}")[-1], Returned)

    assert not engine.is_ready


def test_what_the_upstream_refuses_fails_with_its_words(make):
    engine = make(
        Stub(status=400, raw=b'{"error": {"message": "no such thing", "code": "invalid_value", "param": "x"}}')
    )
    waited(lambda: engine.is_ready)

    (found,) = ask(engine)

    error = found.outcome.error
    assert (error.code, error.message, error.param) == ("invalid_value", "no such thing", "x")
    assert engine.is_ready


def test_a_cancel_closes_the_connection_at_once(make):
    stub = Stub([event("Hel"), asyncio.Event()])
    engine = make(stub)
    engine.add(Work("a", chat()))
    while not engine.step():
        pass

    engine.cancel("a")

    assert engine.free_slots == engine.slots
    waited(lambda: stub.closed == 1)
    assert engine.step() == []


def test_it_takes_work_only_while_the_upstream_answers(make):
    stub = Stub(HELLO, models=503)
    engine = make(stub)
    waited(lambda: stub.probes >= 2)
    assert not engine.is_ready

    stub.models = 200

    waited(lambda: engine.is_ready)


def test_an_upstream_that_cannot_be_reached_costs_no_request_its_life(make):
    engine = make(Stub(HELLO, refuses=True), max_deaths=1)

    assert isinstance(ask(engine)[-1], Returned)
    assert not engine.is_ready


def test_a_prompt_is_told_back_by_us(make):
    request = GenerateRequest(sampling=Sampling(seed=1), prompt="Say", echo=True)
    stub = Stub([event("Hel", kind="text"), event(reason="stop", kind="text"), "[DONE]"])

    first, end = ask(make(stub), request)

    assert (first.prompt, end.outcome.prompt) == (Prompt("Say"), None)
    assert "echo" not in json.loads(stub.asked[0].content)


def test_a_prompt_that_is_only_to_be_told_back_asks_the_upstream_nothing(make):
    stub = Stub(HELLO)
    request = GenerateRequest(sampling=Sampling(seed=1, max_tokens=0), prompt="Say", echo=True)

    [end] = ask(make(stub), request)

    assert (end.outcome.state, end.outcome.reason, end.outcome.prompt) == ("done", "length", Prompt(text="Say"))
    assert stub.asked == []


def test_an_endless_answer_is_cut(make):
    found = ask(make(Stub([event("x" * 1000)] * 50)))

    assert isinstance(found[-1], Returned)
    assert len(text(found)) <= 64 * 32


@pytest.mark.parametrize("url", ["", "up:8000", "http://", "http://up:port"])
def test_an_upstream_must_be_named(url):
    with pytest.raises(ConfigError, match="BUSWAY_WORKER__UPSTREAM__URL"):
        UpstreamEngine(WorkerSettings(engine="upstream", upstream={"url": url}))
