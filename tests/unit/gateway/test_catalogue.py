"""What is offered: live models first, and for a while those that have just lost their workers."""

from gateway.catalogue import Catalogue
from shared.broker import ServedModel

LIVE = ({"id": "w1", "draining": "0"},)
DRAINING = ({"id": "w2", "draining": "1"},)


class Stub:
    def __init__(self, *models):
        self._models = list(models)

    async def models(self):
        return self._models

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
