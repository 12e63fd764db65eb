"""structlog, set up once a process: lines for people on a terminal, JSON elsewhere. Prompts never appear."""

import logging
import sys
from typing import Any

import structlog

from shared.sections import LogSettings

# Both renderers would print local variables, and with them prompts.
TRACEBACKS = structlog.processors.ExceptionRenderer(structlog.tracebacks.ExceptionDictTransformer(show_locals=False))


def configure(settings: LogSettings, *, process: str) -> None:
    """Log to standard error, with the name of the process on every line, the libraries' lines included."""
    console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    before: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: list[Any] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if console
        else [TRACEBACKS, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*before, *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(process=process)
    handler = logging.StreamHandler(sys.stderr)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=before, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render]
    )
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=max(level, logging.INFO), force=True)
    # One canonical line a request replaces the access log; a client library's every call is not news.
    for name, least in {"uvicorn.access": logging.CRITICAL, "httpx": logging.WARNING}.items():
        logging.getLogger(name).setLevel(least)
