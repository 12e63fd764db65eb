"""POST /v1/completions."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.openai import translate
from gateway.openai.dialects import Completion
from gateway.openai.schemas import CompletionBody
from gateway.routes.generation import Endpoint, generate

COMPLETION = Endpoint("completions", CompletionBody, translate.completion, Completion)

router = APIRouter()


@router.post("/v1/completions", response_model=None)
async def completions(request: Request) -> Response:
    return await generate(request, COMPLETION)
