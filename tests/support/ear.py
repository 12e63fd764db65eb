"""An ear on a channel: everything that was published since it last listened, without waiting for time."""

from redis.asyncio import Redis

from shared import wire

MARK = b"-- that is all --"


class Ear:
    """A subscription that reads up to a mark of its own, so that silence is a fact too."""

    def __init__(self, redis: Redis, channel: str):
        self._redis = redis
        self._channel = channel
        self._pubsub = redis.pubsub(ignore_subscribe_messages=True)

    async def __aenter__(self):
        await self._pubsub.subscribe(self._channel)
        await self.heard()
        return self

    async def __aexit__(self, *_):
        await self._pubsub.aclose()

    async def heard(self) -> list[bytes]:
        """The messages since the last call, in order."""
        await self._redis.publish(self._channel, MARK)
        messages = []
        while True:
            message = await self._pubsub.get_message(timeout=5)
            if message is None:
                continue
            if message["data"] == MARK:
                return messages
            messages.append(message["data"])

    async def publications(self) -> list[tuple[wire.Frame, ...]]:
        """Without those that hold nothing and only ask whether anybody listens."""
        told = [wire.decode(raw, wire.Frames).frames for raw in await self.heard()]
        return [frames for frames in told if frames]

    async def frames(self) -> list[wire.Frame]:
        return [frame for frames in await self.publications() for frame in frames]

    async def ends(self) -> dict[str, str]:
        """Request id to state, of every end frame; fails if one request ended twice."""
        ends: dict[str, str] = {}
        for frame in await self.frames():
            if frame.end is not None:
                assert frame.id not in ends, f"{frame.id} ended twice"
                ends[frame.id] = frame.end.state
        return ends
