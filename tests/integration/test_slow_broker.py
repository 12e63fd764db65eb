"""A broker whose every reply is late."""

import httpx
import pytest

from tests.support.fleet import Fleet
from tests.support.proxy import proxied

pytestmark = pytest.mark.integration

TEXT = "one two three four five"
CHAT = {"model": "echo", "messages": [{"role": "user", "content": TEXT}], "stream": True}


@pytest.fixture
async def proxy(valkey, redis):
    async with proxied(valkey.socket) as proxy:
        yield proxy


@pytest.fixture
def slow_fleet(proxy, tmp_path):
    fleet = Fleet(proxy.url, tmp_path)
    yield fleet
    fleet.stop()


async def test_an_answer_that_has_ended_is_told_again_however_late_the_broker_is(proxy, slow_fleet):
    await slow_fleet.worker()
    gateway = await slow_fleet.gateway()
    proxy.delay_s = 0.2
    async with httpx.AsyncClient(base_url=gateway.url, timeout=30) as http:
        told = await http.post("/v1/chat/completions", json=CHAT, headers={"accept": "text/event-stream"})
        events = f"/v1/requests/{told.headers['x-request-id']}/events"

        again = await http.get(events)

    assert (told.status_code, again.status_code) == (200, 200), again.text
    assert again.text == told.text
