"""A stop string is found in text however it is cut into pieces, and no part of it is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engines.stops import StopMatcher


def run(pieces: list[str], stops: tuple[str, ...]) -> tuple[list[str], bool]:
    matcher = StopMatcher(stops)
    shown = [matcher.feed(piece) for piece in pieces]
    if not matcher.is_stopped:
        shown.append(matcher.flush())
    return shown, matcher.is_stopped


def oracle(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """The first stop to be complete, character by character."""
    for end in range(1, len(text) + 1):
        completed = [stop for stop in stops if text[:end].endswith(stop)]
        if completed:
            return text[: end - max(map(len, completed))], True
    return text, False


def test_no_part_of_a_stop_is_shown():
    """B003."""
    shown, is_stopped = run(["Invoice tot", "al du", "e: 9", "0"], ("total due",))

    assert shown == ["Invoice ", "", "", ""]
    assert is_stopped


@pytest.mark.parametrize("first", range(1, 18))
@pytest.mark.parametrize("second", range(1, 18))
def test_where_the_pieces_are_cut_makes_no_difference(first, second):
    text = "Invoice total due: 90"
    low, high = sorted((first, second))

    shown, is_stopped = run([text[:low], text[low:high], text[high:]], ("total due",))

    assert "".join(shown) == "Invoice "
    assert is_stopped


def test_a_stop_over_two_tokens_is_seen():
    """B005."""
    shown, is_stopped = run([" six", " seven", " eight", " nine"], ("seven eight", "seven, eight"))

    assert "".join(shown) == " six "
    assert is_stopped


def test_nothing_is_shown_twice():
    """B006."""
    shown, is_stopped = run(["[cat]", "[dog]"], ("][",))

    assert shown == ["[cat", ""]
    assert is_stopped


def test_only_the_tail_that_may_open_a_stop_is_held_back():
    matcher = StopMatcher(("</end>",))

    assert matcher.feed("a < b </e") == "a < b "
    assert matcher.feed("x") == "</ex"
    assert matcher.feed("<") == ""
    assert matcher.flush() == "<"
    assert matcher.flush() == ""


def test_without_stops_text_passes_untouched():
    assert run(["a", "", "b"], ()) == (["a", "", "b", ""], False)
    assert run(["a"], ("",)) == (["a", ""], False)


@given(
    st.lists(st.text(alphabet="ab", max_size=5), max_size=12),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=4),
)
def test_any_pieces_and_any_stops_agree_with_the_plain_definition(pieces, stops):
    shown, is_stopped = run(pieces, tuple(stops))

    assert ("".join(shown), is_stopped) == oracle("".join(pieces), tuple(stops))
