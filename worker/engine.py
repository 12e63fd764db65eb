"""The Engine contract: requests in, events out, many at a time. Knows no tensor.

Implementations stand in `engines/`; `tests/contract/test_engines.py` is one suite over all of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.lanes import INTERACTIVE
from shared.wire import GenerateRequest, Outcome, Prompt, TokenLogprob


@dataclass(frozen=True, slots=True)
class Work:
    """One request as an engine sees it."""

    id: str
    request: GenerateRequest
    prior_ids: tuple[int, ...] = ()
    """Tokens that earlier attempts produced. The engine goes on after them and reports none of them again."""
    lane: str = INTERACTIVE


@dataclass(frozen=True, slots=True)
class Progressed:
    """A step added tokens. `text` is what they released: incomplete characters and possible stops are held back."""

    id: str
    ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt: Prompt | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """The request is over and holds no slot. Its last text came in a `Progressed` before this."""

    id: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Returned:
    """This engine cannot go on with the request, another may. It holds no slot; the lane gets it back."""

    id: str


Event = Progressed | Ended | Returned


class Engine(Protocol):
    """Turns work into events. Not thread-safe: one thread calls all of it.

    The text of all `Progressed.text` of a request, joined over all attempts, is its answer. Every
    added request gets exactly one `Ended` or `Returned`, unless it was cancelled.
    """

    model: str
    """The name under which requests ask for it."""
    slots: int
    """Requests that can run at once."""
    max_model_len: int
    """Prompt and output tokens of one request, together, at most."""

    @property
    def free_slots(self) -> int:
        """Slots that `add` may still take."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether it makes sense to give it more work now; read from any thread."""
        ...

    @property
    def spent(self) -> Mapping[str, int]:
        """Tokens processed so far for each lane, those of prompts included. Only grows; read between steps."""
        ...

    def add(self, work: Work) -> None:
        """Take a slot for `work`. What is wrong with it is reported by `step` as `Ended` (failed), never raised.

        `AssertionError` if there is no free slot or the id is held already: the caller's bug.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """Give the request's slot back at once, without an event. Unknown ids are ignored."""
        ...

    def step(self) -> Sequence[Event]:
        """Run one step for the whole batch: at most one decode a request, and a bounded piece of prefill.

        Returns what happened, in an order in which `Ended` follows the request's last `Progressed`.
        With nothing to do it returns at once. An exception means that the engine itself is broken.
        """
        ...

    def close(self) -> None:
        """Release the device. The engine is not used afterwards."""
        ...
