"""The first question to a new fleet, and the command with which its owner asks the second."""

import json
import time

from shared.cli.client import ChatError, Client
from shared.cli.say import say

QUESTION = "What is the capital of France?"
MAX_TOKENS = 24


def ask(client: Client, model: str) -> None:
    """Ask one question, print its answer as it comes, and how long the first token took. ChatError if there is none."""
    say("check: ", end="")
    began = time.monotonic()
    first_s = None
    for piece in client.chat(QUESTION, model=model, max_tokens=MAX_TOKENS, temperature=0):
        if first_s is None:
            first_s = time.monotonic() - began
        say(piece.replace("\n", " "), end="")
    if first_s is None:
        raise ChatError("the answer is empty")
    say(f"\ncheck: first token after {first_s:.2f} s")


def curl(url: str, model: str, *, has_key: bool) -> str:
    """A command that asks the same in a shell."""
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": QUESTION}]}
    key = ' -H "authorization: Bearer $API_KEY"' if has_key else ""
    quoted = json.dumps(body).replace("'", "'\\''")  # ends the quotes, adds one, opens them again
    return f"curl -N {url}/v1/chat/completions -H 'content-type: application/json'{key} -d '{quoted}'"
