"""Whereabouts: where a request is, what it waits for, and how to find it again."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.admission import part_id
from gateway.catalogue import Catalogue, live
from gateway.openai.errors import Problem
from shared.broker import ServedModel
from shared.errors import RequestUnknown
from shared.inspection import Found, Inspection, Inspector
from shared.lanes import Lane
from shared.wire import TERMINAL

BY_URGENCY = ("failed", "expired", "cancelled", "running", "parked", "queued", "done")
"""A request in several parts is what the first of these says that any of them is."""


class Whereabouts:
    """Looks requests up, for those whose they are."""

    def __init__(self, inspector: Inspector, catalogue: Catalogue, lanes: Mapping[str, Lane]) -> None:
        self._inspector = inspector
        self._catalogue = catalogue
        self._lanes = lanes

    async def find(self, request_id: str, tenant: str) -> Found:
        """RequestUnknown if there is none, it ended too long ago, or it is somebody else's."""
        found = await self._inspector.find(request_id, self._models())
        if found is None:
            known = self._models()
            await self._catalogue.refresh()
            found = await self._inspector.find(request_id, [name for name in self._models() if name not in known])
        if found is None or found.tenant != tenant:
            raise RequestUnknown(f"There is no request {request_id[:64]!r}, or it ended too long ago.")
        return found

    def _models(self) -> list[str]:
        return [model.name for model in self._catalogue.models]

    async def parts(self, request_id: str, found: Found) -> list[Inspection]:
        """Each part of the request; RequestUnknown if the first has been forgotten meanwhile."""
        count = found.meta.parts if found.meta else 1
        ids = [part_id(request_id, part) for part in range(count)]
        parts = [await self._inspector.inspect(found.model, found.lane, one) for one in ids]
        if parts[0] is None:
            raise RequestUnknown(f"There is no request {request_id[:64]!r}, or it ended too long ago.")
        return [part for part in parts if part is not None]

    async def describe(self, request_id: str, found: Found) -> dict[str, Any]:
        """All of it as JSON: with several parts, each of them under `parts`."""
        parts = await self.parts(request_id, found)
        served = next((model for model in self._catalogue.models if model.name == found.model), None)
        told = [self._told(part, served) for part in parts]
        if len(told) == 1:
            return told[0]
        states = {part.state for part in parts}
        state = next(one for one in BY_URGENCY if one in states)
        whole = {"id": request_id, "object": "request", "model": found.model, "lane": found.lane, "state": state}
        return {**whole, "tokens": sum(part.tokens for part in parts), "parts": told}

    def _told(self, part: Inspection, served: ServedModel | None) -> dict[str, Any]:
        outcome, workers = part.outcome, serving(served, part.lane)
        failed = outcome is not None and outcome.state != "done"
        return {
            "id": part.id,
            "object": "request",
            "model": part.model,
            "lane": part.lane,
            "state": part.state,
            "cancelling": part.cancelling,
            "attempts": part.attempts,
            "deaths": part.deaths,
            "tokens": part.tokens,
            "worker": part.worker or None,
            "watched": part.watched,
            "detached": part.detached,
            "position": part.ahead,
            "blocked_by": self._blocked_by(part, workers),
            "workers": len(workers),
            "estimated_start_ms": part.starts_in_ms if workers else None,
            "age_ms": part.age_ms,
            "queued_ms": part.queued_ms,
            "queue_timeout_in_ms": part.queue_timeout_in_ms,
            "deadline_in_ms": part.deadline_in_ms,
            "finish_reason": outcome.reason if outcome is not None else None,
            "error": Problem.of_outcome(outcome).envelope()["error"] if outcome is not None and failed else None,
        }

    def _blocked_by(self, part: Inspection, workers: Sequence[Mapping[str, str]]) -> str | None:
        """What it waits for, in words; None if it runs, has ended, or will be taken with a worker's next fetch."""
        if part.state in TERMINAL or part.state == "running":
            return None
        if not workers:
            return f"the lack of a live worker of {part.model} that takes new requests of lane {part.lane}"
        if part.ahead:
            return f"{_count(part.ahead, 'request')} of lane {part.lane} before it"
        free = sum(int(worker["free_slots"]) for worker in workers)
        slots = sum(int(worker["slots"]) for worker in workers)
        if free <= 0:
            return f"full workers: {_count(slots, 'slot')} of {_count(len(workers), 'worker')}, all taken"
        reserved = [name for name, lane in self._lanes.items() if name != part.lane and lane.reserve_slots]
        if reserved:
            return f"the reserve of {', '.join(reserved)}: {free} of {slots} slots are free"
        return None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def serving(served: ServedModel | None, lane: str) -> Sequence[Mapping[str, str]]:
    """The workers that take requests of this lane and go on doing so."""
    if served is None or not live(served):
        return []
    return [
        worker
        for worker in served.workers
        if worker.get("draining", "0") in ("", "0") and lane in worker.get("lanes", lane).split(",")
    ]
