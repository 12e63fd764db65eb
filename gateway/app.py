"""The application: routes, errors and middleware around one gateway."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.context import ClientGone, Context, trace_of
from gateway.door import Door, parse_keys
from gateway.openai.errors import INTERNAL, INTERNAL_MESSAGE, Problem
from gateway.routes import chat, completions, embeddings, models, ops, requests
from gateway.state import Gateway
from shared.errors import BuswayError
from shared.settings import Settings
from shared.version import VERSION

CODES = {404: "not_found", 405: "method_not_allowed"}


class App(FastAPI):
    """FastAPI within our own middleware, which stands outside of FastAPI's: only there is the server in sight."""

    gateway: Gateway
    keys: tuple[str, ...]

    def build_middleware_stack(self) -> ASGIApp:
        limit, lifecycle = self.gateway.settings.gateway.max_connections, self.gateway.lifecycle
        inner = super().build_middleware_stack()
        door = Door(inner, keys=self.keys, max_open=limit, lifecycle=lifecycle)
        return Context(door, metrics=self.gateway.metrics)


def create_app(settings: Settings) -> App:
    """The app for these settings; ConfigError if they make no sense together."""
    keys = parse_keys(settings.gateway.api_keys.get_secret_value())
    gateway = Gateway(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        async with gateway.running():
            yield

    app = App(
        title="Busway", version=VERSION, lifespan=lifespan, openapi_url=None, docs_url=None, redirect_slashes=False
    )
    app.gateway, app.keys = gateway, keys
    for part in (chat, completions, embeddings, requests, models, ops):
        app.include_router(part.router)
    handlers = {BuswayError: _refused, HTTPException: _unroutable, ClientGone: _gone, Exception: _failed}
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)  # type: ignore[arg-type]
    return app


async def _refused(request: Request, error: BuswayError) -> Response:
    problem, trace = Problem.of(error), trace_of(request.scope)
    trace.outcome = problem.code
    if problem.message != error.message:
        trace.fields["detail"] = error.message  # on the request's one line: there are no more of these than requests
    return problem.response()


async def _unroutable(request: Request, error: HTTPException) -> Response:
    """No such path, or not by this method."""
    method, path = request.method, request.url.path[:200]
    code = CODES.get(error.status_code, "invalid_request")
    response = Problem(code, f"{error.detail}: {method} {path}").response()
    response.headers.update(error.headers or {})
    trace_of(request.scope).outcome = code
    return response


async def _gone(request: Request, _error: ClientGone) -> Response:
    """Nobody will read this."""
    trace_of(request.scope).outcome = "cancelled"
    return Problem("cancelled", "The client left.").response()


async def _failed(_request: Request, _error: Exception) -> Response:
    """The error goes on to the context, which logs it."""
    return Problem(INTERNAL, INTERNAL_MESSAGE).response()
