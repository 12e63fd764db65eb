"""The embedded broker under our supervision, played by a stand-in that answers what the test wants."""

import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from shared.cli import valkey as module
from shared.cli.signals import StopAsked
from shared.cli.valkey import Valkey
from shared.errors import ConfigError
from tests.support.up import is_running

LIMIT = "--client-output-buffer-limit"
COMPOSE = Path(__file__).parents[3] / "docker-compose.yml"

STAND_IN = f"""#!{sys.executable}
import os, socket, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
os.chdir(options["--dir"])
print("up", flush=True)
if os.path.exists("broken"):
    sys.exit("last words")
server = socket.socket(socket.AF_UNIX)
server.bind(options["--unixsocket"])
server.listen()
while True:
    client, _ = server.accept()
    while asked := client.recv(4096):
        for command in asked.split(b"*")[1:]:
            is_loading = b"PING" in command and not os.path.exists("loaded")
            client.sendall(b"-LOADING reading\\r\\n" if is_loading else b"+PONG\\r\\n")
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    path = tmp_path / "stand-in"
    path.write_text(STAND_IN)
    path.chmod(0o700)
    monkeypatch.setattr(module, "binary", lambda: str(path))


@pytest.fixture
def made():
    """Makes servers that are gone afterwards."""
    servers = []

    def make(folder, **options):
        servers.append(Valkey(folder, **options))
        return servers[-1]

    yield make
    for one in servers:
        one.stop()


def test_as_long_as_it_reads_its_data_it_is_waited_for(tmp_path, stand_in, made, monkeypatch):
    clock, said = SimpleNamespace(now=0.0), []
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=time.sleep))

    def look():
        if said:
            clock.now += module.START_S / 2
        if clock.now > 20 * module.START_S:
            (server.folder / "loaded").touch()

    server = made(tmp_path / "data", say=said.append, raise_if_asked=look)
    server.start()

    assert clock.now > 20 * module.START_S
    assert len(said) == 1 and "reads its append-only file" in said[0]


def test_a_request_to_stop_ends_the_wait_for_its_data(tmp_path, stand_in, made):
    def stop_asked():
        raise StopAsked

    server = made(tmp_path / "data", raise_if_asked=stop_asked)

    with pytest.raises(StopAsked):
        server.start()
    server.stop()

    assert not is_running(server.pid)


def test_a_crash_keeps_its_last_words_when_it_is_started_again(tmp_path, stand_in, made):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "valkey.log").write_text("the run before\n")
    (folder / "broken").touch()
    server = made(folder)
    with pytest.raises(ConfigError, match="last words"):
        server.start()
    (folder / "broken").unlink()
    (folder / "loaded").touch()

    server.start()

    assert server.log.read_text() == "up\nlast words\nup\n"
    assert (folder / "valkey.log.1").read_text() == "the run before\n"


def test_a_socket_with_a_long_path_stands_in_a_folder_that_goes_when_it_stops(tmp_path, stand_in, made):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    (folder / "loaded").touch()
    server = made(folder)

    for _ in range(2):
        server.start()
        assert server.socket.exists()
        assert server.socket.parent.stat().st_mode & 0o777 == 0o700
        server.stop()
        assert not server.socket.parent.exists()


def test_compose_bounds_what_a_deaf_subscriber_may_cost_as_the_embedded_broker_does(tmp_path, made):
    command = yaml.safe_load(COMPOSE.read_text())["services"]["redis"]["command"]
    at = command.index(LIMIT) + 1
    embedded = made(tmp_path)._command()

    assert " ".join(command[at : at + 4]) == embedded[embedded.index(LIMIT) + 1]


def test_it_ends_by_the_signal_that_flushes(tmp_path, stand_in, made):
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "loaded").touch()
    server = made(folder)
    server.start()

    server.stop()

    assert server.exit_status() == -signal.SIGTERM
