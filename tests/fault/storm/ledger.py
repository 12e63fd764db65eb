"""The ledger: what clients sent and saw, written down by themselves, and what it amounts to."""

import time
from collections import Counter
from dataclasses import dataclass, field

from tests.fault.storm.plan import DISCONNECT_GRACE_S, ORPHAN_GRACE_S, Ask

MAX_DEATHS = 3


@dataclass
class Entry:
    """One client's request."""

    ask: Ask
    id: str = ""
    """Known once it is accepted."""
    text: str = ""
    tokens: int = 0
    reason: str = ""
    """How the answer ended, in its own words."""
    is_over: bool = False
    error: str = ""
    """The code with which it ended instead."""
    fault: str = ""
    """What is wrong with what was seen: `lost`, `duplicated`, `differing` or `unexplained`."""
    evidence: str = ""
    refusals: Counter[str] = field(default_factory=Counter)
    """Codes of answers after which its client tried again."""
    returns: int = 0
    """Times that its client came back."""
    deaths_before: int = 0
    deaths_after: int = 0
    """Faults that may count as the death of a worker, before it came and once it was over."""
    longest_stall_s: float = 0.0
    unexcused_s: float = 0.0
    """How much longer its client once stayed away than it may; the request may be cancelled for that."""
    _heard_at: float | None = None

    @property
    def is_accepted(self) -> bool:
        return bool(self.id)

    def accept(self, request_id: str) -> None:
        if self.id and self.id != request_id and self.ask.key:
            self.blame("differing", f"key {self.ask.key} was {self.id}, and is {request_id}")
        self.id = request_id

    def restart(self) -> None:
        """The answer is told from its beginning."""
        self.text, self.tokens, self.reason = "", 0, ""

    def hear(self, text: str, position: int | None) -> None:
        """More of the answer; `position` is what its event says of the tokens so far."""
        now, said = time.monotonic(), self.text + text
        if self._heard_at is not None:
            self.longest_stall_s = max(self.longest_stall_s, now - self._heard_at)
        self._heard_at = now
        if not self.ask.prompt.startswith(said):
            again = len(said) > len(self.ask.prompt) or set(text.split()) & set(self.text.split())
            self.blame("duplicated" if again else "differing", f"{self.text[-40:]!r} was followed by {text!r}")
        self.text, self.tokens = said, len(said.split())
        if position is not None and position != self.tokens:
            self.blame("differing", f"event {position} came after {self.tokens} tokens")

    def away(self) -> None:
        """Its client does not listen now: this silence is nobody's fault."""
        self._heard_at = None

    def returned(self, absent_s: float, *, on_purpose: bool) -> None:
        self.returns += 1
        allowed_s = DISCONNECT_GRACE_S if on_purpose else ORPHAN_GRACE_S
        self.unexcused_s = max(self.unexcused_s, absent_s - 0.9 * allowed_s)

    def finish(self) -> None:
        """The answer says that it is complete."""
        self.is_over = True
        if self.text != self.ask.prompt:
            self.blame("differing", f"ended with {self.tokens} of {self.ask.words} tokens: {self.text[-40:]!r}")
        elif self.reason != "stop":
            self.blame("differing", f"ended for the reason {self.reason!r}")

    def fail(self, code: str, deaths: int) -> None:
        """It ended with an error."""
        self.is_over, self.error, self.deaths_after = True, code, deaths
        if not self._is_explained():
            self.blame("unexplained", f"ended with {code} after {self.tokens} of {self.ask.words} tokens")

    def blame(self, fault: str, evidence: str) -> None:
        """The first fault stands."""
        if not self.fault:
            self.fault, self.evidence = fault, evidence

    def _is_explained(self) -> bool:
        if self.error == "cancelled":
            return self.ask.cancels_at is not None or (self.unexcused_s > 0 and not self.ask.is_detached)
        return self.error == "worker_lost" and self.deaths_after - self.deaths_before >= MAX_DEATHS

    def told(self) -> str:
        ask = self.ask
        kinds = [name for name in ("is_bulk", "is_stream", "key", "has_twin", "is_detached") if getattr(ask, name)]
        return (
            f"{ask.number} ({self.id or 'not accepted'}, {', '.join(kinds)}, leaves at {ask.leaves_at}, cancels at "
            f"{ask.cancels_at}, came back {self.returns} times, refused {dict(self.refusals)}): {self.evidence}"
        )


class Ledger:
    """All entries."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.deaths = 0
        """Faults so far that may count as the death of a worker."""

    def open(self, ask: Ask) -> Entry:
        entry = Entry(ask, deaths_before=self.deaths)
        self.entries.append(entry)
        return entry

    def close(self) -> None:
        """Nobody waits any longer."""
        for entry in self.entries:
            if not entry.is_over:
                entry.blame("lost", f"no end was seen; {entry.tokens} of {entry.ask.words} tokens were")

    def blamed(self, fault: str) -> list[str]:
        return [entry.told() for entry in self.entries if entry.fault == fault]

    def summary(self) -> dict[str, object]:
        """The figures; a fault that is not named with numbers is in `details`."""
        entries = self.entries
        faults = Counter(entry.fault for entry in entries if entry.fault)
        return {
            "sent": len(entries),
            "accepted": sum(entry.is_accepted for entry in entries),
            "ended": sum(entry.is_over for entry in entries),
            "exact": sum(entry.is_over and not entry.error and not entry.fault for entry in entries),
            **{kind: faults[kind] for kind in ("lost", "duplicated", "differing", "unexplained")},
            "stayed_away": sum(entry.error == "cancelled" and entry.ask.cancels_at is None for entry in entries),
            "came_back": sum(entry.returns for entry in entries),
            "longest_stall_s": round(max((entry.longest_stall_s for entry in entries), default=0.0), 2),
            "errors": dict(Counter(entry.error for entry in entries if entry.error)),
            "refusals": dict(sum((entry.refusals for entry in entries), Counter())),
            "details": [f"{entry.fault}: {entry.told()}" for entry in entries if entry.fault],
        }
