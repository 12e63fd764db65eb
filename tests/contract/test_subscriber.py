"""The subscription outlives its connection, and says when it may have missed something."""

import asyncio
from contextlib import asynccontextmanager, suppress

import pytest

from shared import subscriber
from shared.cli.valkey import Valkey
from shared.connection import connect, connect_subscriber
from shared.sections import RedisSettings
from shared.subscriber import Subscriber
from tests.support.proxy import proxied
from tests.support.waiting import wait_until

CHANNELS = ["one", "two"]


class Listener:
    """A running subscriber, and what it told."""

    def __init__(self, url: str):
        self.messages: list[tuple[str, bytes]] = []
        self.resubscribed = 0
        self.client = connect_subscriber(RedisSettings(url=url, timeout_s=1))
        self.subscriber = Subscriber(
            self.client,
            CHANNELS,
            on_message=lambda channel, body: self.messages.append((channel, body)),
            on_resubscribed=self._count,
        )

    def _count(self) -> None:
        self.resubscribed += 1

    async def ready(self) -> None:
        await asyncio.wait_for(self.subscriber.ready.wait(), 20)


@asynccontextmanager
async def listening(url: str):
    listener = Listener(url)
    task = asyncio.create_task(listener.subscriber.run())
    yield listener
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await listener.client.aclose()


async def heard(listener: Listener, redis, word: bytes) -> None:
    await redis.publish("two", word)
    await wait_until(lambda: ("two", word) in listener.messages, f"the message {word!r}")


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Polls and doubts sooner; the rules are the same."""
    monkeypatch.setattr(subscriber, "POLL_S", 0.05)
    monkeypatch.setattr(subscriber, "RETRY_S", 0.02)


async def test_messages_arrive_in_order_and_say_their_channel(valkey, redis):
    async with listening(valkey.url) as listener:
        await listener.ready()
        for number in range(3):
            await redis.publish(CHANNELS[number % 2], b"%d" % number)
        await wait_until(lambda: len(listener.messages) == 3, "three messages")

    assert listener.messages == [("one", b"0"), ("two", b"1"), ("one", b"2")]
    assert listener.resubscribed == 0, "the first subscription has missed nothing"


async def test_a_killed_connection_is_made_again_and_reported_once(valkey, redis):
    async with listening(valkey.url) as listener:
        await listener.ready()
        await redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        await wait_until(lambda: listener.resubscribed, "the report of a new subscription")
        await heard(listener, redis, b"again")

        assert listener.resubscribed == 1


async def test_a_connection_that_died_without_a_word_is_left(valkey, redis, monkeypatch):
    """A router that forgot the connection: no error, no bytes, for a quarter of an hour."""
    monkeypatch.setattr(subscriber, "QUIET_S", 0.2)
    async with proxied(valkey.socket) as proxy, listening(proxy.url) as listener:
        await listener.ready()
        proxy.deafen()
        await wait_until(lambda: listener.resubscribed, "the report of a new subscription")

        await heard(listener, redis, b"again")


async def test_a_quiet_connection_that_answers_is_kept(valkey, redis, monkeypatch):
    monkeypatch.setattr(subscriber, "QUIET_S", 0.01)
    async with listening(valkey.url) as listener:
        await listener.ready()

        async def asked():
            # PING is counted by the server; only a subscriber that doubts sends it.
            return (await redis.info("commandstats")).get("cmdstat_ping", {"calls": 0})["calls"] >= 3

        await redis.config_resetstat()
        await wait_until(asked, "three signs of life to be asked for")

        assert listener.resubscribed == 0


async def test_a_server_that_restarts_is_found_again(tmp_path):
    server = Valkey(tmp_path)
    server.start()
    redis = connect(RedisSettings(url=server.url))
    try:
        async with listening(server.url) as listener:
            await listener.ready()
            server.kill()
            server.start()
            await wait_until(lambda: listener.resubscribed, "the report of a new subscription")

            await heard(listener, redis, b"again")
    finally:
        await redis.aclose()
        server.stop()


async def test_a_server_that_comes_up_late_is_found(tmp_path):
    """No order of starting is asked of the operator, and a late server is no 'again'."""
    server = Valkey(tmp_path)
    redis = connect(RedisSettings(url=server.url))
    try:
        async with listening(server.url) as listener:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(listener.subscriber.ready.wait(), 0.1)
            server.start()
            await listener.ready()

            await heard(listener, redis, b"first")
            assert listener.resubscribed == 0
    finally:
        await redis.aclose()
        server.stop()


async def test_an_exception_in_a_callback_ends_the_run(valkey, redis):
    """It is a bug, and a subscriber that swallowed it would be deaf and look well."""
    client = connect_subscriber(RedisSettings(url=valkey.url))
    deaf = Subscriber(client, ["one"], on_message=lambda *_: 1 / 0, on_resubscribed=lambda: None)
    task = asyncio.create_task(deaf.run())
    await deaf.ready.wait()

    await redis.publish("one", b"x")

    with pytest.raises(ZeroDivisionError):
        await task
    await client.aclose()
