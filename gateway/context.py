"""The context of one HTTP request: its id, its body's limit, its one line in the log."""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.metrics import Metrics
from gateway.openai.errors import INTERNAL
from shared import ids
from shared.errors import RequestError

QUIET_PATHS = frozenset({"/health", "/ready", "/metrics"})
KEY = "busway.trace"

log = structlog.get_logger()

_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")


class ClientGone(Exception):
    """The client left before it had sent its request."""


@dataclass(slots=True)
class Trace:
    """What is known of one HTTP request; filled in on its way, told once at its end."""

    request_id: str
    started: float
    abort: Callable[[], None] | None = None
    """Cuts the connection, whatever waits in its buffers."""
    tenant: str = ""
    """Whose request it is, by its API key; empty where no keys are asked for."""
    status: int = 0
    endpoint: str = ""
    """Set for requests that ask a model for something."""
    lane: str = ""
    model: str = ""
    outcome: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    """More for the log."""


def trace_of(scope: Scope) -> Trace:
    return scope[KEY]


class Context:
    """Pure ASGI, outermost. Whatever happens inside, the answer has an id and the log has one line."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        trace = scope[KEY] = Trace(ids.request_id(), time.monotonic(), abort=_abort_of(send))
        structlog.contextvars.bind_contextvars(request_id=trace.request_id)
        headers = dict(scope["headers"])
        extra: list[tuple[bytes, bytes]] = []
        client_id = headers.get(b"x-client-request-id", b"")
        if _SANE_ID.fullmatch(client_id):
            extra.append((b"x-client-request-id", client_id))
            trace.fields["client_request_id"] = client_id.decode()

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                trace.status = message["status"]
                told = [(b"x-request-id", trace.request_id.encode()), *extra]
                message = {**message, "headers": [*message.get("headers", ()), *told]}
            await send(message)

        try:
            await self._app(scope, receive, tell)
        except asyncio.CancelledError:
            trace.outcome = trace.outcome or "aborted"
            raise
        except Exception:
            # It has been answered, unless a stream had begun. That one stays unfinished, so the server cuts the
            # connection and no client takes it for a whole answer.
            trace.outcome = INTERNAL
            log.exception("request.failed")
        finally:
            self._tell(trace, scope, headers)

    def _tell(self, trace: Trace, scope: Scope, headers: dict[bytes, bytes]) -> None:
        duration_s = time.monotonic() - trace.started
        if trace.endpoint:
            self._metrics.requests.labels(trace.lane, trace.model, trace.endpoint, trace.outcome or "unknown").inc()
        say = log.debug if scope["path"] in QUIET_PATHS else log.info
        say(
            "request.finished",
            method=scope["method"],
            path=scope["path"][:200],
            status=trace.status,
            **{name: value for name in ("outcome", "lane", "model") if (value := getattr(trace, name))},
            duration_ms=round(duration_s * 1000, 1),
            retry_count=_number(headers.get(b"x-stainless-retry-count", b"0")),
            **trace.fields,
        )


async def read_body(scope: Scope, receive: Receive, limit_bytes: int, *, within_s: float) -> bytes:
    """The whole body; RequestError as soon as it is known to be too large or too slow, ClientGone if it breaks off."""
    try:
        async with asyncio.timeout(within_s):
            return await _read(scope, receive, limit_bytes)
    except TimeoutError as error:
        raise RequestError(f"The body did not arrive within {within_s:g} s.", code="body_timeout") from error


async def _read(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    headers = dict(scope["headers"])
    refusal = RequestError(f"The body is larger than {limit_bytes} bytes.", code="request_too_large")
    if _number(headers.get(b"content-length", b"0")) > limit_bytes:
        raise refusal
    parts, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit_bytes:
            raise refusal
        more = message.get("more_body", False)
    return b"".join(parts)


def _abort_of(send: Send) -> Callable[[], None] | None:
    """ASGI cannot cut a connection, and closing one waits for a client that does not read. uvicorn's transport can."""
    return getattr(getattr(getattr(send, "__self__", None), "transport", None), "abort", None)


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) < 16 else 0
