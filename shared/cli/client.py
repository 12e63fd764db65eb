"""A small client of the gateway: what serves, where a request is, and one streamed chat."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx

from shared.cli.sse import data
from shared.settings import Settings

# A stream carries a comment every few seconds, so a longer silence means that nobody is there.
SILENCE_S = 120
POLL_S = 0.05
LOOPBACK = re.compile(r"https?://(127\.|localhost\b|\[::1\]|0\.0\.0\.0)")


class ChatError(Exception):
    """The gateway refused, or the answer broke off; the text is the server's message."""


class Client:
    """Calls to one gateway."""

    def __init__(self, url: str, key: str = "") -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        try:
            self._http = httpx.Client(
                base_url=self.url,
                headers={"authorization": f"Bearer {key}"} if key else {},
                timeout=httpx.Timeout(SILENCE_S, connect=10),
                trust_env=LOOPBACK.match(url) is None,  # a proxy does not know this machine's loopback
            )
        except (httpx.InvalidURL, ValueError) as error:  # a key that is not ASCII is a ValueError
            raise ChatError(f"{url} with this key: {error}") from error

    def await_ready(self, within_s: float) -> None:
        """Return once a worker serves a model; ChatError if that takes longer than `within_s`."""
        until = time.monotonic() + within_s
        said = "no answer"
        while time.monotonic() < until:
            try:
                reply = self._http.get("/ready", timeout=1)
            except httpx.TransportError as error:
                said = str(error) or type(error).__name__
            else:
                if reply.status_code == httpx.codes.OK:
                    return
                said = _message(reply)
            time.sleep(POLL_S)
        raise ChatError(f"{self.url}/ready is not ready after {within_s:.0f} s: {said}")

    def first_model(self) -> str:
        """The first model that the gateway lists; ChatError if there is none."""
        models = self._get("/v1/models")["data"]
        if not models:
            raise ChatError(f"{self.url} serves no model")
        return str(models[0]["id"])

    def request(self, request_id: str) -> dict[str, Any]:
        """Where a request is; ChatError if the gateway does not know it."""
        return self._get(f"/v1/requests/{quote(request_id, safe='')}")

    def chat(self, prompt: str, **fields: Any) -> Iterator[str]:
        """The pieces of one answer as they come. `fields` go into the body; None is left out."""
        body: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        body |= {"messages": [{"role": "user", "content": prompt}], "stream": True}
        try:
            content = json.dumps(body, allow_nan=False).encode()
        except ValueError as error:  # nan or infinity: no JSON
            raise ChatError(f"this cannot be sent: {error}") from error
        headers = {"content-type": "application/json"}
        try:
            with self._http.stream("POST", "/v1/chat/completions", content=content, headers=headers) as reply:
                if reply.status_code != httpx.codes.OK:
                    reply.read()
                    raise ChatError(_message(reply))
                yield from _pieces(reply)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _get(self, path: str) -> dict[str, Any]:
        try:
            reply = self._http.get(path)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        if reply.status_code != httpx.codes.OK:
            raise ChatError(_message(reply))
        return reply.json()

    def _unreachable(self, error: httpx.TransportError) -> ChatError:
        hint = " (is `busway up` running there? --url names another)" if isinstance(error, httpx.ConnectError) else ""
        return ChatError(f"{self.url}: {error or type(error).__name__}{hint}")


def _pieces(reply: httpx.Response) -> Iterator[str]:
    for event in data(reply.iter_raw()):
        if event == "[DONE]":
            return
        chunk = json.loads(event)
        if "error" in chunk:
            raise ChatError(chunk["error"]["message"])
        for choice in chunk["choices"]:
            if piece := choice["delta"].get("content"):
                yield piece
    raise ChatError("the answer broke off")


def _message(reply: httpx.Response) -> str:
    """What the server says is wrong: an error's message if there is one, else the start of the body."""
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {reply.status_code} {reply.text[:200]}".strip()


def first_key(settings: Settings) -> str:
    """A key that this environment's gateway takes; empty if it takes everyone."""
    return settings.gateway.api_keys.get_secret_value().split(",")[0].strip()
