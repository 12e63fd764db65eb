"""Shares of slots, simulated over many fetches without a broker."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.lanes import Lane
from worker.quotas import Quotas

INTERACTIVE_AND_BULK = {"interactive": Lane(weight=8), "bulk": Lane(weight=1)}


def fetch(rooms, free, waiting):
    """What fetch.lua does: quotas first, then what is left over, in lane order."""
    taken = {}
    for room in rooms:
        taken[room.lane] = min(room.quota, room.cap, free, waiting[room.lane])
        free -= taken[room.lane]
    for room in rooms:
        more = min(room.cap - taken[room.lane], free, waiting[room.lane] - taken[room.lane])
        taken[room.lane] += more
        free -= more
    return taken


def served(lanes, *, slots, steps, backlog, lengths):
    """Tokens of each lane over many steps: who holds a slot gets one a step, until its answer is over."""
    quotas, dice = Quotas(lanes, slots=slots), random.Random(7)
    running, tokens = [], dict.fromkeys(lanes, 0)
    for _ in range(steps):
        used = Counter(lane for lane, _ in running)
        if rooms := quotas.rooms(used):
            for lane, count in fetch(rooms, slots - len(running), backlog).items():
                running += [(lane, dice.randint(*lengths[lane])) for _ in range(count)]
            quotas.settle(Counter(lane for lane, _ in running), backlog)
        for lane, _ in running:
            tokens[lane] += 1
        quotas.charge(tokens)
        running = [(lane, left - 1) for lane, left in running if left > 1]
    return tokens


@pytest.mark.parametrize("lengths", [(100, 100), (20, 400), (400, 20)])
@pytest.mark.parametrize("weights", [(8, 1), (3, 2)])
def test_lanes_that_always_have_work_share_tokens_by_weight(weights, lengths):
    """Whatever the length of their answers: two days of steps, tokens within five hundredths of the weights."""
    lanes = {"interactive": Lane(weight=weights[0]), "bulk": Lane(weight=weights[1])}
    spread = {lane: (1, 2 * length) for lane, length in zip(lanes, lengths, strict=True)}

    total = served(lanes, slots=16, steps=40_000, backlog={"interactive": 99, "bulk": 99}, lengths=spread)

    share = total["bulk"] / sum(total.values())
    assert share == pytest.approx(weights[1] / sum(weights), rel=0.05)


def test_bulk_gets_everything_that_interactive_leaves():
    lengths = {"interactive": (1, 9), "bulk": (1, 9)}
    total = served(INTERACTIVE_AND_BULK, slots=16, steps=100, backlog={"interactive": 0, "bulk": 99}, lengths=lengths)

    assert total == {"interactive": 0, "bulk": 1600}


def test_bulk_is_not_punished_for_having_used_what_was_free():
    quotas = Quotas(INTERACTIVE_AND_BULK, slots=9)
    for step in range(100):
        quotas.rooms({"interactive": 0, "bulk": 0})
        quotas.settle({"bulk": 9}, {"interactive": 0, "bulk": 99})
        quotas.charge({"bulk": 900 * step})

    rooms = {room.lane: room for room in quotas.rooms({"interactive": 0, "bulk": 0})}

    assert rooms["bulk"].quota >= 1


def test_reserved_slots_stay_free_for_their_lane():
    lanes = {"interactive": Lane(weight=8, reserve_slots=2), "bulk": Lane(weight=1)}

    rooms = {room.lane: room for room in Quotas(lanes, slots=8).rooms({"interactive": 0, "bulk": 5})}

    assert rooms["bulk"].cap == 1
    assert rooms["interactive"].cap == 3


def test_a_lane_at_its_bound_saves_up_no_claim_to_the_slots_of_others():
    """Bulk holds all it may; the bells that ring meanwhile give it nothing to hold against interactive later."""
    lanes = {"interactive": Lane(weight=8, reserve_slots=1), "bulk": Lane(weight=1)}
    quotas = Quotas(lanes, slots=16)
    for step in range(500):
        quotas.settle({"bulk": 15}, {"interactive": 0, "bulk": 50})
        quotas.charge({"bulk": 15 * step})

    taken = []
    spent = {"bulk": 15 * 500, "interactive": 0}
    for _ in range(18):  # now interactive has work, and one slot of bulk's is freed at a time
        rooms = quotas.rooms({"interactive": 1, "bulk": 14})
        [lane] = [room.lane for room in rooms if room.quota]
        quotas.settle({"interactive": 1, "bulk": 15}, {"interactive": 50, "bulk": 50})
        spent[lane] += 256
        quotas.charge(spent)
        taken.append(lane)

    assert taken.count("bulk") == 2
    assert "bulk" not in taken[:4]


def test_a_lane_that_starves_is_served_next():
    quotas = Quotas(INTERACTIVE_AND_BULK, slots=4)

    rooms = quotas.rooms({"interactive": 3, "bulk": 0}, starving={"bulk"})

    assert [(room.lane, room.quota) for room in rooms] == [("bulk", 1), ("interactive", 0)]


@pytest.mark.parametrize("slots", [1, 2, 16])
def test_no_reserve_shuts_a_lane_out_of_an_idle_worker(slots):
    lanes = {"interactive": Lane(weight=8, reserve_slots=99), "bulk": Lane(weight=1)}

    rooms = {room.lane: room for room in Quotas(lanes, slots=slots).rooms({})}

    assert rooms["bulk"].cap >= 1


def test_a_full_worker_has_no_room():
    assert Quotas(INTERACTIVE_AND_BULK, slots=4).rooms({"interactive": 1, "bulk": 3}) == []


def test_a_lane_never_holds_more_than_its_batch():
    lanes = {"interactive": Lane(weight=8), "bulk": Lane(weight=1, max_batch=2)}

    rooms = {room.lane: room for room in Quotas(lanes, slots=16).rooms({"interactive": 0, "bulk": 1})}

    assert rooms["bulk"].cap == 1


@given(
    weights=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    reserves=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    slots=st.integers(1, 32),
    data=st.data(),
)
def test_quotas_never_exceed_the_slots_or_a_cap(weights, reserves, slots, data):
    lanes = {
        f"lane{n}": Lane(weight=weight, reserve_slots=reserves[n], max_batch=data.draw(st.none() | st.integers(1, 8)))
        for n, weight in enumerate(weights)
    }
    quotas = Quotas(lanes, slots=slots)
    used = dict.fromkeys(lanes, 0)
    for _ in range(20):
        waiting = {lane: data.draw(st.integers(0, 5)) for lane in lanes}
        rooms = quotas.rooms(used)
        free = slots - sum(used.values())

        assert sum(room.quota for room in rooms) <= free
        assert all(0 <= room.quota <= room.cap <= free for room in rooms)

        taken = fetch(rooms, free, waiting)
        quotas.settle(taken, {lane: waiting[lane] - taken.get(lane, 0) for lane in lanes})
        for lane, count in taken.items():
            used[lane] = data.draw(st.integers(0, used[lane] + count))


# Slots that are given back --------------------------------------------------------------------------

PARKING = {"interactive": Lane(weight=8, max_batch=12), "bulk": Lane(weight=1, preemptible=True)}


def asked(reclaimed):
    """What is to be taken from each lane; nothing at all: nothing."""
    rooms, _ = reclaimed
    return {room.lane: room.cap for room in rooms}


def test_bulk_gives_slots_back_to_those_who_wait_but_for_its_share():
    quotas = Quotas(PARKING, slots=18)

    assert asked(quotas.reclaim({"bulk": 18}, {"interactive": 5, "bulk": 9})) == {"interactive": 5, "bulk": 0}
    assert asked(quotas.reclaim({"bulk": 18}, {"interactive": 99, "bulk": 9}))["interactive"] == 12
    assert asked(quotas.reclaim({"bulk": 9, "interactive": 9}, {"interactive": 99}))["interactive"] == 3
    assert asked(quotas.reclaim({"bulk": 6, "interactive": 12}, {"interactive": 99})) == {}
    assert asked(quotas.reclaim({"bulk": 18}, {"interactive": 0, "bulk": 9})) == {}


def test_bulk_keeps_its_slots_while_it_has_had_less_than_its_share():
    quotas, lanes = Quotas(PARKING, slots=5), {"interactive": 9, "bulk": 9}
    quotas.settle({"bulk": 5}, lanes)
    quotas.charge({"interactive": 900, "bulk": 10})

    assert asked(quotas.reclaim({"bulk": 5}, lanes)) == {}

    quotas.charge({"interactive": 900, "bulk": 400})

    assert asked(quotas.reclaim({"bulk": 5}, lanes))["interactive"] == 4


def test_nothing_is_reclaimed_for_a_preemptible_lane():
    lanes = {**PARKING, "night": Lane(weight=4, preemptible=True)}

    assert asked(Quotas(lanes, slots=18).reclaim({"bulk": 18}, {"night": 9})) == {}


def test_nothing_is_reclaimed_while_a_slot_is_free():
    assert asked(Quotas(PARKING, slots=18).reclaim({"bulk": 17}, {"interactive": 9})) == {}


def test_a_slot_that_is_free_for_another_lane_is_none():
    lanes = {**PARKING, "interactive": Lane(weight=8, reserve_slots=1), "long": Lane(weight=4)}

    taken = asked(Quotas(lanes, slots=16).reclaim({"bulk": 15}, {"long": 2}))

    assert taken == {"interactive": 0, "bulk": 0, "long": 2}


def test_each_preemptible_lane_gives_of_its_own():
    lanes = {**PARKING, "night": Lane(weight=1, preemptible=True)}
    quotas = Quotas(lanes, slots=8)

    _, spare = quotas.reclaim({"bulk": 6, "night": 1, "interactive": 1}, {"interactive": 1})

    assert spare == {"bulk": 5, "night": 0}
