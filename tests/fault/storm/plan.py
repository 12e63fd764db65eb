"""The plan: what is asked and what is broken when, all of it from one seed. Only what the clock makes of it is not."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

FAULTS = (
    "kill_worker", "terminate_worker", "drain_worker", "stop_worker", "kill_gateway", "terminate_gateway",
    "kill_valkey", "kill_pubsub", "delay", "cut", "deafen", "lose_replies", "future_wire",
    "step_clock",
)  # fmt: skip
FIRST_S = 1.0
"""Clients have something to lose by then."""
GAP_S = (0.4, 1.6)
LEASE_S = 2.0
DISCONNECT_GRACE_S = 2.0
ORPHAN_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    at_s: float
    kind: str
    pick: int
    """Which of those that it can happen to."""
    span_s: float
    """How long it lasts, if it lasts."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, and what its client will do."""

    number: int
    words: int
    is_bulk: bool
    is_stream: bool
    key: str
    """Its Idempotency-Key; empty: none."""
    has_twin: bool
    """Another client asks the same with the same key at the same time, the other way."""
    is_detached: bool
    tells_usage: bool
    leaves_at: tuple[int, ...]
    """Tokens at which its client drops the connection."""
    away_s: float
    """How long it then stays away."""
    cancels_at: int | None
    """Tokens at which its client cancels it."""
    pause_s: float
    """Before its client comes."""

    @property
    def prompt(self) -> str:
        """No word comes twice, in this or any other request."""
        return " ".join(f"{self.number}.{word}" for word in range(self.words))


def faults(seed: int, seconds: float) -> list[Fault]:
    """Each kind once in a row of all kinds, each row in an order of its own."""
    return list(_faults(random.Random(f"faults of {seed}"), seconds))


def _faults(chance: random.Random, seconds: float) -> Iterator[Fault]:
    at_s, deck = FIRST_S, []
    while at_s < seconds:
        deck = deck or chance.sample(FAULTS, len(FAULTS))
        kind = deck.pop()
        yield Fault(round(at_s, 2), kind, chance.randrange(1000), round(chance.uniform(*_span(kind)), 2))
        at_s += chance.uniform(*GAP_S)


def _span(kind: str) -> tuple[float, float]:
    if kind == "stop_worker":
        return LEASE_S + 0.5, 2 * LEASE_S
    if kind == "kill_valkey":
        return (0.0, LEASE_S + 1)
    return 0.3, 2.0


def ask(seed: int, number: int) -> Ask:
    """The request of this number."""
    chance = random.Random(f"ask {number} of {seed}")
    words = chance.randint(5, 100)
    is_stream = chance.random() < 0.7
    cancels = is_stream and chance.random() < 0.12
    leaves = is_stream and not cancels and chance.random() < 0.35
    is_detached = leaves and chance.random() < 0.4
    is_keyed = chance.random() < 0.4
    return Ask(
        number=number,
        words=words,
        is_bulk=chance.random() < 0.35,
        is_stream=is_stream,
        key=f"storm-{seed}-{number}" if is_keyed else "",
        has_twin=is_keyed and not cancels and chance.random() < 0.3,
        is_detached=is_detached,
        tells_usage=chance.random() < 0.3,
        leaves_at=tuple(sorted(chance.sample(range(words), chance.randint(1, 2)))) if leaves else (),
        away_s=chance.uniform(0, (3 if is_detached else 0.4) * DISCONNECT_GRACE_S),
        cancels_at=chance.randrange(words) if cancels else None,
        pause_s=chance.uniform(0, 0.3),
    )
