"""A relay whose broker is played."""

import pytest

from gateway.metrics import Metrics
from gateway.relay import Relay
from tests.unit.gateway.stubs import StubBroker, StubListener


@pytest.fixture
def broker():
    return StubBroker()


@pytest.fixture
async def relay(broker):
    one = Relay(broker, StubListener(), Metrics())
    yield one
    await one.close()
