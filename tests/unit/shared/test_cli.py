"""The `busway` command: what options amount to, and what it prints."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shared import ids
from shared.cli import fleet, listen, run
from shared.cli.config import masked
from shared.cli.lock import hold
from shared.cli.main import app
from shared.cli.status import is_here
from shared.errors import ConfigError

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in [*os.environ]:
        if name.startswith(("BUSWAY_", "REDIS_URL")):
            monkeypatch.delenv(name)


def plan(tmp_path, *, workers=1, gateways=1, **options):
    return fleet.plan(run.settings_of(**options), workers=workers, gateways=gateways, data=tmp_path, check=True)


def busway(*arguments, **env):
    command = [sys.executable, "-m", "shared.cli.main", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=30)


def test_options_become_settings():
    given = run.settings_of(worker__engine="echo", gateway__port=0, worker__model=None)

    assert given == {"BUSWAY_WORKER__ENGINE": "echo", "BUSWAY_GATEWAY__PORT": "0"}


def test_options_win_over_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("BUSWAY_WORKER__ENGINE", "continuous")

    assert plan(tmp_path, worker__engine="echo").settings.worker.engine == "echo"


@pytest.mark.parametrize("name", ["BUSWAY_REDIS__URL", "REDIS_URL", "busway_redis__url"])
def test_a_broker_that_is_named_is_used(tmp_path, monkeypatch, name):
    assert plan(tmp_path).own_broker

    monkeypatch.setenv(name, "redis://elsewhere")

    assert not plan(tmp_path).own_broker


def test_a_broker_that_the_file_names_is_used(tmp_path, monkeypatch):
    (tmp_path / "env").write_text("BUSWAY_REDIS__URL=redis://elsewhere\n")
    monkeypatch.setenv("BUSWAY_ENV_FILE", str(tmp_path / "env"))

    assert not plan(tmp_path).own_broker


def test_an_empty_url_names_no_broker(tmp_path, monkeypatch):
    monkeypatch.setenv("BUSWAY_REDIS__URL", "")

    assert plan(tmp_path).own_broker


def test_workers_share_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(fleet, "cores", lambda: 8)

    assert "BUSWAY_WORKER__THREADS" not in plan(tmp_path).overrides
    assert plan(tmp_path, workers=3).overrides["BUSWAY_WORKER__THREADS"] == "2"
    assert plan(tmp_path, workers=99).overrides["BUSWAY_WORKER__THREADS"] == "1"


def test_threads_that_are_set_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("BUSWAY_WORKER__THREADS", "5")

    assert "BUSWAY_WORKER__THREADS" not in plan(tmp_path, workers=3).overrides


def test_several_gateways_count_together(tmp_path):
    assert "PROMETHEUS_MULTIPROC_DIR" not in plan(tmp_path).overrides
    assert plan(tmp_path, gateways=2).overrides["PROMETHEUS_MULTIPROC_DIR"] == str(tmp_path / "metrics")


def test_sockets_share_one_free_port():
    sockets = listen.bind("127.0.0.1", 0, 3)

    assert {one.getsockname()[1] for one in sockets} == {listen.port_of(sockets)}
    for one in sockets:
        one.close()


def test_a_port_in_use_is_refused_even_if_it_could_be_shared():
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()

        with pytest.raises(ConfigError, match=r"cannot listen on 127.0.0.1 port"):
            listen.bind("127.0.0.1", other.getsockname()[1], 1)


def test_an_unknown_host_is_refused():
    with pytest.raises(ConfigError, match=r"cannot listen on no.such.host.invalid port 80"):
        listen.bind("no.such.host.invalid", 80, 1)


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("box", "http://box:80"),
    ],
)
def test_the_url_is_one_that_a_client_can_use(host, url):
    assert listen.url_of(host, 80) == url


def test_the_lock_of_a_living_fleet_is_refused(tmp_path):
    with hold(tmp_path), pytest.raises(ConfigError, match=f"pid {os.getpid()} runs on"), hold(tmp_path):
        pass


def test_the_lock_is_free_again_afterwards(tmp_path):
    with hold(tmp_path):
        pass

    with hold(tmp_path):
        pass


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@host:1/0", "redis://:****@host:1/0"),
        ("redis://user:p@ss/word:x@host", "redis://user:****@host"),
        ("unix:///a/b.sock?db=0&password=secret", "unix:///a/b.sock?db=0&password=****"),
        ("redis://host:6379/0", "redis://host:6379/0"),
    ],
)
def test_passwords_are_masked(url, shown):
    assert masked(url) == shown


def test_config_show_hides_secrets_and_names_sources(monkeypatch):
    monkeypatch.setenv("REDIS_URL", "redis://:secret@host/0")
    monkeypatch.setenv("BUSWAY_GATEWAY__API_KEYS", "sk-secret")
    monkeypatch.setenv("BUSWAY_LANES__BULK__WEIGHT", "2")

    plain = CliRunner().invoke(app, ["config", "show"]).output
    table = CliRunner().invoke(app, ["config", "show", "--sources"]).output
    parsed = json.loads(CliRunner().invoke(app, ["config", "show", "--json"]).output)

    assert "secret" not in plain + table + json.dumps(parsed)
    assert "BUSWAY_LANES__BULK__WEIGHT=2\n" in plain
    assert [line.split() for line in table.splitlines() if "BULK__WEIGHT" in line] == [
        ["BUSWAY_LANES__BULK__WEIGHT", "2", "environment"]
    ]
    assert parsed["BUSWAY_REDIS__URL"] == {"value": "redis://:****@host/0", "source": "REDIS_URL"}


@pytest.mark.parametrize(
    "command", [("config", "show"), ("chat", "hi"), ("status",), ("up",), ("why", "x"), ("dlq", "list")]
)
def test_a_wrong_setting_is_one_line_and_exit_status_2(command):
    done = busway(*command, BUSWAY_WORKER__SLOT="1")

    assert done.returncode == 2
    assert done.stderr == "busway: BUSWAY_WORKER__SLOT is not a setting; did you mean BUSWAY_WORKER__SLOTS?\n"


def test_nobody_there_is_exit_status_1_and_the_reason():
    done = busway("chat", "hi", "--url", "http://127.0.0.1:1")

    assert done.returncode == 1
    assert done.stderr.startswith("busway: http://127.0.0.1:1: ")


def test_a_worker_is_known_by_host_and_process():
    mine = ids.boot_id()

    assert is_here(mine)
    assert is_here(mine, os.getpid())
    assert not is_here(mine, os.getpid() + 1)
    assert not is_here("x" + mine)


def test_help_imports_nothing_heavy():
    code = "import sys; import shared.cli.main; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout.split()

    assert not {"pydantic", "redis", "httpx", "rich", "asyncio", "torch"} & set(loaded)
