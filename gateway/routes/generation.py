"""The way of a request that workers answer, the same for all endpoints."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog
from fastapi import Request
from starlette.responses import Response

from gateway.admission import Admitted, Ask
from gateway.admission import Endpoint as Name
from gateway.answer import Answer, JsonAnswer
from gateway.context import read_body, trace_of
from gateway.openai.dialects import Dialect, Heading
from gateway.openai.schemas import B, Body, EmbeddingsBody, parse
from gateway.state import gateway_of
from gateway.stream import EventStream
from gateway.terms import Terms, fingerprint
from shared import guides, wire
from shared.errors import InvalidRequest
from shared.sections import GatewaySettings

MAX_NAMES = 20
MOST_COPIES = 4
"""Bodies of the largest size that one request may come to when each of its choices is queued."""

G = TypeVar("G", bound=Body)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[G]):
    """What sets one generating endpoint apart."""

    name: Name
    body: type[G]
    translate: Callable[[G, int, wire.Guide | None], tuple[wire.GenerateRequest, ...]]
    dialect: Callable[[Heading, int], Dialect]


async def generate(request: Request, endpoint: Endpoint[G]) -> Response:
    """Parse, admit, follow. A BuswayError on the way is the answer."""
    gateway = gateway_of(request)
    body, ignored, size = await read(request, endpoint.name, endpoint.body)
    terms = named(request, stream=body.stream)
    _refuse_many(body, size, gateway.settings.gateway)
    requests = endpoint.translate(body, _seed(request, terms), await _guide(body))
    admitted = await admit(
        request, body, terms, endpoint=endpoint.name, requests=requests, limit_field=body.limit_field,
        stream=body.stream, choices_per_prompt=body.n, include_usage=body.include_usage,
    )  # fmt: skip
    dialect = endpoint.dialect(heading(admitted, body.model, include_usage=body.include_usage), len(requests))
    meters = gateway.metrics.meters(admitted.lane, body.model)
    parts = (admitted, dialect, gateway.relay, meters)
    if body.stream:
        return telling(EventStream(*parts, gateway.pace, with_ids=terms.with_ids), ignored)
    return telling(JsonAnswer(*parts, gateway.pace.grace_s), ignored)


def heading(admitted: Admitted, model: str, *, include_usage: bool) -> Heading:
    """What stands in every chunk of this answer, the same however often and wherever it is told."""
    meta = admitted.meta
    return Heading(
        admitted.id, meta.created, model, meta.tier, include_usage, choices_per_prompt=meta.choices_per_prompt
    )


async def _guide(body: Body) -> wire.Guide | None:
    """What the answer must match, as workers take it."""
    name = body.guide_field
    return None if name is None else await asyncio.to_thread(guides.prepared, getattr(body, name), name)


def _refuse_many(body: Body, size: int, limits: GatewaySettings) -> None:
    """InvalidRequest if the choices are too many, or what they would take in Redis: each has the prompt for itself."""
    param = "n" if body.n > 1 else "prompt"
    if body.choices > limits.max_choices:
        problem = f"{body.choices} choices are asked for; {limits.max_choices} are allowed."
        raise InvalidRequest(problem, param=param)
    if body.n * size > MOST_COPIES * limits.max_body_bytes and body.n > 1:
        raise InvalidRequest(f"{body.n} choices of a body of {size} bytes are too much at once.", param=param)


async def read(request: Request, endpoint: str, kind: type[B]) -> tuple[B, list[str], int]:
    """The body, the names of its fields that have no effect, and its size in bytes."""
    trace, limits = trace_of(request.scope), gateway_of(request).settings.gateway
    trace.endpoint = endpoint
    raw = await read_body(request.scope, request.receive, limits.max_body_bytes, within_s=limits.body_timeout_s)
    body, ignored = parse(raw, kind)
    if ignored:
        log.warning("request.fields_ignored", fields=_names(ignored))
    return body, ignored, len(raw)


def named(request: Request, *, stream: bool) -> Terms:
    """The request's terms. One that brings a name of its own goes by it from here on, in answers and logs."""
    trace, terms = trace_of(request.scope), Terms.of(request.headers, stream=stream)
    if (request_id := terms.request_id(trace.tenant)) is not None:
        trace.request_id = request_id
        structlog.contextvars.bind_contextvars(request_id=request_id)
    return terms


async def admit(
    request: Request,
    body: Body | EmbeddingsBody,
    terms: Terms,
    *,
    endpoint: Name,
    requests: tuple[wire.GenerateRequest, ...],
    limit_field: str,
    stream: bool = False,
    choices_per_prompt: int = 1,
    include_usage: bool = False,
    base64: bool = False,
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
        endpoint=endpoint,
        terms=terms,
        tenant=trace.tenant,
        fingerprint=fingerprint(endpoint, content(body)) if terms.key else "",
        choices_per_prompt=choices_per_prompt,
        include_usage=include_usage,
        base64=base64,
    )
    admitted = await gateway_of(request).admission.admit(ask)
    trace.lane, trace.model = admitted.lane, body.model
    return admitted


def content(body: Body | EmbeddingsBody) -> dict[str, Any]:
    """All that a body says. What a validator made is written as it is, though it may not look like its declaration."""
    return body.model_dump(mode="python", exclude_defaults=True, warnings=False)


def _seed(request: Request, terms: Terms) -> int:
    """For a body without one. Of a request that may be asked for again the same each time, else by chance."""
    return int(trace_of(request.scope).request_id[:15], 16) if terms.key else secrets.randbits(63)


def telling(answer: Answer, ignored: list[str]) -> Answer:
    """The answer, with the fields that had no effect in a header."""
    if ignored:
        answer.headers["x-busway-ignored"] = _names(ignored)
    return answer


def _names(ignored: list[str]) -> str:
    """Names from a client, fit for a header and a log."""
    sane = [name for name in ignored if name.isascii() and name.isidentifier() and len(name) <= 64]
    return ",".join(sane[:MAX_NAMES]) or "?"
