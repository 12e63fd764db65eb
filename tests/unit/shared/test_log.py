"""The log: one JSON object a line, from our code and from libraries, and no local variables in it."""

import json
import logging

import pytest
import structlog

from shared import log
from shared.sections import LogSettings

PROMPT = "a secret of the client"


@pytest.fixture
def lines(capsys):
    """Configures and returns a function that reads what was logged; everything is as before afterwards."""
    root, before = logging.getLogger(), logging.getLogger().handlers[:]
    level = root.level

    def configured(**fields):
        log.configure(LogSettings(**fields), process="test")

        def read():
            return capsys.readouterr().err.splitlines()

        return read

    yield configured
    root.handlers[:] = before
    root.setLevel(level)
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()


def fail(prompt: str):
    words = prompt.split()
    raise ValueError(f"{len(words)} words are too many")


def test_a_line_is_one_json_object_with_its_process_level_and_time(lines):
    read = lines(format="json")

    structlog.get_logger().info("request.finished", tokens=3, text="two\nlines")

    [line] = read()
    said = json.loads(line)
    assert said.pop("timestamp").endswith("Z")
    assert said == {"event": "request.finished", "level": "info", "process": "test", "tokens": 3, "text": "two\nlines"}


def test_libraries_lines_look_the_same(lines):
    read = lines(format="json")

    logging.getLogger("some.library").warning("count %d", 3)

    said = json.loads(read()[0])
    assert (said["event"], said["level"], said["process"]) == ("count 3", "warning", "test")


def test_not_a_terminal_means_json(lines):
    read = lines(format="auto")

    structlog.get_logger().info("a.b")

    assert json.loads(read()[0])["event"] == "a.b"


def test_what_is_below_the_level_is_not_said(lines):
    read = lines(format="json", level="warning")

    structlog.get_logger().info("a.b")
    logging.getLogger("some.library").info("c")
    logging.getLogger("httpx").info("GET ...")
    structlog.get_logger().warning("d.e")

    assert [json.loads(line)["event"] for line in read()] == ["d.e"]


def test_the_access_log_is_silent_since_a_request_has_one_line_of_its_own(lines):
    read = lines(format="json")

    logging.getLogger("uvicorn.access").error("GET /")

    assert read() == []


@pytest.mark.parametrize("shape", ["json", "console"])
def test_a_traceback_shows_where_and_never_the_values_of_variables(lines, shape):
    """They hold prompts."""
    read = lines(format=shape)

    try:
        fail(PROMPT)
    except ValueError:
        structlog.get_logger().exception("request.failed")
        logging.getLogger("some.library").exception("it failed")

    said = "\n".join(read())
    assert "words are too many" in said
    assert PROMPT not in said
    assert "secret" not in said
