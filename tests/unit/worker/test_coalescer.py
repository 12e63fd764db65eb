"""What is told at once, what is kept back and for how long, and that nothing is lost on the way."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.broker import CANCELLED
from shared.lease import Assignment, Emission, Ending
from shared.wire import Piece, Prompt, TokenLogprob
from worker.coalescer import MOST_S, MOST_TOKENS, Coalescer
from worker.table import Report


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def assignment(request_id="a", attempt=1):
    return Assignment("interactive", "1-1", request_id, attempt, None, 60_000, 0, 0, 0, ())


def emission(held, at, *ids):
    logprobs = tuple(TokenLogprob(str(token).encode()) for token in ids)
    return Emission(held, at, Piece(ids=ids, text="".join(f"<{token}>" for token in ids), logprobs=logprobs))


def step(*emissions, **more):
    return Report(emissions=list(emissions), **more)


def told(coalescer, *emissions, **more):
    """Request, place and tokens of each piece that is told after this turn."""
    shaped = coalescer.shape(step(*emissions, **more))
    return [(one.held.id, one.at, one.piece.ids) for one in shaped.emissions]


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def coalescer(clock):
    """One that has heard of a and b that nobody watches them."""
    made = Coalescer(clock)
    made.learn([A, B], [A, B])
    return made


A, B = assignment("a"), assignment("b")


def test_what_is_watched_or_not_known_yet_is_told_at_once():
    coalescer = Coalescer(Clock())
    assert told(coalescer, emission(A, 0, 5)) == [("a", 0, (5,))]

    coalescer.learn([A, B], [B])

    assert told(coalescer, emission(A, 1, 6), emission(B, 0, 1)) == [("a", 1, (6,))]


def test_what_nobody_watches_is_told_in_portions_of_so_many_tokens(coalescer):
    for at in range(MOST_TOKENS - 1):
        assert told(coalescer, emission(A, at, at)) == []

    full = told(coalescer, emission(A, MOST_TOKENS - 1, 99))
    after = told(coalescer, emission(A, MOST_TOKENS, 7))

    assert full == [("a", 0, (*range(MOST_TOKENS - 1), 99))]
    assert after == [], "the next portion begins where it ended"
    coalescer.wake("a")
    assert told(coalescer) == [("a", MOST_TOKENS, (7,))]


def test_a_portion_is_kept_back_no_longer_than_so_long(coalescer, clock):
    assert told(coalescer, emission(A, 0, 5)) == []
    clock.now += MOST_S * 0.75
    assert told(coalescer, emission(A, 1, 6), emission(B, 0, 1)) == []

    clock.now += MOST_S * 0.25

    assert told(coalescer) == [("a", 0, (5, 6))], "and that of b is younger"
    clock.now += MOST_S * 0.75
    assert told(coalescer) == [("b", 0, (1,))]


def test_a_portion_joins_text_and_log_probabilities_and_keeps_the_prompt(coalescer):
    first, second = emission(A, 0, 5), emission(A, 1, 6, 7)
    prompt = Prompt(text="hi")
    first = replace(first, piece=Piece(ids=(5,), text="<5>", logprobs=first.piece.logprobs, prompt=prompt))
    coalescer.shape(step(first))
    coalescer.shape(step(second))
    coalescer.wake("a")

    [portion] = coalescer.shape(step()).emissions

    assert portion == Emission(
        A, 0, Piece(ids=(5, 6, 7), text="<5><6><7>", logprobs=emission(A, 0, 5, 6, 7).piece.logprobs, prompt=prompt)
    )


@pytest.mark.parametrize("how", ["ended", "parked"])
def test_what_was_kept_back_is_told_before_an_end_or_a_hand_over(coalescer, how):
    coalescer.shape(step(emission(A, 0, 5), emission(B, 0, 1)))
    leaves = {"ended": {"endings": [Ending(A, 2, CANCELLED)]}, "parked": {"parked": [A]}}[how]

    shaped = coalescer.shape(step(emission(A, 1, 6), **leaves))

    assert [(one.at, one.piece.ids) for one in shaped.emissions] == [(0, (5, 6))]
    assert (shaped.endings, shaped.parked) == (leaves.get("endings", []), leaves.get("parked", []))


def test_what_was_kept_back_of_a_lost_request_is_dropped(coalescer):
    coalescer.shape(step(emission(A, 0, 5)))

    assert told(coalescer, dropped=[A]) == []
    assert told(coalescer, emission(A, 0, 5)) == [("a", 0, (5,))], "of a new attempt nothing is known yet"


@pytest.mark.parametrize("watched", [False, True])
def test_a_newer_attempt_of_ours_is_told_although_the_older_is_dropped_in_the_same_turn(coalescer, watched):
    """A worker that was silent may claim what it held itself: the engine lets go of the one and begins the other."""
    coalescer.shape(step(emission(A, 0, 5)))
    newer = assignment("a", attempt=2)
    if watched:
        coalescer.wake("a")

    shaped = [
        *coalescer.shape(step(emission(newer, 0, 5), dropped=[A])).emissions,
        *coalescer.shape(step(emission(newer, 1, 6))).emissions,
    ]

    assert [(one.held.attempt, one.at, one.piece.ids) for one in shaped] == [(2, 0, (5,)), (2, 1, (6,))]


def test_a_gateway_that_begins_to_watch_has_what_was_kept_back_told_next(coalescer):
    coalescer.shape(step(emission(A, 0, 5), emission(B, 0, 1)))

    coalescer.wake("a")

    assert told(coalescer, emission(A, 1, 6), emission(B, 1, 2)) == [("a", 0, (5, 6))]
    assert told(coalescer, emission(A, 2, 7), emission(B, 2, 3)) == [("a", 2, (7,))]


def test_a_reply_says_anew_who_is_watched(coalescer):
    coalescer.learn([A], [])

    assert told(coalescer, emission(A, 0, 5), emission(B, 0, 1)) == [("a", 0, (5,))]


MOVES = ["end", "park", "lose", "claim", "wake", "quiet"]
TURNS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.sampled_from("ab"), st.integers(1, 40)),
        st.tuples(st.sampled_from(MOVES), st.sampled_from("ab"), st.just(0)),
        st.tuples(st.just("wait"), st.just(""), st.integers(1, 15)),
    ),
    min_size=20,  # without it most are too short to meet anything
    max_size=80,
)


class Requests:
    """Two requests that produce numbered tokens, and what a log would hold of them."""

    def __init__(self):
        self.clock = Clock()
        self.coalescer = Coalescer(self.clock)
        self.held = {name: assignment(name) for name in "ab"}
        self.said = dict.fromkeys("ab", 0)
        self.logged = dict.fromkeys("ab", 0)

    def renew(self, name):
        """A new attempt goes on where the log ends."""
        self.held[name] = assignment(name, self.held[name].attempt + 1)
        self.said[name] = self.logged[name]

    def speak(self, name, count):
        ids = range(self.said[name], self.said[name] + count)
        self.said[name] += count
        return emission(self.held[name], ids[0], *ids)

    def turn(self, what, name, count):
        report = Report()
        if what == "say":
            report.emissions = [self.speak(name, count)]
        elif what == "end":
            report.emissions, report.endings = [self.speak(name, 1)], [Ending(self.held[name], 0, CANCELLED)]
        elif what == "park":
            report.parked = [self.held[name]]
        elif what in {"lose", "claim"}:
            report.dropped = [self.held[name]]
        elif what == "wait":
            self.clock.now += count / 10
        elif what == "wake":
            self.coalescer.wake(name)
        else:
            self.coalescer.learn([self.held[name]], [self.held[name]])
        if what == "claim":  # by ourselves: the new attempt speaks in the turn in which the old one is let go
            self.renew(name)
            report.emissions = [self.speak(name, 1)]
        self.log(self.coalescer.shape(report).emissions)
        if what in {"end", "park"}:
            assert self.logged[name] == self.said[name], "all of it is told before it leaves"
        if what in {"end", "park", "lose"}:
            self.renew(name)

    def log(self, emissions):
        for one in emissions:
            name, ids = one.held.id, one.piece.ids
            assert one.held.attempt == self.held[name].attempt, "nothing of an attempt that is over"
            assert one.at == self.logged[name], "no hole and no overlap"
            assert list(ids) == list(range(one.at, one.at + len(ids)))
            assert one.piece.text == "".join(f"<{token}>" for token in ids)
            self.logged[name] += len(ids)

    def check(self):
        for name in "ab":
            assert 0 <= self.said[name] - self.logged[name] < MOST_TOKENS, "kept back: less than a portion"


@given(TURNS)
def test_whatever_happens_the_portions_in_order_are_what_was_said(turns):
    requests = Requests()
    for turn in turns:
        requests.turn(*turn)
        requests.check()

    requests.clock.now += MOST_S
    requests.turn("wait", "", 0)

    assert requests.logged == requests.said
