"""`busway up`: real processes, started, killed and stopped."""

import os
import signal
import subprocess
import sys

import httpx
import pytest
from redis import Redis

from tests.support.up import ROOT, Up, is_running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

SLOW = {"BUSWAY_WORKER__ECHO__STEP_MS": "250"}


def busway(*arguments, url="", keys=""):
    env = {"BUSWAY_REDIS__URL": url, "BUSWAY_GATEWAY__API_KEYS": keys}
    command = [sys.executable, "-m", "shared.cli.main", *arguments]
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **{name: value for name, value in env.items() if value}},
        capture_output=True,
        text=True,
        timeout=30,
    )


def broker(data):
    return Redis.from_url(f"unix://{data}/valkey/valkey.sock?db=0")


def test_it_becomes_ready_and_answers(tmp_path):
    with Up(tmp_path, "--workers", "2", "--gateways", "2") as up:
        models = httpx.get(f"{up.url}/v1/models", trust_env=False).json()

        status = busway("status", url=f"unix://{tmp_path}/valkey/valkey.sock?db=0")

        assert status.returncode == 0
        assert len(status.stdout.splitlines()) == 2, "both workers serve when it says ready"
        assert [model["id"] for model in models["data"]] == ["echo"]
        assert "check: What is the capital of France?\n" in up.lines, "the echo engine says it back"
        assert up.lines[-1] == f"ready {up.url}\n"
        assert {name: len(pids) for name, pids in up.children().items()} == {"gateway": 2, "worker": 2, "valkey": 1}


def test_chat_streams_and_takes_a_lane(tmp_path):
    with Up(tmp_path, "--no-check") as up:
        for lane in ("interactive", "bulk"):
            done = busway("chat", "--url", up.url, "--lane", lane, "one two three")

            assert (done.returncode, done.stdout, done.stderr) == (0, "one two three\n", "")

        refused = busway("chat", "--url", up.url, "--model", "nobody", "hello")

        assert refused.returncode == 1
        assert "nobody" in refused.stderr


def test_a_key_is_asked_for_and_given(tmp_path):
    with Up(tmp_path, BUSWAY_GATEWAY__API_KEYS="sk-one,sk-two") as up:
        assert "sk-" not in up.said
        assert busway("chat", "--url", up.url, "hello").returncode == 1
        assert busway("chat", "--url", up.url, "hello", keys="sk-two").stdout == "hello\n"


def test_without_a_check_it_asks_nothing(tmp_path):
    with Up(tmp_path, "--no-check") as up:
        assert "check:" not in up.said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_leaves_nothing_behind(tmp_path, number):
    with Up(tmp_path, "--no-check") as up:
        pids = [pid for group in up.children().values() for pid in group]

        status = up.stop(number)

        assert status == 0, up.said
        assert len(pids) == 3
        assert not [pid for pid in pids if is_running(pid)]
        assert up.lines[-1].startswith("stopped: ")


def chatting(up, words):
    """A chat that takes about half a second a word, once its first word is out."""
    command = [sys.executable, "-m", "shared.cli.main", "chat", "--url", up.url, " ".join(["word"] * words)]
    started = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert started.stdout.read(4) == "word"
    return started


def test_what_runs_may_end_before_it_stops(tmp_path):
    with Up(tmp_path, "--no-check", **SLOW) as up:
        chat = chatting(up, 8)

        status = up.stop()

        assert status == 0, up.said
        assert chat.communicate()[0] == " word" * 7 + "\n"
        assert chat.returncode == 0


def test_asked_twice_it_does_not_wait(tmp_path):
    with Up(tmp_path, "--no-check", **SLOW) as up:
        chat = chatting(up, 400)
        up.process.send_signal(signal.SIGINT)
        up.wait_for("stopping: ")

        status = up.stop()

        assert status == 0, up.said
        assert "killed: gateway-1" in up.said
        chat.communicate()
        assert chat.returncode == 1


async def test_killed_it_takes_its_children_with_it(tmp_path):
    with Up(tmp_path, "--no-check") as up:
        pids = [pid for group in up.children().values() for pid in group]

        up.kill()

        assert len(pids) == 3
        await wait_until(lambda: not [pid for pid in pids if is_running(pid)], "the children to end")


@pytest.mark.parametrize("name", ["worker", "gateway", "valkey"])
async def test_what_is_killed_is_started_again(tmp_path, name):
    with Up(tmp_path, "--no-check") as up:
        (before,) = up.children()[name]

        os.kill(before, signal.SIGKILL)

        def successor():
            return [pid for pid in up.children()[name] if pid != before]

        assert await wait_until(successor, f"another {name}")
        with httpx.Client(base_url=up.url, trust_env=False, timeout=20) as client:
            # The gateway's socket outlives it, so nobody is refused in between.
            assert client.get("/v1/models").status_code in (200, 503)
            await wait_until(lambda: client.get("/ready").status_code == 200, "the fleet to be ready again")
            body = {"model": "echo", "messages": [{"role": "user", "content": "still there"}]}
            reply = client.post("/v1/chat/completions", json=body)
        assert reply.json()["choices"][0]["message"]["content"] == "still there"
        assert f"{name}" in "".join(line for line in up.lines if " ended (signal 9)" in line)


async def test_a_gateway_that_is_killed_leaves_the_sum_of_what_is_open(tmp_path):
    with Up(tmp_path, "--no-check", "--gateways", "2", **SLOW, BUSWAY_WORKER__DRAIN_S="0") as up:
        killed = up.children()["gateway"]
        chat = chatting(up, 400)

        def in_flight():
            text = httpx.get(f"{up.url}/metrics", trust_env=False).text
            samples = (one for one in text.splitlines() if one.startswith("busway_requests_in_flight{"))
            return sum(float(one.rsplit(" ", 1)[1]) for one in samples)

        assert in_flight() == 1
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        chat.communicate()

        await wait_until(lambda: up.said.count("is started again") == 2, "the gateways to be back")
        await wait_until(lambda: in_flight() == 0, "the sum without the dead")
        assert not [one for pid in killed for one in (tmp_path / "metrics").glob(f"gauge_live*_{pid}.db")]


def test_a_second_fleet_on_the_same_data_is_refused(tmp_path):
    with Up(tmp_path, "--no-check") as first:
        second = Up(tmp_path, "--no-check")

        assert second.process.wait(20) == 2
        second.wait_for(f"busway: `busway up` with pid {first.process.pid} runs on {tmp_path}")


def test_a_port_that_is_taken_is_refused(tmp_path):
    with Up(tmp_path / "a", "--no-check") as first:
        second = Up(tmp_path / "b", "--no-check", "--port", first.url.rsplit(":", 1)[1])

        assert second.process.wait(20) == 2
        assert "cannot listen on 127.0.0.1 port" in second.wait_for("busway: ")


def test_data_survives_a_kill_and_a_start_right_after_it(tmp_path):
    with Up(tmp_path, "--no-check") as first:
        with broker(tmp_path) as client:
            client.set("kept", "yes")
        first.kill()

    with Up(tmp_path, "--no-check"), broker(tmp_path) as client:
        assert client.get("kept") == b"yes"


def test_a_worker_that_cannot_start_ends_it_with_the_reason(tmp_path):
    up = Up(tmp_path, BUSWAY_WORKER__SERVED_MODEL_NAME="no {braces}")

    assert up.process.wait(40) in (1, 2)
    assert "worker-1 ended at the start (exit status " in up.said
    assert "no braces" in up.said


def test_a_wrong_setting_is_one_line(tmp_path):
    up = Up(tmp_path, BUSWAY_WORKER__SLOT="1")

    assert up.process.wait(20) == 2
    up.wait_for("busway: BUSWAY_WORKER__SLOT is not a setting; did you mean BUSWAY_WORKER__SLOTS?")
    assert len(up.lines) == 1
