"""GET /v1/models and one of them."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.catalogue import max_model_len
from gateway.openai import sse
from gateway.openai.translate import model_card
from gateway.state import gateway_of
from shared.broker import ServedModel
from shared.errors import ModelNotFound

router = APIRouter()


@router.get("/v1/models", response_model=None)
async def models(request: Request) -> Response:
    """What is served, or was a moment ago."""
    served = await gateway_of(request).catalogue.offered()
    cards = [_card(model, gateway_of(request).started_at) for model in served]
    return _json({"object": "list", "data": cards})


@router.get("/v1/models/{name:path}", response_model=None)
async def model(request: Request, name: str) -> Response:
    for served in await gateway_of(request).catalogue.offered():
        if served.name == name:
            return _json(_card(served, gateway_of(request).started_at))
    raise ModelNotFound(f"The model {name[:200]!r} does not exist.", param="model")


def _card(served: ServedModel, created: int) -> dict[str, Any]:
    return model_card(served.name, max_model_len(served), created=created)


def _json(value: Any) -> Response:
    return Response(sse.encode(value), media_type="application/json")
