"""Connections to Redis: how they are made, and which of their failures mean that Redis is not there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import BlockingConnectionPool, Redis
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
    return Redis.from_pool(pool)


def connect_subscriber(settings: RedisSettings) -> Redis:
    """A client for one subscription, whose owner looks after it: it does the retrying and notices a dead connection."""
    return Redis.from_url(
        settings.url,
        protocol=PROTOCOL,
        max_connections=2,
        socket_connect_timeout=settings.timeout_s,
        health_check_interval=0,
        retry=Retry(ExponentialWithJitterBackoff(base=0.05, cap=0.5), retries=0),
    )


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
