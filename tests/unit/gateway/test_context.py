"""Reading a body: not too much of it, and not for too long."""

import asyncio

import pytest

from gateway.context import ClientGone, read_body
from shared.errors import RequestError

NEVER_S = 60


def scope(length: int | None = None) -> dict:
    return {"headers": [] if length is None else [(b"content-length", str(length).encode())]}


def sender(*chunks: bytes, pause_s: float = 0, ends: bool = True):
    left = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    if ends:
        left[-1]["more_body"] = False

    async def receive():
        await asyncio.sleep(pause_s)
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    return receive


async def test_the_parts_of_a_body_are_joined():
    assert await read_body(scope(), sender(b"a", b"bc"), 3, within_s=NEVER_S) == b"abc"


@pytest.mark.parametrize("length", [None, 4])
async def test_a_body_beyond_the_limit_is_refused(length):
    with pytest.raises(RequestError) as caught:
        await read_body(scope(length), sender(b"ab", b"cd"), 3, within_s=NEVER_S)

    assert caught.value.code == "request_too_large"


async def test_a_body_that_breaks_off_has_no_reader():
    async def receive():
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        await read_body(scope(), receive, 3, within_s=NEVER_S)


@pytest.mark.parametrize(
    "receive", [sender(b"a", ends=False), sender(*[b"a"] * 1000, pause_s=0.01)], ids=["stuck", "a trickle"]
)
async def test_a_body_that_takes_too_long_is_refused(receive):
    with pytest.raises(RequestError, match=r"within 0\.05 s") as caught:
        await read_body(scope(), receive, 10_000, within_s=0.05)

    assert caught.value.code == "body_timeout"
