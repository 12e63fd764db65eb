"""Identifiers: unguessable where a client sees them, never used twice."""

import os
import secrets
import socket


def request_id() -> str:
    """128 random bits, as 22 url-safe characters."""
    return secrets.token_urlsafe(16)


def boot_id() -> str:
    """A name for this process that no other process, here or elsewhere, has had or will have."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
