"""POST /v1/embeddings."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.answer import JsonAnswer
from gateway.openai import translate
from gateway.openai.embeddings import Embeddings
from gateway.openai.schemas import EmbeddingsBody
from gateway.routes.generation import admit, names, read
from gateway.state import gateway_of

router = APIRouter()


@router.post("/v1/embeddings", response_model=None)
async def embeddings(request: Request) -> Response:
    gateway = gateway_of(request)
    body, ignored = await read(request, "embeddings", EmbeddingsBody)
    requests = translate.embeddings(body)
    admitted = await admit(request, requests, body, limit_field="input", stream=False)
    writer = Embeddings(body.model, [len(part.inputs or ()) for part in requests], body.encoding_format)
    answer = JsonAnswer(admitted, writer, gateway.relay, gateway.metrics.meters(admitted.lane, body.model))
    if ignored:
        answer.headers["x-busway-ignored"] = names(ignored)
    return answer
