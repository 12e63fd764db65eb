"""Shares of slots, simulated over many fetches without a broker."""

import random

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


def served(lanes, *, slots, fetches, backlog):
    """Requests taken from each lane over many fetches, one slot freed at a time, lanes always full."""
    quotas = Quotas(lanes, slots=slots)
    used = dict.fromkeys(lanes, 0)
    total = dict.fromkeys(lanes, 0)
    dice = random.Random(7)
    for _ in range(fetches):
        rooms = quotas.rooms(used)
        taken = fetch(rooms, slots - sum(used.values()), backlog)
        quotas.settle(rooms, taken, backlog)
        for lane, count in taken.items():
            used[lane] += count
            total[lane] += count
        running = [lane for lane, count in used.items() for _ in range(count)]
        used[dice.choice(running)] -= 1
    return total


def test_lanes_that_always_have_work_share_by_weight():
    total = served(INTERACTIVE_AND_BULK, slots=16, fetches=20_000, backlog={"interactive": 99, "bulk": 99})

    share = total["bulk"] / sum(total.values())
    assert abs(share - 1 / 9) < 0.01


def test_bulk_gets_everything_that_interactive_leaves():
    total = served(INTERACTIVE_AND_BULK, slots=16, fetches=1_000, backlog={"interactive": 0, "bulk": 99})

    assert total["interactive"] == 0
    assert total["bulk"] >= 1_000


def test_bulk_is_not_punished_for_having_used_what_was_free():
    quotas = Quotas(INTERACTIVE_AND_BULK, slots=9)
    for _ in range(100):
        rooms = quotas.rooms({"interactive": 0, "bulk": 0})
        quotas.settle(rooms, {"bulk": 9}, {"interactive": 0, "bulk": 99})

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
    for _ in range(500):
        rooms = quotas.rooms({"interactive": 0, "bulk": 15})
        quotas.settle(rooms, {}, {"interactive": 0, "bulk": 50})

    taken = []
    for _ in range(18):  # now interactive has work, and one slot of bulk's is freed at a time
        rooms = quotas.rooms({"interactive": 1, "bulk": 14})
        [lane] = [room.lane for room in rooms if room.quota]
        quotas.settle(rooms, {lane: 1}, {"interactive": 50, "bulk": 50})
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
        quotas.settle(rooms, taken, {lane: waiting[lane] - taken.get(lane, 0) for lane in lanes})
        for lane, count in taken.items():
            used[lane] = data.draw(st.integers(0, used[lane] + count))
