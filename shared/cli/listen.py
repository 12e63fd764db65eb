"""Listening sockets: several on one port. Their owner keeps them, so that a gateway that is restarted finds its own."""

import os
import socket

from shared.errors import ConfigError

BACKLOG = 2048


def bind(host: str, port: int, count: int) -> list[socket.socket]:
    """`count` bound sockets on one port; port 0 takes a free one. ConfigError if it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        if port:
            _refuse_taken(family, address)
        sockets = []
        for _ in range(count):
            one = socket.socket(family, kind, protocol)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind(address)
            address = (address[0], one.getsockname()[1], *address[2:])
            sockets.append(one)
    except (OSError, UnicodeError) as error:
        number = getattr(error, "errno", None) or 0
        why = os.strerror(number) if number > 0 else str(error)  # below 0: the resolver's own numbers
        raise ConfigError(
            f"cannot listen on {host} port {port}: {why} (--host, --port or BUSWAY_GATEWAY__HOST, __PORT name another)"
        ) from error
    return sockets


def _refuse_taken(family: int, address: tuple[object, ...]) -> None:
    """SO_REUSEPORT would let a second fleet of the same user share the port in silence."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def port_of(sockets: list[socket.socket]) -> int:
    return int(sockets[0].getsockname()[1])


def url_of(host: str, port: int) -> str:
    """A URL that a client on this machine can use."""
    name = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104 - compared, not bound
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"
