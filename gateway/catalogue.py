"""The catalogue: which models the fleet serves, as of the last look."""

import asyncio
import time
from collections.abc import Callable

import structlog

from shared.broker import Broker, ServedModel
from shared.errors import BrokerUnavailable, ModelNotFound, NoWorkers

POLL_S = 0.5
FRESH_S = 3.0
ABSENT_RETRY_S = 5

log = structlog.get_logger()


class Catalogue:
    """Asks the broker twice a second; while Redis is away the last answer stands."""

    def __init__(
        self,
        broker: Broker,
        lanes: list[str],
        *,
        absent_grace_s: float,
        on_absent: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`on_absent` hears, with each look, the name of every model that nobody has served for too long."""
        self._broker = broker
        self._on_absent = on_absent
        self._lanes = lanes
        self._absent_grace_s = absent_grace_s
        self._by_name: dict[str, ServedModel] = {}
        self._ever: set[str] = set()  # a broker that lost its data does not know them until their workers speak again
        self._looked_at: float | None = None
        self._look = asyncio.Lock()
        self.depths: dict[str, dict[str, int]] = {}
        """Requests in each lane of each model."""

    @property
    def models(self) -> list[ServedModel]:
        return list(self._by_name.values())

    @property
    def fresh(self) -> bool:
        """Redis has answered within the last seconds."""
        return self._looked_at is not None and time.monotonic() - self._looked_at < FRESH_S

    async def run(self) -> None:
        """Until cancelled."""
        reachable = True
        while True:
            try:
                await self.refresh()
                if not reachable:
                    log.info("catalogue.reachable")
                reachable = True
            except BrokerUnavailable as error:
                if reachable:
                    log.warning("catalogue.unreachable", error=str(error))
                reachable = False
            except Exception:
                log.exception("catalogue.failed")
            await asyncio.sleep(POLL_S)

    async def refresh(self) -> None:
        """Look now. Those who ask while a look is under way share the next one."""
        asked_at = time.monotonic()
        async with self._look:
            if self._looked_at is not None and self._looked_at >= asked_at:
                return
            began_at = time.monotonic()
            found = {model.name: model for model in await self._broker.models()}
            self.depths = {name: await self._broker.lane_depths(name, self._lanes) for name in found}
            self._by_name = found
            self._ever |= found.keys()
            self._looked_at = began_at
        for model in found.values():
            if self._is_absent(model):
                self._on_absent(model.name)

    async def offered(self) -> list[ServedModel]:
        """The models that a request may ask for, those that live first: many clients take the first one.

        BrokerUnavailable if Redis is away and no model lived when it last answered.
        """
        if not any(live(model) for model in self.models):
            await self.refresh()  # one may have come up since, and another gateway may have said so
        known = [model for model in self.models if not self._is_absent(model)]
        return sorted(known, key=lambda model: not live(model))

    def get(self, name: str) -> ServedModel | None:
        """The model as of the last look, whether anybody serves it or not."""
        return self._by_name.get(name)

    async def find(self, name: str) -> ServedModel:
        """The model; ModelNotFound if the fleet does not know it, NoWorkers if nobody has served it for too long."""
        if name not in self._by_name:
            await self.refresh()  # it may have come up since
        model = self._by_name.get(name)
        if model is None and name in self._ever:
            raise NoWorkers(f"No worker serves {name} now.", retry_after_s=ABSENT_RETRY_S)
        if model is None:
            raise ModelNotFound(f"The model {name[:200]!r} does not exist.", param="model")
        if self._is_absent(model):
            raise NoWorkers(f"No worker serves {name} now.", retry_after_s=ABSENT_RETRY_S)
        return model

    def _is_absent(self, model: ServedModel) -> bool:
        return not live(model) and model.seen_s_ago > self._absent_grace_s


def live(model: ServedModel) -> bool:
    """Some worker serves it and goes on serving it."""
    return any(worker.get("draining", "0") in ("", "0") for worker in model.workers)


def max_model_len(model: ServedModel) -> int | None:
    """The smallest that its workers say; None if they do not."""
    return min(_numbers(model, "max_model_len"), default=None)


def longest_context(model: ServedModel) -> int | None:
    """The largest that its workers say: what exceeds it, none of them can serve. None if they do not say."""
    return max(_numbers(model, "max_model_len"), default=None)


def vocabulary(model: ServedModel) -> int | None:
    """Its number of tokens; None if its workers do not say."""
    return max(_numbers(model, "vocab_size"), default=None)


def _numbers(model: ServedModel, field: str) -> list[int]:
    return [int(text) for worker in model.workers if (text := worker.get(field, "")).isdigit()]
