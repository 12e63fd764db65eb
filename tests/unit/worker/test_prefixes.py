"""Which beginnings of texts are kept, against a naive model."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.engines.continuous.prefixes import BLOCK, Prefixes


def text(*words):
    """A block for each word."""
    return [ord(word) for word in words for _ in range(BLOCK)]


def test_the_longest_known_beginning_is_found():
    prefixes = Prefixes(8)
    stored = prefixes.extend([*text("a", "b", "c"), 1, 2])

    assert [one.start for one in stored] == [0, BLOCK, 2 * BLOCK]
    blocks = [one.block for one in stored]
    assert prefixes.match(text("a", "b", "x")) == blocks[:2]
    assert prefixes.match(text("a", "b", "c", "d")) == blocks
    assert prefixes.match(text("a", "b")[:-1]) == blocks[:1]
    assert prefixes.match(text("b", "c")) == []
    assert prefixes.match([]) == []


def test_what_is_known_is_stored_once():
    prefixes = Prefixes(8)
    prefixes.extend(text("a", "b"))

    assert [one.start for one in prefixes.extend(text("a", "b", "c"))] == [2 * BLOCK]
    assert prefixes.extend(text("a", "b")) == []
    assert len(prefixes) == 3


def test_the_least_recently_used_leaf_goes():
    prefixes = Prefixes(4)
    prefixes.extend(text("a", "b"))
    prefixes.extend(text("c", "d"))
    prefixes.match(text("a", "b"))

    prefixes.extend(text("e"))

    assert len(prefixes.match(text("a", "b"))) == 2
    assert len(prefixes.match(text("c", "d"))) == 1


def test_a_text_longer_than_the_room_keeps_its_beginning():
    prefixes = Prefixes(2)

    assert len(prefixes.extend(text("a", "b", "c"))) == 2
    assert len(prefixes.match(text("a", "b", "c"))) == 2


def test_without_room_nothing_is_kept():
    prefixes = Prefixes(0)

    assert prefixes.extend(text("a")) == []
    assert prefixes.match(text("a")) == []


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12))
def test_what_is_matched_holds_the_very_tokens(seed, room):
    """A naive store of what each block was filled with: every match is true, room is kept, no block serves two."""
    dice, prefixes, filled = random.Random(seed), Prefixes(room), {}
    for _ in range(60):
        ids = text(*dice.choices("abc", k=dice.randint(0, 5))) + [7] * dice.randint(0, BLOCK - 1)
        if dice.random() < 0.5:
            stored = prefixes.extend(ids)
            assert len({one.block for one in stored}) == len(stored)
            for one in stored:
                filled[one.block] = ids[: one.start + BLOCK]
        blocks = prefixes.match(ids)
        assert [filled[block] for block in blocks] == [ids[: (n + 1) * BLOCK] for n in range(len(blocks))]
        assert len(prefixes) <= room


@pytest.mark.parametrize("room", [3, 5])
def test_what_was_just_stored_is_found(room):
    prefixes = Prefixes(room)
    for word in "abcdefgh":
        prefixes.extend(text(word, "x"))
        assert len(prefixes.match(text(word, "x"))) == 2
