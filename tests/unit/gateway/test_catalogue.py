"""What is offered: live models first, and for a while those that have just lost their workers."""

import asyncio

import pytest

from gateway.catalogue import Catalogue
from shared.broker import ServedModel
from shared.errors import ModelNotFound

LIVE = ({"id": "w1", "draining": "0"},)
DRAINING = ({"id": "w2", "draining": "1"},)


class Stub:
    def __init__(self, *models):
        self.served = list(models)
        self.looks = 0

    async def models(self):
        self.looks += 1
        await asyncio.sleep(0)
        return list(self.served)

    async def lane_depths(self, _model, _lanes):
        return {}


async def offered(*models):
    catalogue = Catalogue(Stub(*models), [], absent_grace_s=60)
    return [model.name for model in await catalogue.offered()]


async def test_the_first_model_that_is_listed_is_one_that_answers():
    absent = ServedModel("a-was-here", seen_s_ago=20, workers=())
    leaving = ServedModel("b-is-leaving", seen_s_ago=0, workers=DRAINING)
    live = ServedModel("c-lives", seen_s_ago=0, workers=LIVE)

    assert await offered(absent, leaving, live) == ["c-lives", "a-was-here", "b-is-leaving"]


async def test_a_model_that_nobody_has_served_for_too_long_is_not_offered():
    assert await offered(ServedModel("gone", seen_s_ago=61, workers=())) == []


async def test_a_model_that_came_up_a_moment_ago_is_offered_at_once():
    broker = Stub()
    catalogue = Catalogue(broker, [], absent_grace_s=60)
    await catalogue.refresh()
    broker.served.append(ServedModel("new", seen_s_ago=0, workers=LIVE))

    assert [model.name for model in await catalogue.offered()] == ["new"]


async def test_a_model_that_came_up_a_moment_ago_is_found_at_once():
    broker = Stub(ServedModel("old", seen_s_ago=0, workers=LIVE))
    catalogue = Catalogue(broker, [], absent_grace_s=60)
    await catalogue.refresh()
    broker.served.append(ServedModel("new", seen_s_ago=0, workers=LIVE))

    assert (await catalogue.find("new")).name == "new"


async def test_many_who_ask_for_what_is_not_there_share_a_look():
    broker = Stub()
    catalogue = Catalogue(broker, [], absent_grace_s=60)

    async def ask():
        with pytest.raises(ModelNotFound):
            await catalogue.find("nowhere")

    await asyncio.gather(*(ask() for _ in range(50)))

    assert broker.looks <= 2
