"""What a worker holds, and what it reports after each turn."""

import time

import pytest
from msgspec import structs

from shared.broker import CANCELLED
from shared.lease import Assignment
from shared.wire import GenerateRequest, Outcome, Sampling, Usage
from worker.engine import Ended, Progressed
from worker.table import UNREADABLE, Table

DONE = Outcome(state="done", reason="stop", usage=Usage(prompt_tokens=1, completion_tokens=2))


def assignment(request_id="a", attempt=1, *, prior=(), lane="interactive", readable=True):
    return Assignment(
        lane=lane,
        entry="1-1",
        id=request_id,
        attempt=attempt,
        request=GenerateRequest(sampling=Sampling(seed=1), prompt="hi") if readable else None,
        deadline_ms=60_000,
        queued_ms=3,
        deaths=0,
        position=len(prior),
        prior_ids=prior,
    )


def running(*assignments):
    table = Table()
    for one in assignments:
        table.take(one)
    table.settle([], table.take_orders())
    return table


def test_positions_go_on_from_the_tokens_of_earlier_attempts():
    table = running(assignment(attempt=2, prior=(7, 8, 9)))

    report = table.settle([Progressed("a#2", (1, 2), "x"), Progressed("a#2", (3,), "y")], table.take_orders())

    assert [emission.at for emission in report.emissions] == [3, 5]


def test_an_ending_carries_all_tokens_and_frees_the_slot():
    table = running(assignment())

    report = table.settle([Progressed("a#1", (1, 2), "x"), Ended("a#1", DONE)], table.take_orders())

    assert [(ending.tokens, ending.outcome) for ending in report.endings] == [(2, structs.replace(DONE, queued_ms=3))]
    assert len(table) == 0


def test_a_cancelled_request_ends_with_its_outcome_once():
    held = assignment()
    table = running(held)
    table.release([held], CANCELLED)
    table.release([held], CANCELLED)
    orders = table.take_orders()

    report = table.settle([], orders)
    again = table.settle([Ended("a#1", DONE)], table.take_orders())

    assert [ending.outcome.state for ending in report.endings] == ["cancelled"]
    assert again.endings == []


@pytest.mark.parametrize("first", [CANCELLED, "park"])
def test_a_lost_request_is_dropped_without_a_word_whatever_else_was_wanted(first):
    held = assignment()
    table = running(held)
    table.release([held], first)
    table.release([held], "lost")

    report = table.settle([], table.take_orders())

    assert (report.endings, report.parked) == ([], [])
    assert len(table) == 0


def test_a_parked_request_is_handed_over():
    held = assignment()
    table = running(held)
    table.release([held], "park")

    report = table.settle([], table.take_orders())

    assert report.parked == [held]


def test_what_is_released_before_the_engine_saw_it_is_never_added():
    table = Table()
    held = assignment()
    table.take(held)
    table.release([held], CANCELLED)

    orders = table.take_orders()

    assert orders.add == []
    assert list(orders.release) == ["a#1"]


def test_a_newer_attempt_replaces_ours_and_late_tokens_of_the_old_one_are_not_its():
    table = running(assignment(attempt=1))
    table.take(assignment(attempt=2, prior=(5,)))
    orders = table.take_orders()

    report = table.settle([Progressed("a#1", (6,), "old")], orders)

    assert report.emissions == []
    assert [work.id for work in orders.add] == ["a#2"]
    assert len(table) == 1


def test_a_request_that_cannot_be_read_is_failed_and_never_run():
    table = Table()
    table.take(assignment(readable=False))
    orders = table.take_orders()

    report = table.settle([], orders)

    assert orders.add == []
    assert [ending.outcome.error for ending in report.endings] == [UNREADABLE.error]


def test_what_is_past_its_deadline_is_late():
    table = running(assignment())

    assert table.late(time.monotonic()) == []
    assert [one.id for one in table.late(time.monotonic() + 61)] == ["a"]


def test_what_it_holds_is_told_by_attempt():
    table = running(assignment(attempt=1))
    table.take(assignment(attempt=2))
    table.settle([], table.take_orders())

    assert [table.holds(assignment(attempt=attempt)) for attempt in (1, 2)] == [False, True]


def test_slots_in_use_are_counted_by_lane():
    table = running(assignment("a"), assignment("b", lane="bulk"), assignment("c", lane="bulk"))

    assert table.used() == {"interactive": 1, "bulk": 2}


def test_each_lane_gives_no_more_than_it_can_spare():
    table = Table()
    for number, lane in enumerate(["bulk", "bulk", "night", "interactive"]):
        table.take(assignment(f"r{number}", lane=lane))

    assert [one.id for one in table.least_advanced(9, {"bulk": 1, "night": 0})] == ["r1"]


def test_a_suspect_begins_when_it_is_alone_and_the_broker_knows():
    table = running(assignment("other"))
    table.take(assignment("suspect"), alone=True)
    assert table.suspect_due is None
    assert table.take_orders().add == []

    table.settle([Ended("other#1", DONE)], table.take_orders())
    assert table.suspect_due.id == "suspect"
    assert table.take_orders().add == []

    table.begin_suspect()
    assert [work.id for work in table.take_orders().add] == ["suspect#1"]
    assert (table.suspect_due, table.take_orders().add) == (None, [])
