"""A subscription that outlives its connection, and says when it may have missed something."""

import asyncio
from collections.abc import Callable, Sequence

import structlog
from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

RETRY_S = 0.2
POLL_S = 1.0
QUIET_S = 3.0
"""A connection this quiet is asked for a sign of life, and left if it gives none in as long again."""

log = structlog.get_logger()


class Subscriber:
    """Hands every message on some channels to a callback, for the life of a process.

    Pub/sub delivers at most once: what is published while the connection is down is gone. redis-py
    reconnects by itself and silently; the one sign is another confirmation of the subscription. That
    is reported through `on_resubscribed`, so that the owner can look up what it may have missed.
    """

    def __init__(
        self,
        redis: Redis,
        channels: Sequence[str],
        *,
        on_message: Callable[[str, bytes], None],
        on_resubscribed: Callable[[], None],
    ) -> None:
        self._redis = redis
        self._channels = tuple(channels)
        self._on_message = on_message
        self._on_resubscribed = on_resubscribed
        self._confirmed: dict[str, int] = {}
        self._quiet_since = 0.0
        self._asked = False
        self.ready = asyncio.Event()
        """Set once all channels have been confirmed for the first time."""

    async def run(self) -> None:
        """Until cancelled. Callbacks must not block, and an exception in one ends the run: it is a bug."""
        async with self._redis.pubsub() as pubsub:
            connected = True
            self._quiet_since = asyncio.get_running_loop().time()
            while True:
                try:
                    if not pubsub.subscribed:
                        await pubsub.subscribe(*self._channels)
                    message = await pubsub.get_message(timeout=POLL_S)
                    await self._doubt(pubsub, heard=message is not None)
                    if not connected:
                        connected = True
                        log.info("subscriber.connected")
                except (RedisError, OSError) as error:
                    if connected:
                        connected = False
                        log.warning("subscriber.disconnected", error=str(error))
                    await asyncio.sleep(RETRY_S)
                    continue
                if message is not None and message["channel"] is not None:
                    self._take(message["type"], message["channel"].decode(), message["data"])

    async def _doubt(self, pubsub: PubSub, *, heard: bool) -> None:
        """A connection can die without a word, and one that only listens would never know. RedisError if it has."""
        now = asyncio.get_running_loop().time()
        quiet_s = now - self._quiet_since
        if heard:
            self._quiet_since, self._asked = now, False
        elif quiet_s > QUIET_S and not self._asked:
            self._asked = True
            await pubsub.ping()
        elif quiet_s > 2 * QUIET_S:
            self._quiet_since, self._asked = now, False
            if pubsub.connection is not None:
                await pubsub.connection.disconnect(nowait=True)
            raise RedisConnectionError("no sign of life")

    def _take(self, kind: str, channel: str, body: bytes) -> None:
        if kind == "message":
            self._on_message(channel, body)
        elif kind == "subscribe":
            times = self._confirmed[channel] = self._confirmed.get(channel, 0) + 1
            if len(self._confirmed) == len(self._channels):
                self.ready.set()
            # A reconnect confirms all channels again; the last of them reports it, once.
            if times > 1 and channel == self._channels[-1]:
                self._on_resubscribed()
