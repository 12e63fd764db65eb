"""POST /v1/embeddings."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.answer import JsonAnswer
from gateway.openai import translate
from gateway.openai.embeddings import Embeddings
from gateway.openai.schemas import EmbeddingsBody
from gateway.routes.generation import admit, named, read, telling
from gateway.state import gateway_of

router = APIRouter()


@router.post("/v1/embeddings", response_model=None)
async def embeddings(request: Request) -> Response:
    gateway = gateway_of(request)
    body, ignored, _ = await read(request, "embeddings", EmbeddingsBody)
    requests = translate.embeddings(body)
    admitted = await admit(
        request, body, named(request, stream=False), endpoint="embeddings", requests=requests, limit_field="input",
        base64=body.encoding_format == "base64",
    )  # fmt: skip
    writer = Embeddings(body.model, [len(part.inputs or ()) for part in requests], body.encoding_format)
    meters = gateway.metrics.meters(admitted.lane, body.model)
    return telling(JsonAnswer(admitted, writer, gateway.relay, meters, gateway.pace.grace_s), ignored)
