"""POST /v1/chat/completions."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.openai import translate
from gateway.openai.dialects import Chat
from gateway.openai.schemas import ChatBody
from gateway.routes.generation import Endpoint, generate

CHAT = Endpoint("chat.completions", ChatBody, translate.chat, Chat)

router = APIRouter()


@router.post("/v1/chat/completions", response_model=None)
async def chat(request: Request) -> Response:
    return await generate(request, CHAT)
