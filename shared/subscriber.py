"""A subscription that outlives its connection, and says when it may have missed something."""

import asyncio
from collections.abc import Callable, Sequence

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

RETRY_S = 0.2
POLL_S = 1.0

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
        self.ready = asyncio.Event()
        """Set once all channels have been confirmed for the first time."""

    async def run(self) -> None:
        """Until cancelled. Callbacks must not block, and an exception in one ends the run: it is a bug."""
        async with self._redis.pubsub() as pubsub:
            connected = True
            while True:
                try:
                    if not pubsub.subscribed:
                        await pubsub.subscribe(*self._channels)
                    message = await pubsub.get_message(timeout=POLL_S)
                    if not connected:
                        connected = True
                        log.info("subscriber.connected")
                except (RedisError, OSError) as error:
                    if connected:
                        connected = False
                        log.warning("subscriber.disconnected", error=str(error))
                    await asyncio.sleep(RETRY_S)
                    continue
                if message is not None:
                    self._take(message["type"], message["channel"].decode(), message["data"])

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
