"""`busway why`: a gateway's JSON in plain words."""

import json

import httpx
import pytest
from typer.testing import CliRunner

from shared.cli import client
from shared.cli.main import app
from shared.cli.why import explain
from shared.cli.words import duration, table

TOLD = {
    "id": "r-1",
    "object": "request",
    "model": "echo",
    "lane": "bulk",
    "state": "queued",
    "cancelling": False,
    "attempts": 0,
    "deaths": 0,
    "tokens": 0,
    "worker": None,
    "watched": True,
    "detached": False,
    "position": 3,
    "blocked_by": "3 requests of lane bulk before it",
    "workers": 2,
    "estimated_start_ms": 1500,
    "age_ms": 2500,
    "queued_ms": None,
    "queue_timeout_in_ms": 57_500,
    "deadline_in_ms": 597_500,
    "finish_reason": None,
    "error": None,
}
RAN = {"attempts": 2, "queued_ms": 800, "position": None, "blocked_by": None, "estimated_start_ms": None}
RAN |= {"queue_timeout_in_ms": None}


def explained(**fields):
    return {line[:10].strip(): line[10:] for line in explain({**TOLD, **fields})}


def test_what_waits_says_how_long_why_and_whether_it_will_be_in_time():
    assert explain(TOLD) == [
        "request   r-1, 2.5 s old",
        "state     waits for a worker, 0 tokens, in lane bulk of echo",
        "position  3 before it",
        "blocked   by 3 requests of lane bulk before it",
        "start     in about 1.5 s",
        "deadline  in 10 min, to be started within 58 s: 56 s to spare",
        "attempts  none so far",
        "client    waits for it",
    ]


@pytest.mark.parametrize(
    ("estimated_ms", "start", "deadline"),
    [
        (None, "not known: the pace of its lane was not measured yet", "in 10 min, to be started within 58 s"),
        (0, "with the next slot that comes free for its lane", "in 10 min, to be started within 58 s: 58 s to spare"),
        (60_000, "in about 60 s", "in 10 min, to be started within 58 s: 2.5 s too early at this pace"),
    ],
)
def test_an_estimate_is_compared_with_the_time_there_is(estimated_ms, start, deadline):
    lines = explained(estimated_start_ms=estimated_ms)

    assert (lines["start"], lines["deadline"]) == (start, deadline)


def test_what_runs_says_where_and_how_often_it_was_started():
    lines = explained(**RAN, state="running", tokens=1, worker="box:7:ab", deaths=1, cancelling=True)

    assert lines["state"] == "runs, 1 token, its cancel is on the way to the worker, in lane bulk of echo"
    assert lines["worker"] == "box:7:ab"
    assert lines["attempts"] == "2, the first after 800 ms; 1 worker died with it"
    assert "position" not in lines


def test_what_gave_way_says_so():
    lines = explained(
        **{**RAN, "position": 0, "blocked_by": "full workers: 4 slots of 1 worker, all taken"}, state="parked"
    )

    assert lines["state"].startswith("paused to let others go first, waits for a worker")
    assert lines["position"] == "the next of its lane"
    assert lines["blocked"] == "by full workers: 4 slots of 1 worker, all taken"


def test_what_has_ended_says_how_and_of_no_deadline():
    done = explained(**RAN, state="done", finish_reason="stop", tokens=9, deadline_in_ms=None)
    error = {"code": "worker_lost", "message": "It was given up."}
    failed = explained(**RAN, state="failed", error=error, deaths=3, deadline_in_ms=None)

    assert done["state"] == "done (stop), 9 tokens, in lane bulk of echo"
    assert (failed["error"], failed["attempts"].split("; ")[1]) == (
        "worker_lost: It was given up.",
        "3 workers died with it",
    )
    assert not {"deadline", "client", "position"} & {*done, *failed}


@pytest.mark.parametrize(
    ("watched", "detached", "words"),
    [
        (True, True, "reads along; it runs to its end all the same"),
        (False, True, "not here; it runs to its end all the same"),
        (False, False, "not here"),
    ],
)
def test_who_waits_for_it_is_told(watched, detached, words):
    assert explained(watched=watched, detached=detached)["client"] == words


def test_a_request_in_parts_tells_each():
    whole = {"id": "r-1", "state": "running", "parts": [TOLD, {**TOLD, **RAN, "state": "running", "id": "r-1-1"}]}

    lines = explain(whole)

    assert lines[:2] == ["request   r-1", "state     running, in 2 parts"]
    assert [line for line in lines if line.startswith("part")] == ["part 1", "part 2"]
    assert "  request   r-1-1, 2.5 s old" in lines


@pytest.fixture
def gateway(monkeypatch):
    """Answers what is put into it; the paths that were asked."""
    asked, answers = [], []

    def handle(request):
        asked.append(request.url.raw_path.decode())
        return answers.pop(0)

    made = httpx.Client

    def stub(**options):
        return made(base_url=options["base_url"], transport=httpx.MockTransport(handle))

    monkeypatch.setattr(client.httpx, "Client", stub)
    return asked, answers


@pytest.mark.parametrize("name", ["r-1", "chatcmpl-r-1", "cmpl-r-1"])
def test_the_id_of_an_answer_is_understood(gateway, name):
    asked, answers = gateway
    answers.append(httpx.Response(200, json=TOLD))

    said = CliRunner().invoke(app, ["why", name, "--url", "http://127.0.0.1:1"])

    assert (said.exit_code, said.output) == (0, "\n".join(explain(TOLD)) + "\n")
    assert asked == ["/v1/requests/r-1"]


def test_json_is_what_the_gateway_said(gateway):
    gateway[1].append(httpx.Response(200, json=TOLD))

    said = CliRunner().invoke(app, ["why", "r-1", "--json"])

    assert json.loads(said.output) == TOLD


def test_an_unknown_request_is_exit_status_1_and_the_gateways_words(gateway):
    asked, answers = gateway
    answers.append(httpx.Response(404, json={"error": {"message": "There is no request 'a/b?'."}}))

    said = CliRunner().invoke(app, ["why", "a/b?"])

    assert (said.exit_code, said.stderr) == (1, "busway: There is no request 'a/b?'.\n")
    assert asked == ["/v1/requests/a%2Fb%3F"]


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 ms"), (999, "999 ms"), (1000, "1.0 s"), (9_900, "9.9 s"), (10_000, "10 s"), (119_000, "119 s"),
        (120_000, "2 min"), (7_200_000, "2 h"), (172_800_000, "2 d"),
    ],
)  # fmt: skip
def test_a_time_is_told_in_its_largest_unit(ms, words):
    assert duration(ms) == words


def test_a_table_is_as_wide_as_it_must_be():
    assert table(["a", "bcd"], [["1234", 5]]) == ["a     bcd", "1234  5"]


def test_without_a_worker_no_start_is_promised():
    lines = explained(workers=0, estimated_start_ms=None, blocked_by="the lack of a live worker")

    assert lines["start"] == "not before a worker takes its lane"
    assert "to spare" not in lines["deadline"]
