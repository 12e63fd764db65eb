"""The first question to a new fleet, and the command with which its owner asks the second."""

import json
import time

from shared.cli.client import ChatError, Client
from shared.cli.say import say
from shared.sections import WorkerSettings

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


def curl(url: str, worker: WorkerSettings, *, has_key: bool) -> str:
    """A command that asks the same in a shell; where it is no question of answers, for an embedding."""
    if worker.generates:
        path, body = "chat/completions", {"stream": True, "messages": [{"role": "user", "content": QUESTION}]}
    else:
        path, body = "embeddings", {"input": QUESTION}
    key = ' -H "authorization: Bearer $API_KEY"' if has_key else ""
    told = json.dumps({"model": worker.model_name, **body})
    quoted = told.replace("'", "'\\''")  # ends the quotes, adds one, opens them again
    return f"curl -N {url}/v1/{path} -H 'content-type: application/json'{key} -d '{quoted}'"
