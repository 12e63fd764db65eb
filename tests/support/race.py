"""One contender of a race, as a process: `python -m tests.support.race URL NAME TRIES BOUND`.

It waits at the line until the start is given, then queues as fast as it can and prints how many were accepted.
"""

import asyncio
import sys

from shared.connection import connect
from shared.errors import LaneFull
from shared.lanes import Lane
from shared.sections import RedisSettings
from tests.support.desk import Desk

AT_THE_LINE, GO = "race:ready", "race:go"


async def contend(url: str, name: str, tries: int, bound: int) -> int:
    client = connect(RedisSettings(url=url, timeout_s=30))
    desk = Desk(client)
    await client.incr(AT_THE_LINE)
    await client.blpop(GO, timeout=25)
    accepted = 0
    for number in range(tries):
        try:
            await desk.enqueue(f"{name}-{number}", bounds=Lane(max_queued=bound))
            accepted += 1
        except LaneFull:
            pass
    await client.aclose()
    return accepted


if __name__ == "__main__":
    print(asyncio.run(contend(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
