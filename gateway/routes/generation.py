"""The way of a request that workers answer, the same for all endpoints."""

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog
from fastapi import Request
from starlette.responses import Response

from gateway.admission import Admitted, Ask
from gateway.answer import Answer, JsonAnswer
from gateway.context import read_body, trace_of
from gateway.openai.dialects import Dialect, Heading
from gateway.openai.schemas import B, Body, EmbeddingsBody, parse
from gateway.state import gateway_of
from gateway.stream import EventStream
from shared import guides, wire
from shared.errors import InvalidRequest

MAX_NAMES = 20

G = TypeVar("G", bound=Body)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[G]):
    """What sets one generating endpoint apart."""

    name: str
    body: type[G]
    translate: Callable[[G, int], tuple[wire.GenerateRequest, ...]]
    dialect: Callable[[Heading, int], Dialect]


async def generate(request: Request, endpoint: Endpoint[G]) -> Response:
    """Parse, admit, follow. A BuswayError on the way is the answer."""
    gateway, trace = gateway_of(request), trace_of(request.scope)
    body, ignored = await read(request, endpoint.name, endpoint.body)
    if body.guide is not None:
        await asyncio.to_thread(guides.refuse_wrong, body.guide)
    requests = endpoint.translate(body, secrets.randbits(63))
    if len(requests) > gateway.settings.gateway.max_choices:
        problem = f"{len(requests)} choices are asked for; {gateway.settings.gateway.max_choices} are allowed."
        raise InvalidRequest(problem, param="n" if body.n > 1 else "prompt")
    admitted = await admit(
        request, requests, body, limit_field=body.limit_field, stream=body.stream, choices_per_prompt=body.n
    )
    heading = Heading(
        trace.request_id, int(time.time()), body.model, admitted.tier, body.include_usage, choices_per_prompt=body.n
    )
    meters = gateway.metrics.meters(admitted.lane, body.model)
    parts = (admitted, endpoint.dialect(heading, len(requests)), gateway.relay, meters)
    answer = EventStream(*parts, gateway.pace) if body.stream else JsonAnswer(*parts)
    return telling(answer, ignored)


async def read(request: Request, endpoint: str, kind: type[B]) -> tuple[B, list[str]]:
    """The body, and the names of its fields that have no effect."""
    trace, limits = trace_of(request.scope), gateway_of(request).settings.gateway
    trace.endpoint = endpoint
    raw = await read_body(request.scope, request.receive, limits.max_body_bytes, within_s=limits.body_timeout_s)
    body, ignored = parse(raw, kind)
    if ignored:
        log.warning("request.fields_ignored", fields=_names(ignored))
    return body, ignored


async def admit(
    request: Request,
    requests: tuple[wire.GenerateRequest, ...],
    body: Body | EmbeddingsBody,
    *,
    limit_field: str,
    stream: bool,
    choices_per_prompt: int = 1,
) -> Admitted:
    """All parts into their lane."""
    trace = trace_of(request.scope)
    ask = Ask(
        id=trace.request_id,
        model=body.model,
        requests=requests,
        limit_field=limit_field,
        service_tier=body.service_tier,
        stream=stream,
        headers=request.headers,
        choices_per_prompt=choices_per_prompt,
    )
    admitted = await gateway_of(request).admission.admit(ask)
    trace.lane, trace.model = admitted.lane, body.model
    return admitted


def telling(answer: Answer, ignored: list[str]) -> Answer:
    """The answer, with the fields that had no effect in a header."""
    if ignored:
        answer.headers["x-busway-ignored"] = _names(ignored)
    return answer


def _names(ignored: list[str]) -> str:
    """Names from a client, fit for a header and a log."""
    sane = [name for name in ignored if name.isascii() and name.isidentifier() and len(name) <= 64]
    return ",".join(sane[:MAX_NAMES]) or "?"
