"""What Spark keeps of a stream: the same text for the same position, and nobody else's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lakebed.errors import FormatTooNewError, InvalidArgumentError
from lakebed.spark.offsets import VERSION, Position, position

GIVEN = Position("spark-1", {"b": 2, "a": 1}, {"b": {10: 5, 2: 0}, "a": {0: 7}})


def test_a_position_is_the_same_text_each_time_and_is_read_back() -> None:
    document = GIVEN.document()
    assert json.dumps(document) == (
        '{"group": "spark-1", "ids": {"a": 1, "b": 2}, '
        '"offsets": {"a": {"0": 7}, "b": {"2": 0, "10": 5}}, "version": 1}'
    )
    other = Position("spark-1", {"a": 1, "b": 2}, {"a": {0: 7}, "b": {2: 0, 10: 5}})
    assert json.dumps(other.document()) == json.dumps(document)
    assert position(json.loads(json.dumps(document))) == GIVEN


def test_a_position_of_a_newer_version_is_refused_as_such() -> None:
    with pytest.raises(FormatTooNewError, match=f"version={VERSION + 1}"):
        position(GIVEN.document() | {"version": VERSION + 1, "more": []})


@pytest.mark.parametrize(
    "document",
    [
        None,
        3,
        "latest",
        [],
        {},
        {"orders": {"0": 5}},  # as Spark's Kafka source keeps it
        {"version": 1, "group": "g", "ids": {}},
        {"version": 1, "group": "g", "ids": {"a": "1"}, "offsets": {}},
        {"version": 1, "group": "g", "ids": [], "offsets": {}},
        {"version": 1, "group": "g", "ids": {}, "offsets": {"a": 5}},
        {"version": 1, "group": "g", "ids": {}, "offsets": {"a": {"x": 5}}},
        {"version": 1, "group": "g", "ids": {}, "offsets": {"a": {"0": -1}}},
        {"version": 1, "group": "g", "ids": {}, "offsets": {"a": {"0": True}}},
    ],
)
def test_a_checkpoint_of_something_else_is_refused(document: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="a separate checkpoint"):
        position(document)
