"""What the tests of a worker's parts share."""

import sys

import pytest


@pytest.fixture(autouse=True)
def one_thread():
    """Small tensors gain nothing from several threads, and wait for each other on a busy machine."""
    torch = sys.modules.get("torch")  # a test module without tensors pays nothing for it
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_poll(monkeypatch):
    """No poll comes to the rescue, except where a test is about it."""
    monkeypatch.setattr("worker.intake.POLL_S", 3600)
