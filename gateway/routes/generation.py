"""The way of a generating request, the same for chats and completions."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

import structlog
from fastapi import Request
from starlette.responses import Response

from gateway.admission import Ask
from gateway.context import read_body, trace_of
from gateway.openai.dialects import Dialect, Heading
from gateway.openai.schemas import B, parse
from gateway.state import gateway_of
from gateway.stream import EventStream, JsonAnswer
from shared import wire

MAX_NAMES = 20

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[B]):
    """What sets one endpoint apart."""

    name: str
    body: type[B]
    translate: Callable[[B, int], wire.GenerateRequest]
    dialect: Callable[[Heading], Dialect]


async def generate(request: Request, endpoint: Endpoint[B]) -> Response:
    """Parse, admit, follow. A BuswayError on the way is the answer."""
    gateway, trace = gateway_of(request), trace_of(request.scope)
    trace.endpoint = endpoint.name
    limits = gateway.settings.gateway
    raw = await read_body(request.scope, request.receive, limits.max_body_bytes, within_s=limits.body_timeout_s)
    body, ignored = parse(raw, endpoint.body)
    ask = Ask(
        id=trace.request_id,
        model=body.model,
        request=endpoint.translate(body, secrets.randbits(63)),
        limit_field=body.limit_field,
        service_tier=body.service_tier,
        stream=body.stream,
        headers=request.headers,
    )
    admitted = await gateway.admission.admit(ask)
    trace.lane, trace.model = admitted.follower.lane, body.model
    heading = Heading(trace.request_id, int(time.time()), body.model, admitted.tier, body.include_usage)
    meters = gateway.metrics.meters(trace.lane, trace.model)
    parts = (admitted, endpoint.dialect(heading), gateway.relay, meters)
    answer = EventStream(*parts, gateway.pace) if body.stream else JsonAnswer(*parts)
    if ignored:
        answer.headers["x-busway-ignored"] = _names(ignored)
        log.warning("request.fields_ignored", fields=_names(ignored))
    return answer


def _names(ignored: list[str]) -> str:
    """Names from a client, fit for a header and a log."""
    sane = [name for name in ignored if name.isascii() and name.isidentifier() and len(name) <= 64]
    return ",".join(sane[:MAX_NAMES]) or "?"
