"""What the drills promise. `python -m tests.fault.drills` tells how long it took."""

import pytest

from tests.fault import drills

pytestmark = [pytest.mark.fault, pytest.mark.integration]


async def test_streams_of_three_workers_killed_one_after_another_end_on_the_fourth():
    figures = await drills.run("three_kills", count=40)

    assert figures["exact"] == 40


async def test_a_broker_that_is_killed_and_comes_back_loses_nothing():
    figures = await drills.run("broker_killed", count=30, queued=40)

    assert figures["exact"] == 30
    assert figures["bulk_exact"] == figures["bulk"]
    assert figures["bulk_refused"], "the lane was not full"


async def test_who_ends_well_sends_no_cancel_and_who_leaves_early_sends_one():
    figures = await drills.run("cancels", normal=200, early=20)

    sent = {name: count for name, count in figures.items() if name.startswith("cancels_of_")}
    assert figures["exact"] == 200
    assert sent == {"cancels_of_normal": 0, "cancels_of_close": 20, "cancels_of_reset": 20, "cancels_of_half_close": 20}
