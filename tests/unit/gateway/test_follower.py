"""A follower's text is exact whatever happens to the frames on their way."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway import follower as module
from gateway.follower import MAX_UNREAD_CHARS, Follower, Reader, Verdict
from shared.broker import Record
from shared.wire import Frame, Outcome, Prompt, TokenLogprob, Usage

DONE = Outcome(state="done", reason="stop", usage=Usage(prompt_tokens=1, completion_tokens=3))


def follower(**options) -> Follower:
    return Follower("r", "m", "interactive", Reader(**options))


def texts(one: Follower) -> list[str]:
    return [frame.text for frame in one.read()]


def frame(at: int, text: str = "", *, count: int = 1, attempt: int = 1) -> Frame:
    return Frame(id="r", attempt=attempt, at=at, ids=tuple(range(at, at + count)), text=text)


def end(at: int, *, attempt: int = 1) -> Frame:
    return Frame(id="r", attempt=attempt, at=at, end=DONE)


def record(state: str = "running", *, attempt: int = 1, tokens: int | None = None, outcome=None) -> Record:
    return Record(state=state, attempt=attempt, deaths=0, tokens=tokens, outcome=outcome)


def test_frames_in_order_are_taken():
    one = follower()

    verdicts = [one.offer(frame(0, "a")), one.offer(frame(1, "bc", count=2)), one.offer(end(3))]

    assert verdicts == [Verdict.TAKEN] * 3
    assert (texts(one), one.tokens, one.outcome) == (["a", "bc"], 3, DONE)
    assert texts(one) == []


def test_a_frame_that_was_seen_is_a_duplicate():
    one = follower()
    one.offer(frame(0, "a"))

    assert one.offer(frame(0, "a")) is Verdict.DUPLICATE
    assert texts(one) == ["a"]


def test_a_piece_without_text_counts_as_tokens_only():
    one = follower()
    one.offer(frame(0))

    assert (one.tokens, texts(one)) == (1, [])


def test_an_older_attempt_is_not_heard_any_more():
    one = follower()
    one.offer(frame(0, "a", attempt=2))

    assert one.offer(frame(1, "zombie", attempt=1)) is Verdict.STALE
    assert one.offer(end(1, attempt=1)) is Verdict.STALE
    assert (texts(one), one.outcome) == (["a"], None)


def test_nothing_is_taken_after_the_end():
    one = follower()
    one.offer(end(0))

    assert one.offer(frame(0, "late")) is Verdict.DUPLICATE
    assert (one.tokens, texts(one)) == (0, [])


def test_a_gap_is_filled_from_the_log_and_what_came_meanwhile_is_kept():
    one = follower()
    verdicts = [one.offer(frame(2, "c")), one.offer(frame(3, "d")), one.offer(end(4))]
    assert (verdicts, one.wanted, texts(one)) == ([Verdict.GAP] * 3, 4, [])

    one.catch_up([frame(0, "a"), frame(1, "b"), frame(2, "c")], record(), wanted=3)

    assert ("".join(texts(one)), one.outcome) == ("abcd", DONE)


def test_the_log_speaks_for_older_attempts_too():
    """What attempt 1 wrote to the log, attempt 2 built upon; only the channel is fenced by attempt."""
    one = follower()
    one.offer(frame(1, "b", attempt=2))

    one.catch_up([frame(0, "a", attempt=1), frame(1, "b", attempt=2)], record(attempt=2), wanted=1)

    assert "".join(texts(one)) == "ab"


def test_a_log_that_lacks_what_was_published_means_that_data_was_lost():
    one = follower()
    one.offer(frame(5, "f"))

    assert not one.catch_up([frame(0, "a")], record(), wanted=5)


def test_a_missing_record_means_that_data_was_lost():
    one = follower()

    assert not one.catch_up([], None, wanted=0)


def test_an_end_that_was_missed_is_found_in_the_record():
    one = follower()
    one.offer(frame(0, "a"))

    one.catch_up([frame(1, "b")], record("done", tokens=2, outcome=DONE), wanted=0)

    assert ("".join(texts(one)), one.outcome) == ("ab", DONE)


def test_an_end_whose_tokens_are_not_in_the_log_means_that_data_was_lost():
    one = follower()

    assert not one.catch_up([frame(0, "a")], record("done", tokens=2, outcome=DONE), wanted=0)
    assert one.outcome is None, "whoever keeps followers ends it, and takes its request back"


def test_a_gap_that_appears_while_the_log_is_read_does_not_count_against_it():
    one = follower()
    wanted, snapshot = one.wanted, [frame(0, "a")]
    one.offer(frame(3, "d"))

    assert one.catch_up(snapshot, record(), wanted=wanted)
    assert (one.outcome, one.tokens, one.wanted) == (None, 1, 3)


def test_held_back_frames_are_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_HELD_BACK", 4)
    one = follower()
    for at in range(1, 30):
        one.offer(frame(at, "x"))

    one.catch_up([frame(at, "x") for at in range(29)], record(), wanted=29)
    one.catch_up([frame(at, "x") for at in range(29, 30)], record(), wanted=29)

    assert "".join(texts(one)) == "x" * 30


def test_a_reader_that_does_not_read_is_reported(monkeypatch):
    monkeypatch.setattr(module, "MAX_UNREAD_CHARS", 10)
    stalls = []
    one = follower()
    one.reader.on_stall = lambda: stalls.append(True)
    for at in range(20):
        one.offer(frame(at, "x"))
    assert stalls == [], "unread text alone is no stall: the reader may just not have had its turn"

    one.reader.writing = True
    one.offer(frame(20, "x"))

    assert stalls == [True]


def test_who_wants_the_whole_answer_is_not_woken_by_its_pieces():
    one = follower(is_patient=True)
    one.offer(frame(0, "a"))
    assert not one.reader._wake.is_set()

    one.offer(end(1))

    assert one.reader._wake.is_set()


class History:
    """A request's true history, and a channel that may lose, repeat and reorder what is published."""

    def __init__(self) -> None:
        self.log: list[Frame] = []
        self.published: list[Frame] = []
        self.attempt, self.tokens, self.text = 1, 0, ""
        self.follower = follower()
        self.reading: tuple[list[Frame], Record, int] | None = None

    def produce(self, count: int) -> None:
        text = "".join(chr(97 + (self.tokens + i) % 26) for i in range(count)) if self.tokens % 3 else ""
        piece = frame(self.tokens, text, count=count, attempt=self.attempt)
        self.log.append(piece)  # write-ahead
        self.published.append(piece)
        self.tokens += count
        self.text += text

    def next_attempt(self) -> None:
        self.attempt += 1

    def deliver(self, number: int) -> None:
        if self.published:
            self.follower.offer(self.published[number % len(self.published)])

    def read_log(self) -> None:
        """A repair's reading; its result arrives later."""
        after = self.follower.tokens
        frames = [one for one in self.log if one.at >= after]
        self.reading = frames, record(attempt=self.attempt), self.follower.wanted

    def use_log(self) -> None:
        if self.reading is not None:
            frames, known, wanted = self.reading
            self.follower.catch_up(frames, known, wanted=wanted)
            self.reading = None

    def finish(self) -> None:
        ending = record("done", attempt=self.attempt, tokens=self.tokens, outcome=DONE)
        frames = [one for one in self.log if one.at >= self.follower.tokens]
        self.follower.catch_up(frames, ending, wanted=self.follower.wanted)


STEPS = st.one_of(
    st.tuples(st.just("produce"), st.integers(1, 4)),
    st.tuples(st.just("deliver"), st.integers(0, 200)),
    st.tuples(st.just("next_attempt")),
    st.tuples(st.just("read_log")),
    st.tuples(st.just("use_log")),
)


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, max_size=80))
def test_the_text_is_exact_for_any_losses_repeats_orders_and_attempts(steps):
    history, heard = History(), ""

    for name, *arguments in steps:
        getattr(history, name)(*arguments)
        heard += "".join(texts(history.follower))
        assert history.text.startswith(heard)
    history.finish()
    heard += "".join(texts(history.follower))

    assert (heard, history.follower.tokens) == (history.text, history.tokens)
    assert history.follower.outcome is DONE


def test_a_piece_without_text_but_with_log_probabilities_is_shown():
    one = follower()
    told = Frame(id="r", attempt=1, at=0, ids=(1,), logprobs=(TokenLogprob(raw=b"\xc3", logprob=-1.0),))
    one.offer(told)

    assert one.read() == [told]


def test_a_gap_is_filled_with_log_probabilities_and_prompt_too():
    one, prompt = follower(), Prompt(text="Once")
    logged = Frame(id="r", attempt=1, at=0, ids=(1,), text=" a", logprobs=(TokenLogprob(raw=b" a"),), prompt=prompt)
    one.offer(frame(1, "b"))

    one.catch_up([logged], record(), wanted=1)

    assert one.read()[0] == logged


def test_log_probabilities_count_for_a_reader_that_does_not_read():
    one, stalls = follower(), []
    one.reader.on_stall = lambda: stalls.append(True)
    one.reader.writing = True
    tops = tuple((b"x", -1.0) for _ in range(20))
    tokens = tuple(TokenLogprob(raw=b"x", logprob=-1.0, top=tops) for _ in range(300))
    one.offer(Frame(id="r", attempt=1, at=0, ids=(1,), prompt=Prompt(text="x", tokens=tokens)))
    assert stalls == [], "a prompt that is told back comes once, in one frame"

    one.offer(Frame(id="r", attempt=1, at=1, ids=(2,), text="x", logprobs=tokens))
    assert stalls == [True]


def test_a_reader_of_several_choices_may_let_more_wait():
    reader, stalls = Reader(), []
    first, second = (Follower(name, "m", "interactive", reader) for name in "ab")
    reader.on_stall = lambda: stalls.append(True)
    reader.writing = True
    first.offer(frame(0, "x" * MAX_UNREAD_CHARS))
    second.offer(frame(0, "x" * MAX_UNREAD_CHARS))
    assert stalls == []

    first.offer(frame(1, "x"))
    assert stalls == [True]


def test_a_reader_is_woken_by_each_of_its_choices():
    reader = Reader()
    first, second = (Follower(name, "m", "interactive", reader) for name in "ab")

    second.offer(frame(0, "x"))

    assert reader._wake.is_set()
    assert (first.read(), texts(second)) == ([], ["x"])
