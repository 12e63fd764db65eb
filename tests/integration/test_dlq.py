"""`busway dlq` on a real broker: what it prints, and what it leaves."""

import asyncio

import pytest
from typer.testing import CliRunner

from shared.cli.main import app
from shared.dead_letters import DeadLetters
from tests.support.desk import MODEL, Desk

pytestmark = pytest.mark.integration


@pytest.fixture
def busway(valkey, monkeypatch, tmp_path):
    """Runs the command, in a thread because it has an event loop of its own."""
    monkeypatch.setenv("BUSWAY_REDIS__URL", valkey.url)
    return lambda *arguments: asyncio.to_thread(CliRunner().invoke, app, ["dlq", *arguments])


@pytest.fixture
async def desk(redis):
    """One whose model is served, and two letters: `a` and then `b`, of other lanes."""
    made = Desk(redis)
    await made.beat("w1")
    for name, lane in (("a", "interactive"), ("b", "bulk")):
        await made.silence(*await made.hold(name, lane=lane))
        await made.claim("w2", max_deaths=1)
    return made


async def entries(desk) -> dict[str, str]:
    return {one.request_id: one.entry async for one in DeadLetters(desk.redis).read([MODEL])}


async def test_the_list_is_a_table_and_holds_nothing_that_a_client_wrote(desk, busway):
    said = await busway("list")

    head, *lines = said.output.splitlines()
    assert head.split() == ["entry", "model", "request", "lane", "cause", "deaths", "age"]
    assert [line.split()[1:6] for line in lines] == [
        [MODEL, "a", "interactive", "worker_lost", "1"],
        [MODEL, "b", "bulk", "worker_lost", "1"],
    ]
    assert "prompt" not in said.output


async def test_a_model_that_nobody_knows_has_none(desk, busway):
    said = await busway("list", "--model", "other")

    assert (said.exit_code, len(said.output.splitlines())) == (0, 1)


async def test_a_letter_is_shown_with_what_was_asked_only_on_demand(desk, busway):
    plain, full = await busway("show", "a"), await busway("show", "a", "--payload")

    assert '"prompt"' not in plain.output
    assert "owner    w1\n" in plain.output and "bytes (--payload prints them)" in plain.output
    assert 'payload  {"sampling":{"seed":7},"prompt":"a"}\n' in full.output


@pytest.mark.parametrize("by_entry", [False, True])
async def test_one_is_retried_and_the_other_stays(desk, busway, by_entry):
    name = (await entries(desk))["b"] if by_entry else "b"

    said = await busway("retry", name)

    assert (said.exit_code, said.output) == (0, "b: queued again\n")
    assert (await desk.state("a"), await desk.state("b")) == ("failed", "queued")
    assert list(await entries(desk)) == ["a"]
    assert await desk.waiting() == {"interactive": 0, "bulk": 1}


async def test_all_are_retried(desk, busway):
    said = await busway("retry", "--all")

    assert sorted(said.output.splitlines()) == ["a: queued again", "b: queued again"]
    assert await entries(desk) == {}


async def test_what_cannot_be_retried_stays_and_is_named(desk, busway):
    await desk.redis.xadd(desk.keys.dead_letters, {"id": "old", "deaths": "3", "owner": "w1"})
    await desk.redis.xadd(desk.keys.dead_letters, {"id": "bare", "lane": "bulk", "deaths": "3", "owner": "w1"})

    said = await busway("retry", "--all")

    assert said.exit_code == 1
    assert "old: not retried: its lane is not one of this environment (BUSWAY_EXTRA_LANES)\n" in said.output
    assert "bare: not retried: its letter has no payload\n" in said.output
    assert list(await entries(desk)) == ["old", "bare"]


async def test_one_is_dropped_and_then_all(desk, busway):
    one = await busway("drop", "a")
    assert (one.output, list(await entries(desk))) == ("dropped: 1\n", ["b"])

    rest, nothing = await busway("drop", "--all"), await busway("drop", "--all")

    assert (rest.output, nothing.output) == ("dropped: 1\n", "dropped: 0\n")
    assert (await entries(desk), await desk.state("a")) == ({}, "failed")


@pytest.mark.parametrize("command", ["show", "retry", "drop"])
async def test_an_unknown_letter_is_exit_status_1(desk, busway, command):
    said = await busway(command, "nobody")

    assert (said.exit_code, said.stderr) == (1, "busway: no dead letter 'nobody'\n")


@pytest.mark.parametrize("arguments", [("retry",), ("drop",), ("drop", "a", "--all")])
async def test_which_ones_must_be_said_once(desk, busway, arguments):
    said = await busway(*arguments)

    assert said.exit_code == 2
    assert "either an ID or --all" in said.stderr
    assert len(await entries(desk)) == 2


async def test_without_a_broker_it_says_so(monkeypatch):
    monkeypatch.setenv("BUSWAY_REDIS__URL", "redis://127.0.0.1:1")

    said = await asyncio.to_thread(CliRunner().invoke, app, ["dlq", "list"])

    assert said.exit_code == 1
    assert said.stderr.startswith("busway: Redis: ")
