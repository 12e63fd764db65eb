"""A short storm, and how a storm ends before its time."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fault.storm.plan import FAULTS, ask, faults
from tests.support.up import is_running, processes

pytestmark = [pytest.mark.fault, pytest.mark.integration, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
SEED = 5
SECONDS = 18


def storm(*options: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fault.storm", *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_the_plan_follows_from_the_seed():
    assert faults(SEED, 600) == faults(SEED, 600) != faults(SEED + 1, 600)
    assert [ask(SEED, number) for number in range(50)] == [ask(SEED, number) for number in range(50)]


def test_everything_breaks_in_a_short_storm():
    assert {fault.kind for fault in faults(SEED, SECONDS)} == set(FAULTS)


def test_seed_5_loses_nothing_tells_nothing_twice_and_leaves_nothing(tmp_path):
    """Every request that was accepted ends with its exact text, or with one error that has a reason."""
    file = tmp_path / "figures.json"
    running = storm(
        "--seed", str(SEED), "--seconds", str(SECONDS), "--json", str(file), "--data", str(tmp_path / "data")
    )

    said, _ = running.communicate()

    assert running.returncode == 0, said
    figures = json.loads(file.read_text())
    assert (figures["lost"], figures["duplicated"], figures["differing"], figures["left_over"]) == (0, 0, 0, [])
    assert figures["exact"] > 0
    assert set(figures["kills"]) == set(FAULTS)


def test_no_process_outlives_a_storm_that_is_interrupted(tmp_path):
    running = storm("--seed", str(SEED), "--seconds", "600", "--data", str(tmp_path / "data"))
    assert any(line.startswith("seed") for line in running.stdout), "it ended before it began"
    started = [pid for pid, parent, _, _ in processes() if parent == running.pid]
    assert started

    running.send_signal(signal.SIGINT)
    running.communicate()

    assert running.returncode == 130
    assert [pid for pid in started if is_running(pid)] == []
