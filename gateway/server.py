"""The server: uvicorn with our way of stopping."""

import math
import socket
from types import FrameType

import uvicorn

from gateway.app import App
from gateway.protocol import BoundedProtocol
from shared.errors import ConfigError
from shared.sections import GatewaySettings

KEEP_ALIVE_S = 75  # longer than a load balancer keeps an idle connection: it must be the one to close it
BACKLOG = 2048
LAST_WORDS_S = 2
"""After the drain: time for error events to leave."""


class Server(uvicorn.Server):
    """The first signal drains, the second forces. An orderly stop is exit status 0."""

    def __init__(self, app: App, settings: GatewaySettings) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="uvloop",
                http=BoundedProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=math.ceil(settings.drain_s) + LAST_WORDS_S,
            )
        )
        self._gateway = app.gateway

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        # Only flags: this may run in the middle of anything. And not the inherited way, which raises the signal
        # once more at the end and so turns an orderly stop into a death by it.
        self._gateway.lifecycle.is_draining = True
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._gateway.drain()
        await super().shutdown(sockets)


def listen(settings: GatewaySettings, fd: int | None) -> socket.socket:
    """The inherited listening socket, or a new one; ConfigError if it cannot be had."""
    host, port = settings.host, settings.port
    try:
        if fd is not None:
            return socket.socket(fileno=fd)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        where = f"descriptor {fd}" if fd is not None else f"{host}:{port}"
        raise ConfigError(f"cannot listen on {where}: {error}") from error
