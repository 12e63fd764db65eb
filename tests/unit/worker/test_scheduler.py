"""The scheduler decodes everyone, and prefills no more than it may."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from shared.wire import Sampling
from worker.engines.continuous.scheduler import plan
from worker.engines.continuous.sequence import Sequence


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
    assert plan([], 8) == []


def test_decodes_come_first_and_in_the_order_of_slots():
    late, new, early = sequence("a", 3, 4, 5, 2), sequence("b", 1, 6), sequence("c", 0, 4, 4, 1)

    chunks = plan([late, new, early], 100)

    assert brief(chunks) == [("c", 4, 1, True), ("a", 5, 1, True), ("b", 0, 6, True)]
    assert [chunk.is_decode for chunk in chunks] == [True, True, False]


def test_prefill_is_cut_at_the_bound_in_order_of_arrival():
    chunks = plan([sequence("a", 1, 5), sequence("b", 0, 10), sequence("c", 2, 3)], 8)

    assert brief(chunks) == [("a", 0, 5, True), ("b", 0, 3, False)]


def test_a_piece_of_one_token_of_a_longer_prompt_is_no_decode():
    chunks = plan([sequence("a", 1, 5), sequence("b", 0, 10)], 6)

    assert brief(chunks)[1] == ("b", 0, 1, False)
    assert not chunks[1].is_decode


def test_decodes_run_although_a_long_prompt_takes_the_whole_bound():
    chunks = plan([sequence("long", 0, 1000), sequence("a", 1, 4, 4, 1)], 16)

    assert brief(chunks) == [("a", 4, 1, True), ("long", 0, 16, False)]


def test_a_resumed_sequence_prefills_its_earlier_tokens_too():
    resumed = sequence("a", 0, prompt=3, output=4)

    (chunk,) = plan([resumed], 100)

    assert (chunk.start, chunk.count, chunk.is_last) == (0, 7, True)
    assert resumed.tokens(1, 4) == [1, 2, 900, 901]
    assert resumed.tokens(4, 2) == [901, 902]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 50))
def test_every_prompt_is_run_once_and_in_order_of_arrival(prompts, bound):
    waiting = deque(sequence(str(index), index, prompt) for index, prompt in enumerate(prompts))
    finished = []
    while waiting:
        chunks = plan(waiting, bound)
        assert chunks
        assert sum(chunk.count for chunk in chunks if not chunk.is_decode) <= bound
        for chunk in chunks:
            assert chunk.start == chunk.sequence.cached
            chunk.sequence.cached = chunk.end
            if chunk.is_last:
                finished.append(chunk.sequence)
                waiting.remove(chunk.sequence)

    assert [one.cached for one in finished] == [len(one.prompt_ids) for one in finished]
    assert sorted(int(one.id) for one in finished) == list(range(len(prompts)))
