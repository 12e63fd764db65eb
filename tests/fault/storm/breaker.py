"""The breaker: does to the fleet what the plan says."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from redis.asyncio import Redis
from redis.exceptions import RedisError

from shared import keys, wire
from shared.broker import Broker, Submission
from shared.errors import Unavailable
from shared.lanes import Lane
from tests.fault.storm.clients import MODEL
from tests.fault.storm.clock import UnsteadyValkey
from tests.fault.storm.ledger import Ledger
from tests.fault.storm.parts import Keeper, Part
from tests.fault.storm.plan import ORPHAN_GRACE_S, Fault
from tests.support.proxy import Proxy

HARMLESS = frozenset({"kill_gateway", "terminate_gateway", "kill_pubsub", "future_wire"})
"""All others may count as the death of a worker for some request: what a lost reply brought is nobody's, for one."""
NEWER = wire.VERSION + 1
TRY_AGAIN_S = 0.2


class Breaker:
    """One method for each kind of fault."""

    def __init__(self, keeper: Keeper, valkey: UnsteadyValkey, proxy: Proxy, redis: Redis, ledger: Ledger) -> None:
        self._keeper = keeper
        self._valkey = valkey
        self._proxy = proxy
        self._redis = redis
        self._ledger = ledger
        self._delays = 0
        self.done: Counter[str] = Counter()
        self.newer_ids: list[str] = []
        """Requests of a version that nobody here reads."""

    async def run(self, faults: Sequence[Fault]) -> None:
        """All of them at their time, the long ones beside each other; returns when the last is over."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as tasks:
            for fault in faults:
                await asyncio.sleep(began + fault.at_s - loop.time())
                self.done[fault.kind] += 1
                self._ledger.deaths += fault.kind not in HARMLESS
                tasks.create_task(getattr(self, f"_{fault.kind}")(fault))

    def _worker(self, fault: Fault) -> Part:
        return self._keeper.workers[fault.pick % len(self._keeper.workers)]

    def _gateway(self, fault: Fault) -> Part:
        return self._keeper.gateways[fault.pick % len(self._keeper.gateways)]

    async def _kill_worker(self, fault: Fault) -> None:
        self._worker(fault).kill()

    async def _terminate_worker(self, fault: Fault) -> None:
        self._worker(fault).terminate()

    async def _drain_worker(self, fault: Fault) -> None:
        """Asked by a message. It may be lost, so it is sent until it is heard: an operator would."""
        part = self._worker(fault)
        process, suffix = part.process, f":{part.pid}:"
        part.asked()
        while process.status is None:
            with suppress(RedisError):
                ids = [raw.decode() for raw in await self._redis.zrange(keys.Keys(MODEL).workers, 0, -1)]
                for worker_id in ids:
                    if suffix in worker_id:
                        drain = wire.encode(wire.Control(kind="drain"))
                        await self._redis.publish(keys.control_channel(worker_id), drain)
            await asyncio.sleep(TRY_AGAIN_S)

    async def _stop_worker(self, fault: Fault) -> None:
        part = self._worker(fault)
        process = part.process
        part.stop()
        await asyncio.sleep(fault.span_s)
        if part.process is process:
            part.wake()

    async def _kill_gateway(self, fault: Fault) -> None:
        self._gateway(fault).kill()

    async def _terminate_gateway(self, fault: Fault) -> None:
        self._gateway(fault).terminate()

    async def _kill_valkey(self, fault: Fault) -> None:
        if self._valkey.exit_status() is not None:
            return  # it is down already
        self._valkey.kill()
        await asyncio.sleep(fault.span_s)
        self._valkey.start()

    async def _kill_pubsub(self, _fault: Fault) -> None:
        with suppress(RedisError):  # the server is away, and with it all connections
            await self._redis.client_kill_filter(_type="pubsub")

    async def _delay(self, fault: Fault) -> None:
        """Every answer of the server is late."""
        self._delays += 1
        self._proxy.delay_s = 0.02 + fault.pick % 10 / 40
        await asyncio.sleep(fault.span_s)
        self._delays -= 1
        if not self._delays:
            self._proxy.delay_s = 0.0

    async def _cut(self, _fault: Fault) -> None:
        self._proxy.cut()

    async def _deafen(self, _fault: Fault) -> None:
        self._proxy.deafen()

    async def _lose_replies(self, _fault: Fault) -> None:
        self._proxy.lose_replies()

    async def _step_clock(self, fault: Fault) -> None:
        """The server's clock jumps further than anybody may be silent, and is put right again."""
        seconds = (ORPHAN_GRACE_S + 1 + fault.span_s) * (1 if fault.pick % 2 else -1)
        self._valkey.clock.step(seconds)
        await asyncio.sleep(fault.span_s)
        self._valkey.clock.step(-seconds)

    async def _future_wire(self, fault: Fault) -> None:
        """A process of a newer version comes: with a request, and with words for everybody."""
        request_id = f"newer-{len(self.newer_ids)}"
        self.newer_ids.append(request_id)
        request = wire.GenerateRequest(sampling=wire.Sampling(seed=1), prompt="from the future", v=NEWER)
        lane = ("interactive", "bulk")[fault.pick % 2]
        submission = Submission(id=request_id, model=MODEL, lane=lane, request=request, cost_tokens=8)
        broker = Broker(self._redis, keep_ms=3_600_000)
        while True:
            try:
                await broker.enqueue(submission, Lane())
                for channel in await self._redis.pubsub_channels("bw:*"):
                    if not channel.endswith(b"bell"):
                        await self._redis.publish(channel, b'{"v":%d,"frames":[],"kind":"dance"}' % NEWER)
            except (Unavailable, RedisError):
                await asyncio.sleep(TRY_AGAIN_S)
            else:
                return
