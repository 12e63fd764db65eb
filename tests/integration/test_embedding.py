"""The embedding engine in a process of its own, asked through the queue."""

import numpy as np
import pytest

from shared.sections import DEFAULT_EMBEDDER
from tests.support.direct import Direct
from tests.support.engines import embed

pytestmark = [pytest.mark.integration, pytest.mark.model, pytest.mark.timeout(300)]


async def test_texts_of_both_lanes_come_back_as_vectors(fleet):
    await fleet.worker(WORKER__ENGINE="embedding", WORKER__THREADS="1")
    requests = [embed(f"text {n}", "the same text in all of them", dimensions=64 if n else None) for n in range(4)]
    async with Direct(fleet.redis_url, DEFAULT_EMBEDDER) as direct:
        lanes = ["interactive", "bulk"] * 2
        ids = [await direct.send(one, lane=lane) for one, lane in zip(requests, lanes, strict=True)]

        ends = [(await direct.ended(one)).end for one in ids]

    whole, *cut = [np.frombuffer(one.embeddings, "<f4").reshape(2, -1) for one in ends]
    assert [one.state for one in ends] == ["done"] * 4
    assert [one.shape for one in (whole, *cut)] == [(2, 384), (2, 64), (2, 64), (2, 64)]
    for one in cut:
        assert np.allclose(one[1], whole[1, :64] / np.linalg.norm(whole[1, :64]), atol=1e-5)


async def test_a_question_to_it_is_refused(fleet):
    await fleet.worker(WORKER__ENGINE="embedding", WORKER__THREADS="1")
    async with Direct(fleet.redis_url, DEFAULT_EMBEDDER) as direct:
        end = (await direct.ended(await direct.ask("Who are you?"))).end

    assert (end.state, end.error.code) == ("failed", "unsupported_value")
