"""What comes before a body: bounded, and no offer to speak another protocol costs a request."""

import asyncio
import json

import pytest

pytestmark = pytest.mark.integration

BODY = json.dumps({"model": "echo", "messages": [{"role": "user", "content": "hello there"}]}).encode()
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: " + str(len(BODY)).encode() + b"\r\n"
)


async def exchange(port, *parts):
    """Send the parts one by one; all that comes back until the server closes, or for as long as it says nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.05)
        while chunk := await asyncio.wait_for(reader.read(65536), 5):
            answer += chunk
            if answer.count(b'"usage"') == sum(part.count(b"POST") for part in parts):
                break
    except ConnectionError:
        pass  # it closed while we were still sending
    finally:
        writer.close()
    return answer


async def test_an_offered_upgrade_is_ignored_and_the_request_answered(fleet):
    """Clients that could speak HTTP/2 offer it with their first request."""
    await fleet.worker()
    gateway = await fleet.gateway()
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n"

    whole = await exchange(gateway.port, HEAD + offer + BODY)
    split = await exchange(gateway.port, HEAD + offer, BODY)

    second = await exchange(gateway.port, HEAD + b"\r\n" + BODY.replace(b"hello", b"first"), HEAD + offer + BODY)

    for answer in (whole, split, second):
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"hello there" in answer


async def test_a_body_that_speaks_of_upgrades_arrives_unharmed(fleet):
    await fleet.worker()
    gateway = await fleet.gateway()
    body = BODY.replace(b"hello there", b"a\\r\\nUpgrade: b")
    head = HEAD.replace(str(len(BODY)).encode(), str(len(body)).encode())

    answer = await exchange(gateway.port, head + b"\r\n" + body)

    assert b'"content":"a\\r\\nUpgrade: b"' in answer


@pytest.mark.parametrize("junk", [b"x-long: " + b"a" * 400_000, b"x: y\r\n" * 60_000], ids=["one", "many"])
async def test_headers_without_end_are_refused(fleet, junk):
    gateway = await fleet.gateway(needs_model=False)

    answer = await exchange(gateway.port, HEAD, *(junk[at : at + 50_000] for at in range(0, len(junk), 50_000)))

    assert answer.startswith(b"HTTP/1.1 431") or answer == b"", "refused, or cut while it was still being sent"
    assert b" 200 " not in answer


async def test_garbage_is_answered_in_openai_s_shape(fleet):
    gateway = await fleet.gateway(needs_model=False)

    answer = await exchange(gateway.port, b"\x16\x03\x01 garbage\r\n\r\n")

    assert answer.startswith(b"HTTP/1.1 400")
    assert json.loads(answer.split(b"\r\n\r\n")[1])["error"]["code"] == "invalid_http"
