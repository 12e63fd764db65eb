"""`python -m worker`: settings, logging, engine, service."""

import asyncio
import gc
import os
import signal
import sys

import structlog

from shared import ids, settings
from shared.connection import connect, connect_subscriber
from shared.errors import ConfigError
from shared.keys import Keys
from shared.lease import Lease
from shared.log import configure
from shared.settings import Settings
from worker import engines
from worker.engine import Engine
from worker.service import Service


async def serve(engine: Engine, config: Settings) -> None:
    """Run the service until SIGTERM or SIGINT. A second signal ends the process at once."""
    redis, listener = connect(config.redis), connect_subscriber(config.redis)
    keep_ms = config.redis.replay_ttl_s * 1000
    lease = Lease(
        redis,
        model=engine.model,
        worker_id=ids.boot_id(),
        keep_ms=keep_ms,
        grace_ms=int(config.redis.orphan_grace_s * 1000),
        alone_after=max(1, config.worker.max_deaths - 1),
    )
    service = Service(engine, lease, config.worker, config.served_lanes(), listener)
    asked = 0

    def on_signal() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            os._exit(1)
        service.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    try:
        await service.run()
    finally:
        await redis.aclose()
        await listener.aclose()


def main() -> int:
    """Exit status: 0 stopped when asked, 1 the engine or the service broke, 2 wrong settings."""
    try:
        config = settings.load()
        configure(config.log, process="worker")
        Keys(config.worker.model_name)  # a name that cannot be a key is found before the model is loaded
        engine = engines.create(config)
    except ConfigError as error:
        sys.stderr.write(f"busway worker: {error.message}\n")
        return 2
    gc.freeze()  # what was loaded stays: no collection has to look through it while somebody waits for a token
    try:
        asyncio.run(serve(engine, config))
    except Exception:  # noqa: BLE001 - the process's edge
        structlog.get_logger().exception("worker.broke")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
