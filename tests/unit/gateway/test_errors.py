"""One table from code to status; what is not in it is our fault and says nothing."""

import json

import pytest

from gateway.openai.errors import TABLE, Problem
from shared import errors
from shared.broker import CANCELLED, EXPIRED
from shared.lease import POISONED
from shared.wire import ErrorInfo, Outcome


def classes(root=errors.BuswayError):
    return [root, *(found for child in root.__subclasses__() for found in classes(child))]


def test_every_error_a_client_can_cause_or_meet_has_a_row():
    met = [one for one in classes() if issubclass(one, errors.RequestError | errors.Unavailable)]

    assert all(one.code in TABLE for one in met)


@pytest.mark.parametrize(
    ("outcome", "status", "retry"),
    [
        (EXPIRED, 504, "false"),
        (CANCELLED, 499, "false"),
        (POISONED, 500, "false"),
        (
            Outcome(state="failed", error=ErrorInfo(code="context_length_exceeded", message="x", param="messages")),
            400,
            None,
        ),
        (Outcome(state="failed", error=ErrorInfo(code="request_lost", message="x")), 503, None),
        (Outcome(state="failed", error=ErrorInfo(code="internal_error", message="x")), 500, None),
    ],
)
def test_outcomes_have_a_status(outcome, status, retry):
    response = Problem.of_outcome(outcome).response()

    assert (response.status_code, response.headers.get("x-should-retry")) == (status, retry)
    assert set(json.loads(response.body)["error"]) == {"message", "type", "param", "code"}


def test_permanent_conditions_are_never_a_status_that_clients_repeat():
    """openai.md 0.7."""
    assert not {row.status for row in TABLE.values()} & {408, 409}
    assert all(row.status < 500 for row in TABLE.values() if row.type == "invalid_request_error")


def test_a_full_lane_says_when_to_come_back():
    response = Problem.of(errors.LaneFull("full", retry_after_s=17)).response()

    assert (response.status_code, response.headers["retry-after"]) == (429, "17")


@pytest.mark.parametrize("code", ["TypeError", "config_error", ""])
def test_codes_that_are_unknown_tell_nothing(code):
    problem = Problem.of_outcome(Outcome(state="failed", error=ErrorInfo(code=code, message="secret/path.py line 3")))

    assert problem.code == "internal_error"
    assert "secret" not in problem.message
    assert Problem.of(errors.BuswayError("secret", code=code or "x")).message == problem.message


def test_what_redis_says_is_not_for_clients():
    secret = "Redis: Error 111 connecting to 10.1.2.3:6379. invalid username-password pair"

    problem = Problem.of(errors.BrokerUnavailable(secret))
    response = problem.response()

    assert (response.status_code, problem.code, response.headers["retry-after"]) == (503, "redis_unavailable", "1")
    assert b"10.1.2.3" not in response.body and b"password" not in response.body


def test_who_sends_too_slowly_is_not_asked_to_do_it_again_on_the_same_connection():
    response = Problem.of(errors.RequestError("slow", code="body_timeout")).response()

    assert (response.status_code, response.headers["connection"]) == (400, "close")
