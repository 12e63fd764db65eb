"""The scheduler decodes everyone, and prefills no more than it may."""

import pytest

from shared.wire import Sampling
from worker.engines.continuous.chunks import arrange
from worker.engines.continuous.sequence import Sequence, Telling


def sequence(name, slot, prompt=10, cached=0, output=0):
    return Sequence(
        lane="interactive",
        id=name,
        slot=slot,
        prompt_ids=list(range(prompt)),
        sampling=Sampling(seed=1),
        limit=100,
        end_ids=(),
        stream=None,
        output_ids=[900 + index for index in range(output)],
        cached=cached,
    )


def brief(chunks):
    return [(chunk.sequence.id, chunk.start, chunk.count, chunk.is_last) for chunk in chunks]


def test_nothing_to_do_is_an_empty_plan():
    assert arrange([sequence("a", 0)], {}) == []


def test_decodes_come_first_and_in_the_order_of_slots():
    late, new, early = sequence("a", 3, 4, 5, 2), sequence("b", 1, 6), sequence("c", 0, 4, 4, 1)

    chunks = arrange([late, new, early], {"a": 1, "b": 6, "c": 1})

    assert brief(chunks) == [("c", 4, 1, True), ("a", 5, 1, True), ("b", 0, 6, True)]
    assert [chunk.is_decode for chunk in chunks] == [True, True, False]


def test_a_piece_of_one_token_of_a_longer_prompt_is_no_decode():
    chunks = arrange([sequence("a", 1, 5), sequence("b", 0, 10)], {"a": 5, "b": 1})

    assert brief(chunks)[1] == ("b", 0, 1, False)
    assert not chunks[1].is_decode


def test_a_resumed_sequence_prefills_its_earlier_tokens_too():
    resumed = sequence("a", 0, prompt=3, output=4)

    (chunk,) = arrange([resumed], {"a": 7})

    assert (chunk.start, chunk.count, chunk.is_last) == (0, 7, True)
    assert resumed.tokens(1, 4) == [1, 2, 900, 901]
    assert resumed.tokens(4, 2) == [901, 902]


@pytest.mark.parametrize(("top", "wanted"), [(None, 0), (0, 3), (5, 3)])
def test_all_logits_of_a_prompt_are_wanted_only_for_its_log_probabilities(top, wanted):
    told = sequence("a", 0, prompt=10)
    told.telling = Telling("text", top)

    (chunk,) = arrange([told], {"a": 3})

    assert chunk.wanted == wanted
