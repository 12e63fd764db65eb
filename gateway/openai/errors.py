"""Errors as OpenAI's clients understand them: one table from code to status."""

from dataclasses import dataclass

from starlette.responses import Response

from gateway.openai import sse
from shared.errors import BuswayError, Unavailable
from shared.wire import Outcome

INVALID, SERVER = "invalid_request_error", "server_error"
INTERNAL = "internal_error"
INTERNAL_MESSAGE = "The server had an error while processing the request."
PUBLIC = {"redis_unavailable": "The queue is not available at the moment; send the request again."}
"""Said instead of an error's own words, which name addresses and the like: those are for the log."""


@dataclass(frozen=True, slots=True)
class Row:
    """How a code is told to a client. Clients repeat 408, 409, 429 and all from 500 on, unless `retry` is False."""

    status: int
    type: str = INVALID
    retry: bool = True
    close: bool = False
    """The connection is of no more use: the rest of the request is still to come."""


TABLE = {
    "invalid_request": Row(400),
    "invalid_value": Row(400),
    "invalid_json": Row(400),
    "missing_required_parameter": Row(400),
    "unsupported_parameter": Row(400),
    "unsupported_value": Row(400),
    "context_length_exceeded": Row(400),
    "body_timeout": Row(400, close=True),  # not 408, which clients repeat
    "invalid_api_key": Row(401),
    "model_not_found": Row(404),
    "not_found": Row(404),
    "method_not_allowed": Row(405),
    "request_not_found": Row(404),
    "request_too_large": Row(413),
    "idempotency_key_reused": Row(422),
    "lane_full": Row(429, "rate_limit_error"),
    "deadline_unreachable": Row(429, "rate_limit_error"),
    "cancelled": Row(499, SERVER, retry=False),
    INTERNAL: Row(500, SERVER),
    "worker_lost": Row(500, SERVER, retry=False),  # the fleet has tried it again already, several times
    "unavailable": Row(503, SERVER),
    "no_workers": Row(503, SERVER),
    "redis_unavailable": Row(503, SERVER),
    "request_lost": Row(503, SERVER),
    "gateway_full": Row(503, SERVER),
    "draining": Row(503, SERVER),
    "deadline_exceeded": Row(504, SERVER, retry=False),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """An error on its way to a client."""

    code: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None

    @classmethod
    def of(cls, error: BuswayError) -> "Problem":
        """What a client may know of an error; one that is not in the table is our fault and stays vague."""
        if error.code not in TABLE:
            return cls(INTERNAL, INTERNAL_MESSAGE)
        retry_after_s = error.retry_after_s if isinstance(error, Unavailable) else None
        return cls(error.code, PUBLIC.get(error.code, error.message), error.param, retry_after_s)

    @classmethod
    def of_outcome(cls, outcome: Outcome) -> "Problem":
        """What a client may know of a request that did not end well."""
        error = outcome.error
        if error is None or error.code not in TABLE:
            return cls(INTERNAL, INTERNAL_MESSAGE)
        retry_after_s = 1 if TABLE[error.code].status == 503 else None
        return cls(error.code, PUBLIC.get(error.code, error.message), error.param, retry_after_s)

    @property
    def row(self) -> Row:
        return TABLE[self.code]

    def envelope(self, request_id: str | None = None) -> dict[str, object]:
        """The JSON of the error; within a stream, where no header can name the request, its message does."""
        message = self.message if request_id is None else f"{self.message} (request {request_id})"
        error = {"message": message, "type": self.row.type, "param": self.param, "code": self.code}
        return {"error": error if request_id is None else {**error, "request_id": request_id}}

    def headers(self) -> dict[str, str]:
        headers = {}
        if self.retry_after_s is not None:
            headers["retry-after"] = str(self.retry_after_s)
        if not self.row.retry:
            headers["x-should-retry"] = "false"
        if self.row.close:
            headers["connection"] = "close"
        if self.row.status == 401:
            headers["www-authenticate"] = "Bearer"
        return headers

    def response(self) -> Response:
        """The error as a whole answer."""
        body = sse.encode(self.envelope())
        return Response(body, self.row.status, self.headers(), media_type="application/json")

    def event(self, request_id: str) -> bytes:
        """The error within a stream that has begun. The stream says [DONE] after it and ends."""
        return sse.event(self.envelope(request_id)) + sse.DONE
