"""The parts of one gateway process, and their life."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import structlog

from gateway.admission import Admission
from gateway.catalogue import Catalogue, live
from gateway.door import Lifecycle
from gateway.exposition import Exposition
from gateway.metrics import Metrics
from gateway.relay import Relay
from gateway.stream import Pace
from gateway.whereabouts import Whereabouts
from shared.broker import Broker
from shared.connection import connect, connect_subscriber
from shared.inspection import Inspector
from shared.settings import Settings
from shared.tasks import stop
from shared.wire import ErrorInfo, Outcome

if TYPE_CHECKING:
    from fastapi import Request

CONNECTIONS = 32
LISTENING_WITHIN_S = 2.0

DRAINED = Outcome(
    state="failed", error=ErrorInfo(code="draining", message="The gateway shut down before the answer was complete.")
)

log = structlog.get_logger()


class Gateway:
    """Built from settings, without any connection until `running`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.started_at = int(time.time())
        self.lifecycle = Lifecycle()
        self.metrics = Metrics()
        self.pace = Pace(
            settings.gateway.header_hold_s, settings.gateway.keepalive_s, settings.gateway.disconnect_grace_s
        )
        self._redis = connect(settings.redis, connections=CONNECTIONS)
        self._listener = connect_subscriber(settings.redis)
        broker = self.broker = Broker(self._redis, keep_ms=settings.redis.replay_ttl_s * 1000)
        self.relay = Relay(broker, self._listener, self.metrics)
        self.catalogue = Catalogue(
            broker,
            list(settings.lanes),
            absent_grace_s=settings.gateway.absent_grace_s,
            on_absent=self.relay.give_up_model,
        )
        inspector = Inspector(self._redis)
        self.whereabouts = Whereabouts(inspector, self.catalogue, settings.lanes)
        self.exposition = Exposition(self.metrics, self.catalogue, settings.lanes)
        self.admission = Admission(
            broker,
            self.relay,
            self.catalogue,
            inspector,
            self.metrics,
            lanes=settings.lanes,
            default_lane=settings.gateway.default_lane,
            grace_s=settings.gateway.disconnect_grace_s,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Background work from start to stop. Redis need not be there: requests are refused until it is."""
        loops = [*self.relay.loops(), self.catalogue.run()]
        work = [asyncio.create_task(loop) for loop in loops]
        try:
            # The server accepts once this yields. Until then connections wait in the socket's backlog, where a
            # refusal would reach a client whose other gateways are ready.
            await self.relay.until_listening(LISTENING_WITHIN_S)
            yield
        finally:
            await stop(work)
            await self.relay.close()
            await self._redis.aclose()
            await self._listener.aclose()
            self.exposition.close()

    def drain(self) -> None:
        """Refuse what is new; what is open may end, and is ended with an error when the time is up."""
        self.lifecycle.is_draining = True
        drain_s = self.settings.gateway.drain_s
        log.info("gateway.draining", open=self.relay.followers, drain_s=drain_s)
        asyncio.get_running_loop().call_later(drain_s, self.relay.leave_all, DRAINED)

    def not_ready(self) -> list[str]:
        """What keeps this gateway from serving."""
        problems = []
        if self.lifecycle.is_draining:
            problems.append("draining")
        if not self.relay.listening or not self.catalogue.fresh:
            problems.append("Redis does not answer")
        elif not any(live(model) for model in self.catalogue.models):
            problems.append("no live worker serves a model")
        return problems


def gateway_of(request: "Request") -> Gateway:
    return request.app.gateway
