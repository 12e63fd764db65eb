"""For operators: /health, /ready, /metrics, /version."""

from typing import Any

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from gateway.openai import sse
from gateway.state import gateway_of
from shared.version import VERSION

READ = ["GET", "HEAD"]

router = APIRouter()


@router.api_route("/health", methods=READ, response_model=None)
async def health() -> Response:
    """The process lives. Says nothing of Redis: restarting this process would not mend that."""
    return _json({"status": "ok"})


@router.api_route("/ready", methods=READ, response_model=None)
async def ready(request: Request) -> Response:
    """200 if a request sent now would be served; else 503 and why not."""
    problems = gateway_of(request).not_ready()
    return _json({"ready": not problems, "problems": problems}, status=503 if problems else 200)


@router.api_route("/metrics", methods=READ, response_model=None)
async def metrics(request: Request) -> Response:
    return Response(gateway_of(request).exposition.text(), headers={"content-type": CONTENT_TYPE_LATEST})


@router.api_route("/version", methods=READ, response_model=None)
async def version() -> Response:
    return _json({"version": VERSION})


def _json(value: Any, *, status: int = 200) -> Response:
    return Response(sse.encode(value), status, media_type="application/json")
