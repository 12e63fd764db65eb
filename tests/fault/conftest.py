"""A broker and a fleet of the test's own: the server is killed, cut off and made to refuse."""

import pytest

from shared.cli.valkey import Valkey
from tests.support.fleet import Fleet


@pytest.fixture
def broker(tmp_path):
    """A running server; the test may stop, kill and start it."""
    server = Valkey(tmp_path / "valkey")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_fleet(broker, tmp_path):
    """Real processes around that server; all of them are gone afterwards."""
    started = Fleet(broker.url, tmp_path)
    yield started
    started.stop()
