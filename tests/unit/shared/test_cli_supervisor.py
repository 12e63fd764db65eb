"""Supervision with parts that end when the test says so."""

import subprocess
import sys
import time

import pytest

from shared.cli import processes, supervisor
from shared.cli.supervisor import Broken, Program, Supervisor
from shared.errors import ConfigError
from tests.support.up import is_running


class Part:
    """Ends when `status` is set."""

    def __init__(self, log, name="part"):
        self.name = name
        self.log = log
        self.status = None
        self.starts = 0
        self.refuses = False

    def start(self):
        if self.refuses:
            raise ConfigError("it will not")
        self.starts += 1
        self.status = None

    def exit_status(self):
        return self.status


@pytest.fixture
def clock(monkeypatch):
    """A monotonic clock that stands still until it is moved."""

    class Clock:
        now = 1000.0

    monkeypatch.setattr(supervisor.time, "monotonic", lambda: Clock.now)
    return Clock


@pytest.fixture
def said():
    return []


def watched(part, said):
    made = Supervisor(said.append)
    made.start(part)
    return made


def test_what_ends_is_started_again_after_a_pause(tmp_path, clock, said):
    part = Part(tmp_path / "log")
    watch = watched(part, said)
    clock.now += 60
    part.status = -9

    watch.tick()
    assert part.starts == 1

    clock.now += 0.2
    watch.tick()
    assert part.starts == 2
    assert said[0].startswith("part ended (signal 9) after 60.0 s; again in 0.1 s")


def test_a_death_is_told_once_and_before_the_next_start(tmp_path, clock, said):
    part, told = Part(tmp_path / "log"), []
    watch = Supervisor(said.append, on_death=lambda dead: told.append((dead, dead.starts)))
    watch.start(part)
    clock.now += 60
    part.status = -9

    for _ in range(3):
        watch.tick()
        clock.now += 0.2

    assert (told, part.starts) == ([(part, 1)], 2)


def test_who_was_asked_to_leave_is_not_started_again_and_who_failed_is(tmp_path, clock, said):
    leaves, fails = Part(tmp_path / "log", "leaves"), Part(tmp_path / "log", "fails")
    watch = Supervisor(said.append)
    for part in (leaves, fails):
        watch.start(part, may_leave=True)
    clock.now += 60
    leaves.status, fails.status = 0, 1

    for _ in range(3):
        watch.tick()
        clock.now += 10

    assert (leaves.starts, fails.starts) == (1, 2)
    assert [line for line in said if "leaves" in line] == [
        "leaves has left, as it was asked to; it is not started again"
    ]


def test_a_part_that_may_not_leave_is_started_again_even_after_a_good_end(tmp_path, clock, said):
    part = Part(tmp_path / "log")
    watch = watched(part, said)
    clock.now += 60
    part.status = 0

    watch.tick()
    clock.now += 1
    watch.tick()

    assert part.starts == 2


def test_a_part_that_keeps_ending_early_ends_it_all(tmp_path, clock, said):
    part = Part(tmp_path / "log")
    part.log.write_text("why\n")
    watch = watched(part, said)
    pauses = []

    with pytest.raises(Broken, match=r"(?s)part ended 5 times in a row within 5 s .exit status 1.*why"):
        for _ in range(100):
            part.status = 1
            watch.tick()
            began = clock.now
            while part.status is not None:
                clock.now += 0.05
                watch.tick()
            pauses.append(clock.now - began)

    assert part.starts == 5
    assert pauses == sorted(pauses)


def test_a_life_in_between_clears_the_record(tmp_path, clock, said):
    part = Part(tmp_path / "log")
    watch = watched(part, said)

    for life_s in [1, 1, 1, 1, 60] * 3:
        clock.now += life_s
        part.status = 1
        watch.tick()
        clock.now += 5
        watch.tick()

    assert part.starts == 16


def test_a_start_that_is_refused_counts_as_a_death(tmp_path, clock, said):
    part = Part(tmp_path / "log")
    watch = watched(part, said)
    part.status = 1
    part.refuses = True

    with pytest.raises(Broken, match="it will not"):
        for _ in range(100):
            watch.tick()
            clock.now += 1


@pytest.mark.parametrize(("status", "expected"), [(2, 2), (1, 1), (-9, 1)])
def test_a_death_at_the_start_is_told_with_the_end_of_the_log(tmp_path, said, status, expected):
    part = Part(tmp_path / "log")
    part.log.write_text("".join(f"line {number}\n" for number in range(100)))
    watch = watched(part, said)
    watch.refuse_deaths()
    part.status = status

    with pytest.raises(Broken, match="line 99") as caught:
        watch.refuse_deaths()

    assert caught.value.status == expected
    assert "line 9\n" not in str(caught.value)


def program(tmp_path, code):
    return Program("p", [sys.executable, "-c", code], env={}, log=tmp_path / "p.log")


def test_the_log_of_the_run_before_is_kept(tmp_path):
    (tmp_path / "p.log").write_text("old")

    made = program(tmp_path, "print('new')")
    made.start()
    made._process.wait()

    assert (tmp_path / "p.log").read_text() == "new\n"
    assert (tmp_path / "p.log.1").read_text() == "old"


STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, lambda *_: None); print('up', flush=True); time.sleep(60)"
)


def started(tmp_path):
    made = program(tmp_path, STUBBORN)
    made.start()
    while made.log.read_text() != "up\n":
        time.sleep(0.01)
    return made


def test_what_does_not_end_in_time_is_killed(tmp_path):
    made = started(tmp_path)

    killed = supervisor.stop([made, program(tmp_path, "never started")], grace_s=0.1, is_forced=lambda: False)

    assert killed == ["p"]
    assert made.exit_status() == -9


def test_a_second_request_does_not_wait(tmp_path):
    made = started(tmp_path)

    assert supervisor.stop([made], grace_s=60, is_forced=lambda: True) == ["p"]


def test_a_child_that_was_orphaned_before_it_could_ask_ends(monkeypatch):
    """The parent may die between the fork and the child's request to be told of it."""
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux tells children of their parent's death")
    monkeypatch.setattr(processes.os, "getpid", lambda: 1)

    child = processes.spawn([sys.executable, "-c", "import time; time.sleep(60)"])

    assert child.wait(20) == 1


def test_a_child_is_gone_with_its_parent(tmp_path):
    """Whatever ends the parent."""
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux tells children of their parent's death")
    code = (
        "import sys, time; from shared.cli.processes import spawn\n"
        "print(spawn([sys.executable, '-c', 'import time; time.sleep(60)']).pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())

    parent.kill()
    parent.communicate()

    until = time.monotonic() + 5
    while is_running(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_running(child)
