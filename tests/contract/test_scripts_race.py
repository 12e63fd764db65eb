"""The bound of a lane is exact, however many gateways push at once."""

import asyncio
import sys

from tests.support.race import AT_THE_LINE, GO
from tests.support.waiting import wait_until

CONTENDERS, TRIES, BOUND = 8, 40, 100


async def test_eight_processes_fill_a_lane_to_its_bound_and_not_one_over(real_desk, valkey):
    redis = real_desk.redis
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.support.race", valkey.url, f"p{number}", str(TRIES), str(BOUND)),
            stdout=asyncio.subprocess.PIPE,
        )
        for number in range(CONTENDERS)
    ]

    async def all_ready():
        return int(await redis.get(AT_THE_LINE) or 0) == CONTENDERS

    await wait_until(all_ready, "all contenders to stand at the line")
    await redis.rpush(GO, *range(CONTENDERS))
    accepted = [int((await process.communicate())[0]) for process in processes]
    await redis.delete(AT_THE_LINE, GO)

    assert sum(accepted) == BOUND
    assert await redis.xlen(real_desk.keys.stream("interactive")) == BOUND
    assert await real_desk.waiting_tokens() == 10 * BOUND
