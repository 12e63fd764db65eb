"""The door: what every request must pass, whatever it asks for - draining, too many at once, no key."""

import hashlib
import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.context import trace_of
from gateway.openai.errors import Problem
from shared.errors import BuswayError, ConfigError, Draining, RequestError, Unavailable

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Answered to everyone, always: probes carry no keys. All other paths need one, if there are keys."""


class GatewayFull(Unavailable):
    """This process holds as many requests as it may."""

    code = "gateway_full"


class Lifecycle:
    """Whether this process is on its way out."""

    def __init__(self) -> None:
        self.is_draining = False


class Door:
    """Pure ASGI. Nothing of a refused request has been read but its headers."""

    def __init__(self, app: ASGIApp, *, keys: tuple[str, ...], max_open: int, lifecycle: Lifecycle) -> None:
        self._app = app
        self._keys = tuple(_digest(key.encode()) for key in keys)
        self._max_open = max_open
        self._lifecycle = lifecycle
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
        except BuswayError as error:
            trace_of(scope).outcome = error.code
            await Problem.of(error).response()(scope, receive, send)
            return
        self._open += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open -= 1

    def _check(self, scope: Scope) -> None:
        if self._lifecycle.is_draining:
            raise Draining("This gateway is shutting down; send the request again.")
        if self._open >= self._max_open:
            raise GatewayFull(f"This gateway holds {self._open} requests, its most.")
        if self._keys:
            trace_of(scope).tenant = self._tenant(dict(scope["headers"]).get(b"authorization", b""))

    def _tenant(self, authorization: bytes) -> str:
        """A name for the key's owner, from which the key cannot be told; RequestError if the key is not known."""
        scheme, _, key = authorization.partition(b" ")
        given = _digest(key.strip())
        # All keys are compared, so that time tells nothing about which one was nearly right.
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        if scheme.lower() != b"bearer" or not any(matches):
            raise RequestError("Incorrect API key provided.", code="invalid_api_key")
        return given.hex()[:16]


def parse_keys(text: str) -> tuple[str, ...]:
    """The keys of a comma-separated list; ConfigError if something is set but holds no key."""
    keys = tuple(key for part in text.split(",") if (key := part.strip()))
    if text and not keys:
        raise ConfigError("BUSWAY_GATEWAY__API_KEYS is set but holds no key; unset it to let everyone in")
    return keys


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
