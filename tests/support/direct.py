"""A client of the queue itself, without a gateway: enqueues requests and collects their frames."""

import asyncio
import secrets

from shared import ids
from shared.broker import Broker, Submission
from shared.connection import connect, connect_subscriber
from shared.keys import gateway_channel
from shared.lanes import DEFAULTS, Lane
from shared.sections import RedisSettings
from shared.subscriber import Subscriber
from shared.wire import Frame, Frames, GenerateRequest, Sampling, decode
from tests.support.waiting import wait_until


class Direct:
    """Use as an async context manager."""

    def __init__(self, redis_url: str, model: str = "echo") -> None:
        settings = RedisSettings(url=redis_url)
        self.redis = connect(settings)
        self._listener = connect_subscriber(settings)
        self.broker = Broker(self.redis, keep_ms=60_000)
        self.model = model
        self.channel = gateway_channel(ids.boot_id())
        self.frames: dict[str, list[Frame]] = {}
        self._subscriber = Subscriber(
            self._listener, [self.channel], on_message=self._take, on_resubscribed=lambda: None
        )

    async def __aenter__(self):
        self._task = asyncio.create_task(self._subscriber.run())
        await self._subscriber.ready.wait()
        return self

    async def __aexit__(self, *_):
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.redis.aclose()
        await self._listener.aclose()

    async def ask(self, prompt: str, *, lane: str = "interactive", deadline_ms: int | None = None, **sampling) -> str:
        """Enqueue; returns the request's id."""
        request = GenerateRequest(sampling=Sampling(**{"seed": 1, "temperature": 0, **sampling}), prompt=prompt)
        return await self.send(request, lane=lane, deadline_ms=deadline_ms, cost_tokens=len(prompt) // 4 + 16)

    async def send(
        self,
        request: GenerateRequest,
        *,
        lane: str = "interactive",
        deadline_ms: int | None = None,
        cost_tokens: int = 16,
    ) -> str:
        """Enqueue any request; returns its id."""
        request_id = secrets.token_hex(8)
        self.frames[request_id] = []
        submission = Submission(
            id=request_id,
            model=self.model,
            lane=lane,
            request=request,
            cost_tokens=cost_tokens,
            channel=self.channel,
            deadline_ms=deadline_ms,
        )
        await self.broker.enqueue(submission, Lane(**DEFAULTS.get(lane, {})))
        return request_id

    async def ended(self, request_id: str, *, timeout_s: float = 30) -> Frame:
        """The end frame, once it is there."""
        await wait_until(lambda: self.end(request_id), f"the end of {request_id}", timeout_s=timeout_s)
        return self.end(request_id)

    def end(self, request_id: str) -> Frame | None:
        return next((frame for frame in self.frames[request_id] if frame.end), None)

    def text(self, request_id: str) -> str:
        """The text as a reader of frames joins it; AssertionError at a gap."""
        held, parts = 0, []
        for frame in self.frames[request_id]:
            assert frame.at <= held, f"gap: frame at {frame.at}, but {held} tokens held"
            if frame.at == held and frame.ids:
                held += len(frame.ids)
                parts.append(frame.text)
        return "".join(parts)

    def _take(self, _channel: str, body: bytes) -> None:
        for frame in decode(body, Frames).frames:
            self.frames[frame.id].append(frame)
