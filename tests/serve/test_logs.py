"""Log lines of the process that serves."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from lakebed.errors import (
    AccessDeniedError,
    InvalidArgumentError,
    TopicNotFoundError,
    UnauthenticatedError,
)
from lakebed.serve import refusals
from lakebed.serve.logs import MASK, configure, unconfigure

LOG = logging.getLogger("lakebed.serve.test")
TOKEN = "lkb_k3f9Qa_Zm9vYmFyLWJheg-_x"


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    """Leave the logger as it was."""
    logger = logging.getLogger("lakebed")
    handlers = list(logger.handlers)
    yield
    for each in [each for each in logger.handlers if each not in handlers]:
        unconfigure(each)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_text_is_one_line_with_time_level_logger_message_and_facts(stream: io.StringIO) -> None:
    configure("text", "info", stream)
    LOG.warning("a call was refused: call=%s", "append", extra={"principal": "ann", "why": "a b"})
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z warning lakebed\.serve\.test "
        r'a call was refused: call=append principal=ann why="a b"\n',
        stream.getvalue(),
    )


def test_json_is_one_object_a_line(stream: io.StringIO) -> None:
    configure("json", "info", stream)
    LOG.info("serving: port=%d", 4747, extra={"principal": "ann", "level": "mine"})
    (line,) = lines(stream)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "lakebed.serve.test",
        "message": "serving: port=4747",
        "principal": "ann",
    }


def test_a_level_keeps_what_is_below_it_away(stream: io.StringIO) -> None:
    configure("text", "warning", stream)
    LOG.info("not this")
    LOG.error("this")
    assert stream.getvalue().splitlines()[0].endswith("error lakebed.serve.test this")
    assert stream.getvalue().count("\n") == 1


def test_other_loggers_are_not_concerned(stream: io.StringIO) -> None:
    configure("text", "debug", stream)
    logging.getLogger("somebody").error("else")
    logging.getLogger("lakebedding").error("else")
    assert stream.getvalue() == ""


def test_configured_again_every_line_is_written_once(stream: io.StringIO) -> None:
    configure("json", "info", io.StringIO())
    configure("text", "info", stream)
    LOG.info("once")
    assert stream.getvalue().count("once") == 1


@pytest.mark.parametrize("style", ["text", "json"])
def test_tokens_are_masked_wherever_they_stand(style: str, stream: io.StringIO) -> None:
    configure(style, "info", stream)
    LOG.info("authorization: Bearer %s, again %s.", TOKEN, TOKEN, extra={"given": TOKEN})
    try:
        raise ValueError(f"bad token {TOKEN}")
    except ValueError:
        LOG.exception("failed")
    LOG.info(f"as it is {TOKEN}")
    written = stream.getvalue()
    assert "Zm9v" not in written
    assert "k3f9Qa" not in written
    assert written.count(MASK) >= 5
    assert written.count("\n") == 3


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_caller_cannot_add_a_line(style: str, stream: io.StringIO) -> None:
    configure(style, "info", stream)
    for sign in ("\n", "\r\n", "\x1b[2J", "\u2028", "\x85"):
        LOG.info("topic=%s", f"a{sign}error forged", extra={"name_given": f"b{sign}c"})
    assert len(stream.getvalue().splitlines()) == 5
    assert "\x1b" not in stream.getvalue()


def test_an_error_of_ours_is_told_with_its_code(stream: io.StringIO) -> None:
    configure("json", "info", stream)
    error = TopicNotFoundError("there is no such topic", topic="t")
    LOG.warning("refused: %s", error)
    try:
        raise error
    except TopicNotFoundError:
        LOG.exception("failed")
    told, raised = lines(stream)
    assert told["error_code"] == raised["error_code"] == "topic_not_found"
    assert "exception" not in told
    assert raised["exception"].startswith("Traceback")
    configure("text", "info", text := io.StringIO())
    LOG.warning("refused: %s", error)
    assert text.getvalue().endswith(" topic=t error_code=topic_not_found\n")


def test_refused_calls_have_a_line_each_up_to_a_limit(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [100.0]
    monkeypatch.setattr("lakebed.serve.refusals.monotonic", lambda: seconds[0])
    monkeypatch.setattr(refusals, "_limit", refusals._Limit(2))
    configure("json", "info", stream)
    denied = AccessDeniedError("not allowed", principal="ann", call="put", topic="t")
    for _ in range(5):
        refusals.tell("put", denied, "ipv4:127.0.0.1:5")
    refusals.tell("put", TopicNotFoundError("there is no such topic"), "")  # nobody needs to know
    seconds[0] += 1
    refusals.tell("hello", UnauthenticatedError("the call has no token"), "ipv4:127.0.0.1:6")
    first, _, untold, last = lines(stream)
    assert first["message"] == "a call was refused: not allowed principal=ann call=put topic=t"
    assert (first["level"], first["error_code"]) == ("warning", "access_denied")
    assert first["peer"] == "ipv4:127.0.0.1:5"
    assert untold["message"] == "more calls were refused: calls=3"
    assert (last["call"], last["error_code"]) == ("hello", "unauthenticated")


def test_a_format_or_level_that_does_not_exist_is_refused(stream: io.StringIO) -> None:
    for style, level in (("xml", "info"), ("text", "loud"), ("text", "INFO")):
        with pytest.raises(InvalidArgumentError, match="must be one of"):
            configure(style, level, stream)
