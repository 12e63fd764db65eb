"""Requests after they were made: /v1/requests/{id}, their events, their end."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.admission import Admitted, part_id
from gateway.context import trace_of
from gateway.follower import Follower, Reader
from gateway.openai import sse
from gateway.openai.dialects import Chat, Choice, Completion
from gateway.routes.generation import heading
from gateway.state import Gateway, gateway_of
from gateway.stream import EventStream
from shared import wire
from shared.broker import Queued
from shared.errors import InvalidRequest, RequestUnknown
from shared.inspection import Found, Inspection

DIALECTS = {"chat.completions": Chat, "completions": Completion}
AFTER = "starting_after"
LAST_EVENT = "last-event-id"
RETELLING_S = 60.0
"""An answer that is complete has so long to be told again."""

router = APIRouter()


@router.get("/v1/requests/{request_id}", response_model=None)
async def show(request: Request, request_id: str) -> Response:
    """Its state, what it waits for, and the time it has."""
    gateway, found = await _find(request, request_id)
    return _json(await gateway.whereabouts.describe(request_id, found))


@router.delete("/v1/requests/{request_id}", response_model=None)
async def cancel(request: Request, request_id: str) -> Response:
    """End it, whatever state it is in. One that has ended stays as it ended; asking again changes nothing."""
    gateway, found = await _find(request, request_id)
    for part in range(found.meta.parts if found.meta else 1):
        if await gateway.broker.cancel(found.model, found.lane, part_id(request_id, part)) in {"settled", "running"}:
            gateway.metrics.cancels.labels("asked").inc()
    return _json(await gateway.whereabouts.describe(request_id, found))


@router.get("/v1/requests/{request_id}/events", response_model=None)
async def events(request: Request, request_id: str) -> Response:
    """Its answer as a stream, from the token after `Last-Event-ID` or `?starting_after=`, and on to its end."""
    gateway, found = await _find(request, request_id)
    meta = found.meta
    if meta is None or meta.endpoint not in DIALECTS:
        raise InvalidRequest("This request is not answered in tokens, so it has no events.", param="request_id")
    parts = await gateway.whereabouts.parts(request_id, found)
    if len(parts) < meta.parts:
        raise RequestUnknown(f"A part of request {request_id} is not known any more.")
    after = _positions(request, meta.parts)
    admitted = _admitted(request_id, found, meta, parts, after)
    dialect = DIALECTS[meta.endpoint](heading(admitted, found.model, include_usage=meta.include_usage), meta.parts)
    for part, choice, position in zip(parts, dialect.choices, after, strict=True):
        await _skip(gateway, part, choice, position)
    await _join(gateway, admitted)
    gateway.metrics.resumed.inc()
    meters = gateway.metrics.meters(found.lane, found.model)
    return EventStream(admitted, dialect, gateway.relay, meters, gateway.pace, with_ids=True)


async def _join(gateway: Gateway, admitted: Admitted) -> None:
    """Follow all parts or none; RequestUnknown if one has been forgotten meanwhile."""
    is_whole = False
    try:
        is_whole = all([await gateway.relay.join(follower) for follower in admitted.followers])
    finally:
        if not is_whole:
            for follower in admitted.followers:
                gateway.relay.release(follower)
    if not is_whole:
        raise RequestUnknown(f"Request {admitted.id} is not known any more.")


async def _skip(gateway: Gateway, part: Inspection, choice: Choice, position: int) -> None:
    """Have the choice count what the client has; InvalidRequest if no event of the stream ended there."""
    if position == 0:
        return
    told = await gateway.broker.replay(part.model, part.id)
    if all(frame.at + len(frame.ids) != position for frame in told):
        raise InvalidRequest(f"{position} is not the id of an event of this request.", param=AFTER)
    choice.text([frame for frame in told if frame.at < position])


async def _find(request: Request, request_id: str) -> tuple[Gateway, Found]:
    gateway, trace = gateway_of(request), trace_of(request.scope)
    found = await gateway.whereabouts.find(request_id, trace.tenant)
    trace.fields["request"] = request_id
    return gateway, found


def _positions(request: Request, parts: int) -> list[int]:
    """Tokens of each choice that the client has; InvalidRequest if what it says is no id of ours."""
    text = request.query_params.get(AFTER) or request.headers.get(LAST_EVENT) or ""
    if not text:
        return [0] * parts
    numbers = text.split(",")
    if len(numbers) != parts or not all(one.isascii() and one.isdigit() and len(one) < 10 for one in numbers):
        raise InvalidRequest(f"{AFTER}: the id of an event, a number for each choice.", param=AFTER)
    return [int(one) for one in numbers]


def _admitted(request_id: str, found: Found, meta: wire.Meta, parts: list[Inspection], after: list[int]) -> Admitted:
    reader = Reader(may_return=True)
    followers = tuple(
        Follower(part.id, found.model, found.lane, reader, after=position)
        for part, position in zip(parts, after, strict=True)
    )
    left_ms = [part.deadline_in_ms for part in parts if part.deadline_in_ms is not None]
    queue_ms = [part.queue_timeout_in_ms for part in parts if part.queue_timeout_in_ms is not None]
    deadline_s = max(0, *left_ms) / 1000 if left_ms else RETELLING_S
    return Admitted(
        id=request_id,
        lane=found.lane,
        followers=followers,
        reader=reader,
        meta=meta,
        deadline_s=deadline_s,
        queue_timeout_s=max(queue_ms) / 1000 if queue_ms else deadline_s,
        queued=Queued(),
        is_retold=True,
    )


def _json(value: object) -> Response:
    return Response(sse.encode(value), media_type="application/json")
