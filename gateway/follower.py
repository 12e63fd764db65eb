"""A follower: one reader of one request's answer, exact whatever order or number the frames arrive in."""

import asyncio
import enum
import time
from collections.abc import Callable, Sequence

from shared.broker import Record
from shared.wire import TERMINAL, ErrorInfo, Frame, Outcome

MAX_UNREAD_CHARS = 256 * 1024
MAX_HELD_BACK = 256
CHARS_PER_LOGPROB = 64

LOST = Outcome(
    state="failed", error=ErrorInfo(code="request_lost", message="The broker lost the request; send it again.")
)


class Verdict(enum.Enum):
    """What became of a frame."""

    TAKEN = enum.auto()
    DUPLICATE = enum.auto()
    STALE = enum.auto()
    GAP = enum.auto()


class Reader:
    """Who reads the answer, made of one choice or several; each of them is followed by a `Follower`."""

    __slots__ = ("_bound", "_unread", "_wake", "gone", "is_patient", "may_return", "on_stall", "writing")

    def __init__(self, *, is_patient: bool = False, may_return: bool = False) -> None:
        self.may_return = may_return
        """Its client knows, or can know, under what name to ask for the answer again."""
        self.is_patient = is_patient
        """It wants the whole answer, so only an end is worth waking it for."""
        self.gone = False
        """The client left."""
        self.writing = False
        """It waits for its client's connection to take what it was given."""
        self.on_stall: Callable[[], None] | None = None
        self._unread = 0
        self._bound = 0
        self._wake = asyncio.Event()

    def follows_one_more(self) -> None:
        """Its answer has another choice, which may wait as much as the others."""
        self._bound += MAX_UNREAD_CHARS

    def leave(self) -> None:
        """The client is gone."""
        self.gone = True
        self._wake.set()

    def wake(self) -> None:
        """Let it look around."""
        self._wake.set()

    async def changed(self) -> None:
        """Until there may be something to read."""
        await self._wake.wait()
        self._wake.clear()

    def arrived(self, size: int) -> None:
        """So many characters more wait to be read."""
        if self.is_patient:
            return  # the whole answer is kept; admission bounds it
        self._unread += size
        self._wake.set()
        if self.writing and self._unread > self._bound and self.on_stall is not None:
            self.on_stall()

    def was_read(self) -> None:
        """Nothing waits any more."""
        self._unread = 0


class Follower:
    """Holds what has arrived and is not yet read. No input or output of its own; never blocks who offers frames.

    A frame is taken only if it starts at the token after the last one held. Of a frame that starts later
    is known that the log holds what is missing: write-ahead is the contract. `catch_up` fills it in.
    """

    __slots__ = (
        "_frames", "_held_back", "accepted", "attempt", "first_token_at", "id", "lane", "model", "outcome", "quiet",
        "reader", "repairing", "tokens", "wanted",
    )  # fmt: skip

    def __init__(self, request_id: str, model: str, lane: str, reader: Reader | None = None, *, after: int = 0) -> None:
        """`after`: the reader has so many tokens already."""
        self.id = request_id
        self.model = model
        self.lane = lane
        self.reader = reader or Reader()
        self.reader.follows_one_more()
        self.accepted = False
        """The broker has the request: only then can it be missing."""
        self.tokens = after
        self.attempt = 0
        """The newest that was heard of."""
        self.wanted = 0
        """Tokens that are known to be in the log."""
        self.outcome: Outcome | None = None
        self.first_token_at: float | None = None
        self.quiet = 0
        """Sweeps since the last frame."""
        self.repairing = False
        self._frames: list[Frame] = []
        self._held_back: list[Frame] = []

    def offer(self, frame: Frame) -> Verdict:
        """Take, drop or hold back a frame that was published."""
        if self.outcome is not None:
            return Verdict.DUPLICATE
        if frame.attempt < self.attempt:
            return Verdict.STALE
        self.attempt = frame.attempt
        self.quiet = 0
        if frame.at > self.tokens:
            self.wanted = max(self.wanted, frame.at)
            self._hold_back(frame)
            return Verdict.GAP
        if frame.end is not None:
            self.end(frame.end)
            return Verdict.TAKEN
        if frame.at < self.tokens or not frame.ids:
            return Verdict.DUPLICATE
        self._take(frame)
        return Verdict.TAKEN

    def catch_up(self, logged: Sequence[Frame], record: Record | None, *, wanted: int) -> bool:
        """Fill in what the log and the record say. False: they lack what was `wanted` when they were read, it is lost.

        The log is the truth: what an older attempt wrote there, the newer one built upon.
        """
        if self.outcome is not None:
            return True
        self.quiet = 0
        if record is None:
            return False
        for frame in logged:
            if frame.at == self.tokens and frame.ids:
                self._take(frame)
        ended = record.state in TERMINAL
        if self.tokens < max(wanted, (record.tokens or 0) if ended else 0):
            return False
        if ended:
            self.end(record.outcome or LOST)
        else:
            held_back, self._held_back = self._held_back, []
            for frame in held_back:
                self.offer(frame)
        return True

    def end(self, outcome: Outcome) -> None:
        """The end, unless there was one already."""
        if self.outcome is None:
            self.outcome = outcome
            self._held_back = []
            self.reader.wake()

    def read(self) -> list[Frame]:
        """The frames with something to show that have arrived since the last call."""
        frames = self._frames
        if frames:
            self._frames = []
        return frames

    def _take(self, frame: Frame) -> None:
        if self.first_token_at is None:
            self.first_token_at = time.monotonic()
        self.tokens += len(frame.ids)
        if frame.text or frame.logprobs or frame.prompt:
            self._frames.append(frame)
            self.reader.arrived(len(frame.text) + _told_chars(frame))

    def _hold_back(self, frame: Frame) -> None:
        if len(self._held_back) >= MAX_HELD_BACK:
            self._held_back = []  # the log has them too
        self._held_back.append(frame)


def _told_chars(frame: Frame) -> int:
    """About how long the log-probabilities of a frame are when they are written.

    Not those of a prompt that is told back: it comes once, and in one frame, however large.
    """
    return sum(CHARS_PER_LOGPROB * (1 + len(one.top)) for one in frame.logprobs)
