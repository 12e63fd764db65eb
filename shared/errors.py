"""The errors of Busway, with the code a client sees and whether trying again may help.

    BuswayError
    ├── ConfigError            the operator's settings are wrong; the process does not start
    ├── WireError              a message cannot be read (another version, or damage)
    ├── RequestError           the caller's request cannot be served as it is
    │   ├── InvalidRequest     ... because of a field (`param`)
    │   ├── ModelNotFound      ... because nothing serves that model
    │   ├── RequestUnknown     ... because no request has that id, or it ended too long ago
    │   └── KeyReused          ... because its idempotency key belongs to another request
    └── Unavailable            the fleet cannot take it now
        ├── LaneFull           the lane is at its bound; `retry_after_s` was measured
        ├── DeadlineTooNear    the lane does not drain fast enough to start it in time, as measured
        ├── NoWorkers          the model is known, but nobody serves it at the moment
        ├── BrokerUnavailable  Redis does not answer
        └── Draining           this process is on its way out

A class knows its code; only the gateway knows HTTP statuses (`gateway/openai/errors.py`).
"""


class BuswayError(Exception):
    """Root of the tree."""

    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class ConfigError(BuswayError):
    """The operator's settings are wrong."""

    code = "config_error"


class WireError(BuswayError):
    """A message cannot be read."""

    code = "wire_error"


class RequestError(BuswayError):
    """The caller's request cannot be served as it is."""

    code = "invalid_request"


class InvalidRequest(RequestError):
    """A field is wrong; `param` names it."""

    code = "invalid_value"


class ModelNotFound(RequestError):
    """Nothing serves, or lately served, the model."""

    code = "model_not_found"


class RequestUnknown(RequestError):
    """No request has this id, or it ended too long ago."""

    code = "request_not_found"


class KeyReused(RequestError):
    """The idempotency key came with another request before."""

    code = "idempotency_key_reused"


class Unavailable(BuswayError):
    """The fleet cannot take the request now."""

    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class LaneFull(Unavailable):
    """The lane is at its bound of requests or tokens."""

    code = "lane_full"


class DeadlineTooNear(Unavailable):
    """At the pace that was measured the request would not be started in time."""

    code = "deadline_unreachable"


class NoWorkers(Unavailable):
    """The model is known, but no worker serves it now."""

    code = "no_workers"


class BrokerUnavailable(Unavailable):
    """Redis does not answer, or refuses writes."""

    code = "redis_unavailable"


class Draining(Unavailable):
    """This process is shutting down."""

    code = "draining"
