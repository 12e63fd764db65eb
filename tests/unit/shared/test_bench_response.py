"""HTTP responses and streams of chunks, read wherever the network cuts them."""

import json

import pytest

from shared.cli.bench.response import MAX_HEAD, ProtocolError, Response
from shared.cli.bench.sample import MAX_EVENT, Answer, Sample

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nabc\r\nA;ext=1\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
)
SIZED = b"HTTP/1.1 429 Too Many\r\ncontent-length: 5\r\n\r\nhello"
EMPTY = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + SIZED
UNTIL_CLOSE = b"HTTP/1.0 200 OK\r\n\r\nall the rest"


def read(raw, size):
    """The response, and its body joined."""
    response = Response()
    body = b"".join(response.feed(raw[at : at + size]) for at in range(0, len(raw), size))
    return response, body


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("raw", "status", "body"),
    [(CHUNKED, 200, b"abc0123456789"), (SIZED, 429, b"hello"), (EMPTY, 204, b""), (EARLY, 429, b"hello")],
    ids=["chunked", "sized", "empty", "early"],
)
def test_a_response_is_read_wherever_it_is_cut(raw, status, body, size):
    response, found = read(raw, size)

    assert (response.status, found) == (status, body)
    assert response.is_done
    assert response.can_follow


def test_a_body_without_a_length_ends_with_the_connection():
    response, body = read(UNTIL_CLOSE, 4)
    assert not response.is_done

    response.close()

    assert body == b"all the rest"
    assert response.is_done
    assert not response.can_follow


def test_a_server_that_will_close_gets_no_other_request():
    response, _ = read(b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 1\r\n\r\nx", 100)

    assert response.is_done
    assert not response.can_follow


@pytest.mark.parametrize("raw", [b"", CHUNKED[:20], CHUNKED[:-1], CHUNKED[:60], SIZED[:-1]])
def test_a_response_that_was_cut_is_no_response(raw):
    response, _ = read(raw, 1000)

    with pytest.raises(ProtocolError):
        response.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"x" * (MAX_HEAD + 1),
        SIZED + b"x",
    ],
)
def test_what_is_no_http_is_refused(raw):
    with pytest.raises(ProtocolError):
        read(raw, 100_000)


def chunk(text=None, **fields):
    choices = [] if text is None else [{"index": 0, "delta": {"content": text}}]
    return b"data: " + json.dumps({"choices": choices, **fields}).encode() + b"\n\n"


def answer(*blocks, status=200):
    """The sample of an answer whose blocks came one second apart."""
    sample, response = Sample("bulk", 0.0), Response()
    response.status = status
    reader = Answer(sample, origin=100.0)
    for second, block in enumerate(blocks, start=1):
        reader.take(response, block, 100.0 + second)
    reader.close(status, 200.0)
    return sample


def test_events_with_text_are_timed_and_others_are_not():
    usage = chunk(usage={"prompt_tokens": 4, "completion_tokens": 3})

    got = answer(chunk(""), b": ping\n\n", chunk("a"), chunk("b") + chunk("c"), usage, b"data: [DONE]\n\n")

    assert list(got.events) == [3.0, 4.0, 4.0]
    assert got.ended == 6.0
    assert (got.prompt_tokens, got.output_tokens, got.tokens) == (4, 3, 3)
    assert got.is_whole


def test_an_event_in_two_blocks_counts_when_it_is_whole():
    raw = chunk("a")

    assert list(answer(raw[:10], raw[10:-1], raw[-1:], b"data: [DONE]\n\n").events) == [3.0]


def test_completions_and_reasoning_have_text_too():
    text = b'data: {"choices": [{"index": 0, "text": "a"}]}\n\n'
    thought = b'data: {"choices": [{"index": 0, "delta": {"content": null, "reasoning_content": "hm"}}]}\n\n'

    assert list(answer(text, thought, b"data: [DONE]\n\n").events) == [1.0, 2.0]


def test_without_usage_events_are_tokens():
    got = answer(chunk("a"), chunk("b", usage=None), b"data: [DONE]\n\n")

    assert (got.output_tokens, got.tokens) == (None, 2)


def test_a_refusal_is_its_status_and_message():
    got = answer(b'{"error": {"mess', b'age": "The lane is full."}}', status=429)

    assert (got.error, got.detail) == ("http_429", "The lane is full.")


def test_an_error_within_the_stream_is_an_error():
    got = answer(chunk("a"), b'data: {"error": {"message": "lost"}}\n\n', b"data: [DONE]\n\n")

    assert (got.error, got.detail) == ("error_event", "lost")
    assert not got.is_whole


def test_a_stream_without_its_end_is_an_error():
    assert answer(chunk("a")).error == "broken"


@pytest.mark.parametrize("block", [b"data: <html>\n\n", b"data: 5\n\n", b"data: " + b"x" * (MAX_EVENT + 1)])
def test_what_is_no_chunk_is_refused(block):
    with pytest.raises(ProtocolError):
        answer(block)
