"""A store for one test: empty at its start, and afterwards without a key that would stay for ever."""

from contextlib import asynccontextmanager

from redis.asyncio import Redis

# Lane streams, their groups and counters stay for the life of a fleet; the dead-letter stream is capped.
LASTING = (b":q:", b":lane:", b":dlq")


async def immortal_keys(client: Redis) -> list[bytes]:
    return [
        key
        async for key in client.scan_iter()
        if await client.ttl(key) == -1 and not any(part in key for part in LASTING)
    ]


@asynccontextmanager
async def emptied(client: Redis):
    """The client with nothing in its store; fails if the test leaves a key that has no TTL and is not bounded."""
    await client.flushall()
    yield client
    immortal = await immortal_keys(client)
    await client.flushall()
    await client.aclose()
    assert immortal == [], f"keys without a TTL: {immortal}"
