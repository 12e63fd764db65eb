"""A connection to the broker that has just been closed, under the event loop that gateways run on."""

import asyncio

import pytest
import uvloop
from redis.exceptions import ConnectionError as RedisConnectionError

from shared.connection import connect, connect_subscriber
from shared.sections import RedisSettings


@pytest.mark.parametrize("make", [connect, connect_subscriber])
def test_writing_to_it_says_that_the_broker_is_away(valkey, make):
    """uvloop's own word for it is RuntimeError, which would be told as a bug of ours."""

    async def write_to_a_closed_one() -> None:
        async with make(RedisSettings(url=valkey.url)) as redis:
            connection = await redis.connection_pool.get_connection()
            connection._writer.transport.abort()
            await asyncio.sleep(0)  # the handle closes with the loop's next turn
            with pytest.raises(RedisConnectionError, match="closed"):
                await connection.send_command("PING", check_health=False)

    uvloop.run(write_to_a_closed_one())
