"""Connections to Redis: how they are made, and which of their failures mean that Redis is not there."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import ClusterDownError, OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from shared.errors import BrokerUnavailable
from shared.sections import RedisSettings

# Protocol 2: fakeredis flattens nested replies of scripts in protocol 3, and 2 costs less to parse.
PROTOCOL = 2


def connect(settings: RedisSettings, *, connections: int = 16) -> Redis:
    """A client for commands. It repeats what got no reply, which is safe because every script may be repeated.

    When all connections are busy a caller waits for one, up to the timeout.
    """
    pool = BlockingConnectionPool.from_url(
        settings.url,
        protocol=PROTOCOL,
        max_connections=connections,
        timeout=settings.timeout_s,
        socket_timeout=settings.timeout_s,
        socket_connect_timeout=settings.timeout_s,
        retry=Retry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), retries=3),
    )
    return Redis.from_pool(_with_closing_told(pool))


def connect_subscriber(settings: RedisSettings) -> Redis:
    """A client for one subscription, whose owner looks after it: it does the retrying and notices a dead connection."""
    pool = ConnectionPool.from_url(
        settings.url,
        protocol=PROTOCOL,
        max_connections=2,
        socket_connect_timeout=settings.timeout_s,
        health_check_interval=0,
        retry=Retry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), retries=0),
    )
    return Redis.from_pool(_with_closing_told(pool))


def _with_closing_told(pool: ConnectionPool) -> ConnectionPool:
    """The pool; its connections say in redis-py's words that they have closed.

    uvloop raises RuntimeError where one that has just been closed is written to, which redis-py passes on like a bug.
    """
    kind: Any = pool.connection_class

    class Told(kind):
        async def send_packed_command(
            self: AbstractConnection, command: bytes | str | Iterable[bytes], check_health: bool = True
        ) -> None:
            try:
                await kind.send_packed_command(self, command, check_health)
            except RuntimeError as error:
                raise RedisConnectionError(f"closed: {error}") from error

    pool.connection_class = Told
    return pool


@asynccontextmanager
async def reachable() -> AsyncIterator[None]:
    """Turns Redis's ways of not being there, or of not taking writes, into `BrokerUnavailable`."""
    try:
        yield
    except (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OutOfMemoryError, ClusterDownError) as error:
        raise BrokerUnavailable(f"Redis: {error}") from error
    except ResponseError as error:
        if str(error).startswith(("MISCONF", "OOM", "READONLY", "NOREPLICAS")):
            raise BrokerUnavailable(f"Redis: {error}") from error
        raise
