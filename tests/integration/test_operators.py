"""What an operator does to a fleet that runs: real processes, the real command."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from shared.keys import Keys
from tests.fault.drills import Seen, caller, stream, take, words
from tests.support.fleet import Fleet, gather
from tests.support.up import Up
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
DEADLY = "arsenic"
POISON = f"a recipe with {DEADLY} in it"


@pytest.fixture
def busway(valkey):
    """Runs the command on the tests' broker, and lets everything else go on meanwhile."""
    env = {**os.environ, "BUSWAY_REDIS__URL": valkey.url}

    def run(*arguments):
        command = [sys.executable, "-m", "shared.cli.main", *arguments]
        return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)

    return lambda *arguments: asyncio.to_thread(run, *arguments)


@pytest.fixture
def hasty(valkey, redis, tmp_path):
    """A fleet whose silent workers are soon given up."""
    started = Fleet(valkey.url, tmp_path, {"BUSWAY_WORKER__LEASE_S": "1"})
    yield started
    started.stop()


def rows(done) -> list[list[str]]:
    """The table that a command printed, without its head."""
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()[1:]]


async def name_of(worker, redis) -> str:
    """The id of a worker that has just started, once it is on the books."""
    [started] = worker.events("worker.started")
    await wait_until(lambda: redis.exists(Keys("echo").worker(started["worker"])), "its first heartbeat")
    return started["worker"]


async def poison(fleet: Fleet, innocents: list[Seen]) -> httpx.Response:
    """Ask what kills each worker that runs it, while the innocents share its first batch; what its client got."""
    deadly = {"WORKER__ECHO__DIES_OF": DEADLY, "WORKER__ECHO__STEP_MS": "10"}
    first = await fleet.worker(**deadly)
    gateway = await fleet.gateway()
    body = {"model": "echo", "messages": [{"role": "user", "content": POISON}], "stream": True}
    async with caller(gateway) as http:

        async def kill():
            await wait_until(lambda: all(one.times for one in innocents), "the innocents to stream")
            asked = asyncio.create_task(http.post("/v1/chat/completions", json=body))
            await wait_until(lambda: first.status is not None, "the first worker to die")
            for _ in range(3):
                fleet.start("worker", **deadly)
            return await asked

        answer, *_ = await gather(kill(), *(stream(http, one) for one in innocents))
    return answer


async def test_a_request_that_kills_workers_is_put_aside_and_can_be_retried(hasty, busway):
    """It kills three workers and nobody with it: innocents that shared its batch are answered to the letter."""
    innocents = [Seen(words(number, 60)) for number in range(4)]

    answer = await poison(hasty, innocents)

    workers = [one for one in hasty.processes if one.name.startswith("worker")]
    [(entry, model, request_id, lane, cause, deaths, *_)] = rows(await busway("dlq", "list"))
    shown, asked = await busway("dlq", "show", entry), await busway("dlq", "show", request_id, "--payload")
    assert [one.error or one.text for one in innocents if not one.is_exact] == []
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [event["error"]["code"] for event in events if "error" in event] == ["worker_lost"]
    assert not any(choice["finish_reason"] for event in events for choice in event.get("choices", []))
    assert sorted(one.status or 0 for one in workers) == [-9, -9, -9, 0]
    assert (model, lane, cause, deaths) == ("echo", "interactive", "worker_lost", "3")
    assert DEADLY not in shown.stdout and POISON in asked.stdout

    for one in workers:
        one.kill()
    await hasty.worker()
    retried = await busway("dlq", "retry", request_id)

    assert (retried.returncode, retried.stdout) == (0, f"{request_id}: queued again\n"), retried.stderr
    gateway = await hasty.gateway()
    await wait_until(lambda: says(busway, request_id, gateway, "state     done (stop), 6 tokens"), "its end")
    again = Seen(POISON)
    async with caller(gateway) as http:
        for line in (await http.get(f"/v1/requests/{request_id}/events")).text.splitlines():
            take(again, line)
    assert again.is_exact
    assert rows(await busway("dlq", "list")) == []


async def says(busway, request_id, gateway, words) -> bool:
    return words in (await busway("why", request_id, "--url", gateway.url)).stdout


async def test_a_worker_is_sent_home_under_load_and_no_client_notices(fleet, redis, busway):
    pace = {"WORKER__ECHO__STEP_MS": "10", "WORKER__SLOTS": "8", "WORKER__DRAIN_S": "0.3"}
    leaves, stays = [await fleet.worker(**pace) for _ in range(2)]
    gateway = await fleet.gateway()
    seen = [Seen(words(number, 100)) for number in range(24)]
    name = await name_of(leaves, redis)
    async with caller(gateway) as http:

        async def send_home():
            await wait_until(lambda: sum(bool(one.times) for one in seen) >= 16, "both workers to be full")
            return await busway("workers", "drain", name, "--wait", "30")

        drained, *_ = await gather(send_home(), *(stream(http, one) for one in seen))
    listed = rows(await busway("workers", "list"))

    assert (drained.returncode, drained.stdout) == (0, f"{name} has left\n"), drained.stderr
    assert [one.error or one.text for one in seen if not one.is_exact] == []
    await wait_until(lambda: leaves.status is not None, "the process to end")
    assert (leaves.status, stays.status) == (0, None)
    [(left, model, engine, lanes, slots, _, _, state)] = listed
    assert left == stays.events("worker.started")[0]["worker"]
    assert (model, engine, lanes, slots[-2:], state) == ("echo", "echo", "interactive,bulk", "/8", "serving")


async def test_a_worker_that_nobody_means_stays(fleet, redis, busway):
    one, other = [await name_of(await fleet.worker(), redis) for _ in range(2)]
    host = one.split(":")[0]

    unknown, unclear = await busway("workers", "drain", "nobody"), await busway("workers", "drain", host)

    assert (unknown.returncode, unclear.returncode) == (1, 1)
    assert unknown.stderr == "busway: no live workers have an id that starts with 'nobody'\n"
    assert unclear.stderr == f"busway: 2 live workers have an id that starts with {host!r}\n"
    assert {row[0] for row in rows(await busway("workers", "list"))} == {one, other}


async def test_who_does_not_leave_in_time_is_named(fleet, redis, busway):
    worker = await fleet.worker(WORKER__LEASE_S="60")  # so that it is on the books for as long as this takes
    name = await name_of(worker, redis)
    worker.signal(signal.SIGSTOP)

    late = await busway("workers", "drain", name, "--wait", "0")

    assert (late.returncode, late.stderr) == (1, f"busway: {name} is still there after 0 s\n")


async def test_a_supervised_worker_that_was_sent_home_is_not_started_again(tmp_path):
    with Up(tmp_path, "--no-check", "--workers", "2") as up:
        leaves, stays = up.children()["worker"]
        env = {**os.environ, "BUSWAY_REDIS__URL": f"unix://{tmp_path}/valkey/valkey.sock?db=0"}

        def busway(*arguments):
            command = [sys.executable, "-m", "shared.cli.main", *arguments]
            return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)

        [name] = [row[0] for row in rows(busway("workers", "list")) if f":{leaves}:" in row[0]]
        drained = busway("workers", "drain", name.rsplit(":", 1)[0], "--wait", "30")

        assert drained.returncode == 0, drained.stderr
        up.wait_for("busway: worker-1 has left, as it was asked to")
        os.kill(stays, signal.SIGKILL)
        up.wait_for("busway: worker-2 is started again")
        assert len(up.children()["worker"]) == 1
