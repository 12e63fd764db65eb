"""The command's own client: event streams read, errors told."""

import json

import httpx
import pytest

from shared.cli import sse
from shared.cli.client import ChatError, Client
from shared.cli.try_out import ask, curl
from shared.sections import WorkerSettings


def chunk(text):
    return f"data: {json.dumps({'choices': [{'delta': {'content': text}}]}, ensure_ascii=False)}\n\n".encode()


def client(handler):
    """A client whose server is a function."""
    made = Client("http://127.0.0.1:1")
    made._http = httpx.Client(base_url=made.url, transport=httpx.MockTransport(handler))
    return made


def streaming(*chunks, status=200):
    return client(lambda _: httpx.Response(status, content=iter(chunks)))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_read_wherever_the_network_cuts_them(size):
    raw = b": keep-alive\n\nevent: x\ndata: a\ndata: b\n\ndata:c\r\n\r\ndata: \xc3\xa9\n\ndata: cut"
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]

    assert list(sse.data(pieces)) == ["a\nb", "c", "\u00e9"]


def test_only_a_line_feed_ends_a_line():
    """U+2028, U+0085 and a vertical tab are part of an answer."""
    odd = "one\u2028two\u0085three\u000bfour"

    assert list(streaming(chunk(odd), b"data: [DONE]\n\n").chat("hi")) == [odd]


def test_pieces_come_in_order_and_chunks_without_text_are_passed_over():
    usage = b'data: {"choices": [], "usage": {}}\n\n'

    assert list(streaming(chunk("a"), usage, chunk("b"), b"data: [DONE]\n\n").chat("hi")) == ["a", "b"]


def test_what_is_none_is_not_sent():
    sent = []

    def handler(request):
        sent.append(json.loads(request.content))
        return httpx.Response(200, content=iter([b"data: [DONE]\n\n"]))

    list(client(handler).chat("hi", model="m", max_tokens=None, service_tier="flex"))

    assert sent == [
        {"model": "m", "service_tier": "flex", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    ]


def test_a_refusal_is_the_servers_message():
    refusal = json.dumps({"error": {"message": "The lane is full."}}).encode()

    with pytest.raises(ChatError, match=r"^The lane is full\.$"):
        list(streaming(refusal, status=429).chat("hi"))


def test_an_error_within_the_stream_is_told():
    broken = b'data: {"error": {"message": "The deadline passed."}}\n\n'

    with pytest.raises(ChatError, match=r"^The deadline passed\.$"):
        list(streaming(chunk("a"), broken).chat("hi"))


def test_an_answer_that_breaks_off_is_an_error():
    with pytest.raises(ChatError, match="broke off"):
        list(streaming(chunk("a")).chat("hi"))


def test_a_page_that_is_not_ours_is_shown_in_short():
    with pytest.raises(ChatError, match="HTTP 502 <html>"):
        list(streaming(b"<html>", status=502).chat("hi"))


def test_nobody_there_is_an_error_with_the_address():
    def refuse(request):
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(ChatError, match=r"http://127\.0\.0\.1:1: refused"):
        client(refuse).first_model()


def test_waiting_for_ready_ends():
    loading = client(lambda _: httpx.Response(503, json={"error": {"message": "no worker"}}))

    with pytest.raises(ChatError, match="not ready after 0 s: no worker"):
        loading.await_ready(0.2)


def test_a_key_is_sent():
    assert Client("http://127.0.0.1:1", "secret")._http.headers["authorization"] == "Bearer secret"


def test_the_check_shows_the_answer_on_one_line(capsys):
    ask(streaming(chunk("Hello\n"), chunk("there"), b"data: [DONE]\n\n"), "m")

    first, second = capsys.readouterr().out.splitlines()
    assert first == "check: Hello there"
    assert second.startswith("check: first token after ")


def test_an_empty_answer_fails_the_check():
    with pytest.raises(ChatError, match="empty"):
        ask(streaming(b"data: [DONE]\n\n"), "m")


def test_the_curl_line_never_shows_a_key():
    assert "$API_KEY" in curl("http://h", WorkerSettings(model="it's"), has_key=True)
    assert "authorization" not in curl("http://h", WorkerSettings(), has_key=False)


def test_the_curl_line_asks_for_what_the_engine_makes():
    assert "/v1/embeddings " in curl("http://h", WorkerSettings(engine="embedding"), has_key=False)
    assert "/v1/chat/completions " in curl("http://h", WorkerSettings(engine="upstream"), has_key=False)
