"""Errors about unknown names suggest the closest one, and only one that the caller may see."""

from __future__ import annotations

from pathlib import Path

import pytest

import lakebed
from lakebed.config import TopicConfig
from lakebed.errors import InvalidArgumentError, TopicNotFoundError
from lakebed.suggest import did_you_mean
from tests.cli.engine import Shell

NAMES = ("orders", "payments", "Order-Events")


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("ordres", "; did you mean 'orders'?"),
        ("PAYMENT", "; did you mean 'payments'?"),
        ("order-event", "; did you mean 'Order-Events'?"),
        ("xyz", ""),
        ("", ""),
    ],
)
def test_the_closest_name_is_suggested(name: str, end: str) -> None:
    assert did_you_mean(name, NAMES) == end


def test_an_error_does_not_repeat_a_fact_that_its_message_quotes() -> None:
    error = TopicNotFoundError("topic 'a' does not exist", topic="a", call="append")
    assert str(error) == "topic 'a' does not exist call=append"
    assert error.facts == {"topic": "a", "call": "append"}


def test_an_unknown_topic_is_named_in_the_message(tmp_path: Path) -> None:
    with lakebed.open(tmp_path / "log") as log, pytest.raises(TopicNotFoundError) as caught:
        log.append("ordres", b"x")
    assert str(caught.value) == "topic 'ordres' does not exist"
    assert caught.value.facts == {"topic": "ordres"}


def test_an_unknown_topic_setting_is_answered_with_the_closest(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="did you mean 'retention_ms'"):
        TopicConfig.of({"retention": 5})


def test_commands_suggest_topics_and_groups(tmp_path: Path) -> None:
    log = Shell(tmp_path / "log")
    log.run("topic", "create", "orders")
    log.run("group", "reset", "billing", "--topic", "orders", "--to", "latest")
    error = log.error("topic", "describe", "ordres")
    assert error["message"] == "topic 'ordres' does not exist; did you mean 'orders'?"
    assert error["facts"] == {"topic": "ordres"}
    error = log.error("group", "describe", "biling")
    assert error["message"] == "group 'biling' does not exist; did you mean 'billing'?"
    assert log.error("topic", "describe", "xyz")["message"] == "topic 'xyz' does not exist"
