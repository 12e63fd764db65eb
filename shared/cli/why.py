"""`busway why`: what a request waits for, who runs it, or how it ended."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from shared.cli.ask import fail
from shared.cli.words import duration

ANSWER_PREFIXES = ("chatcmpl-", "cmpl-")
"""Before the request's id in the `id` of an answer."""


def why(
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="Its x-request-id, or the id of its answer.")],
    url: Annotated[
        str | None, typer.Option(help="The gateway. Default: this machine, the port in the settings.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="What the gateway said, as JSON.")] = False,
) -> None:
    """Say where a request is, and why. Exit status 1 if nothing is known of it (any more)."""
    from shared.cli.client import ChatError, Client, first_key
    from shared.settings import load

    settings = load()
    for prefix in ANSWER_PREFIXES:
        request = request.removeprefix(prefix)
    try:
        told = Client(url or f"http://127.0.0.1:{settings.gateway.port}", first_key(settings)).request(request)
    except ChatError as error:
        fail(str(error))
    print(json.dumps(told, indent=2) if as_json else "\n".join(explain(told)))


def explain(told: dict[str, Any]) -> list[str]:
    """The lines for what GET /v1/requests/{id} says."""
    if "parts" not in told:
        return [f"{title:<10}{text}" for title, text in _lines(told)]
    lines = [f"request   {told['id']}", f"state     {told['state']}, in {len(told['parts'])} parts"]
    for number, part in enumerate(told["parts"], 1):
        lines += ["", f"part {number}", *(f"  {title:<10}{text}" for title, text in _lines(part))]
    return lines


def _lines(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    state = told["state"]
    yield "request", f"{told['id']}, {duration(told['age_ms'])} old"
    yield "state", f"{_state(told)}, in lane {told['lane']} of {told['model']}"
    if state in {"queued", "parked"}:
        yield "position", f"{told['position']} before it" if told["position"] else "the next of its lane"
        yield "blocked", f"by {told['blocked_by']}" if told["blocked_by"] else "by nothing"
        yield "start", _start(told["estimated_start_ms"]) if told["workers"] else "not before a worker takes its lane"
    if told["deadline_in_ms"] is not None:
        yield "deadline", _deadline(told)
    yield "attempts", _attempts(told)
    if state == "running":
        yield "worker", told["worker"] or "none"
    if told["error"]:
        yield "error", f"{told['error']['code']}: {told['error']['message']}"
    if told["deadline_in_ms"] is not None:
        yield "client", _client(told)


def _state(told: dict[str, Any]) -> str:
    state, tokens = told["state"], told["tokens"]
    words = {
        "queued": "waits for a worker",
        "running": "runs",
        "parked": "paused to let others go first, waits for a worker",
        "done": f"done ({told['finish_reason']})" if told["finish_reason"] else "done",
    }
    cancelling = ", its cancel is on the way to the worker" if told["cancelling"] else ""
    return f"{words.get(state, state)}, {tokens} token{'' if tokens == 1 else 's'}{cancelling}"


def _start(estimated_ms: int | None) -> str:
    if estimated_ms is None:
        return "not known: the pace of its lane was not measured yet"
    return f"in about {duration(estimated_ms)}" if estimated_ms else "with the next slot that comes free for its lane"


def _deadline(told: dict[str, Any]) -> str:
    """Time left, and whether that is enough to be started in."""
    left, start_within = told["deadline_in_ms"], told["queue_timeout_in_ms"]
    text = f"in {duration(left)}" if left > 0 else "passed: it is ended as soon as somebody meets it"
    if start_within is not None:
        text += f", to be started within {duration(max(0, start_within))}"
    if told["estimated_start_ms"] is None or not told["workers"]:
        return text
    slack_ms = min(left, left if start_within is None else start_within) - told["estimated_start_ms"]
    if slack_ms < 0:
        return f"{text}: {duration(-slack_ms)} too early at this pace"
    return f"{text}: {duration(slack_ms)} to spare"


def _attempts(told: dict[str, Any]) -> str:
    text = f"{told['attempts']}"
    if told["queued_ms"] is not None:
        text += f", the first after {duration(told['queued_ms'])}"
    deaths = told["deaths"]
    return f"{text}; {deaths or 'no'} worker{'s' if deaths > 1 else ''} died with it" if text != "0" else "none so far"


def _client(told: dict[str, Any]) -> str:
    if told["detached"]:
        return f"{'reads along' if told['watched'] else 'not here'}; it runs to its end all the same"
    return "waits for it" if told["watched"] else "not here"
