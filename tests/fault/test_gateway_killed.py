"""kill -9 of a gateway: its clients go on elsewhere; what nobody comes back for stops costing."""

import asyncio
import contextlib

import httpx
import pytest

from tests.fault.drills import Seen, caller, is_idle, stream, take, words
from tests.support.fleet import gather
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.fault, pytest.mark.integration]

STREAMS = 10


class Client:
    """Reads a stream; when its gateway dies it asks another for the rest."""

    def __init__(self, number: int) -> None:
        self.seen = Seen(words(number, 200))
        self.request_id = ""
        self.last_id = "0"

    async def ask(self, http: httpx.AsyncClient, **headers: str) -> None:
        body = {"model": "echo", "messages": [{"role": "user", "content": self.seen.expected}], "stream": True}
        headers = {"accept": "text/event-stream", **headers}
        with contextlib.suppress(httpx.TransportError):
            async with http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
                self.request_id = answer.headers["x-request-id"]
                await self._read(answer)

    async def resume(self, http: httpx.AsyncClient) -> None:
        url = f"/v1/requests/{self.request_id}/events"
        async with http.stream("GET", url, headers={"last-event-id": self.last_id}) as answer:
            assert answer.status_code == 200, await answer.aread()
            await self._read(answer)

    async def _read(self, answer: httpx.Response) -> None:
        new_id = self.last_id
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                new_id = line[4:]
            if line.startswith("data: "):
                take(self.seen, line)
                self.last_id = new_id


async def test_clients_of_a_killed_gateway_get_the_rest_from_another(fleet):
    await fleet.worker(WORKER__ECHO__STEP_MS="10")
    doomed, other = await fleet.gateway(), await fleet.gateway()
    clients = [Client(number) for number in range(STREAMS)]
    async with caller(doomed) as http, caller(other) as elsewhere:

        async def kill() -> None:
            await wait_until(lambda: all(len(one.seen.times) >= 3 for one in clients), "all streams to have begun")
            doomed.process.kill()

        await gather(kill(), *(one.ask(http) for one in clients))
        assert not any(one.seen.finishes for one in clients)

        await gather(*(one.resume(elsewhere) for one in clients))

    assert [one.seen.text for one in clients if not one.seen.is_exact] == []


async def test_a_stream_whose_model_is_gone_ends_with_one_clear_error(fleet):
    worker = await fleet.worker(WORKER__ECHO__STEP_MS="20")
    gateway = await fleet.gateway(GATEWAY__ABSENT_GRACE_S="1")
    seen = Seen(words(0, 500))
    async with caller(gateway) as http:

        async def kill() -> None:
            await wait_until(lambda: len(seen.times) >= 3, "the stream to have begun")
            worker.kill()

        await gather(kill(), stream(http, seen))

    assert seen.error == "no_workers"
    assert seen.expected.startswith(seen.text)


async def test_what_nobody_comes_back_for_ends_after_the_grace(fleet):
    """The running ones and those that wait; a detached one is finished all the same."""
    grace = {"REDIS__ORPHAN_GRACE_S": "0.5"}
    worker = await fleet.worker(WORKER__SLOTS="4", WORKER__ECHO__STEP_MS="20", **grace)
    doomed, other = await fleet.gateway(**grace), await fleet.gateway(**grace)
    clients = [Client(number) for number in range(STREAMS)]
    kept = Client(STREAMS)
    async with caller(doomed) as http, caller(other) as elsewhere:
        asking = [asyncio.create_task(kept.ask(http, **{"x-busway-detach": "true"}))]
        await wait_until(lambda: kept.seen.times, "the detached one to run")
        asking += [asyncio.create_task(one.ask(http)) for one in clients]
        await wait_until(lambda: sum(bool(one.seen.times) for one in clients) >= 3, "the slots to be taken")

        doomed.process.kill()
        await asyncio.gather(*asking)

        await wait_until(lambda: is_idle(fleet, other, 4), "everything to have ended")
        kept.last_id, kept.seen = "0", Seen(kept.seen.expected)
        await kept.resume(elsewhere)

    assert kept.seen.is_exact
    assert worker.events("requests.orphaned")
