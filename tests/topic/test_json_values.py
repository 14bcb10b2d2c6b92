"""JSON values that a type does not have are refused, and never made to fit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakebed.topic.json_values import UnfitError, from_json, to_json
from lakebed.topic.times import python_values, texts


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.5),
        (pa.int32(), True),
        (pa.int64(), "1"),
        (pa.float64(), False),
        (pa.list_(pa.string()), "text"),
        (pa.list_(pa.string()), {"a": "b"}),
        (pa.list_(pa.int64()), [1, 1.5]),
        (pa.map_(pa.string(), pa.int64()), {"a": 0.5}),
        (pa.struct({"a": pa.list_(pa.int64())}), {"a": "12"}),
        (pa.decimal128(4, 2), True),
    ],
    ids=repr,
)
def test_what_arrow_would_bend_is_refused(kind: pa.DataType, value: Any) -> None:
    convert = from_json(kind)
    assert convert is not None
    with pytest.raises(UnfitError, match="value"):
        convert(value)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.int64(), 2.0, 2),
        (pa.int64(), None, None),
        (pa.float64(), 1, 1),
        (pa.float64(), "-Infinity", float("-inf")),
        (pa.list_(pa.string()), ["a", None], ["a", None]),
        (pa.list_(pa.int64()), None, None),
        (pa.list_(pa.binary()), ["a", {"base64": "/w=="}], [b"a", b"\xff"]),
    ],
    ids=repr,
)
def test_what_fits_is_taken(kind: pa.DataType, value: Any, expected: Any) -> None:
    convert = from_json(kind)
    assert convert is not None
    assert convert(value) == expected


def test_times_beyond_the_years_that_python_knows_are_texts_with_longer_years() -> None:
    far_us, far_days = 2**62, 2**30
    column = pa.chunked_array([pa.array([far_us, 0], pa.timestamp("us", "UTC"))])
    assert texts(column) == ["148108-07-06T14:00:27.387904Z", "1970-01-01T00:00:00.000000Z"]
    kind = pa.struct([("at", pa.timestamp("us")), ("day", pa.date32())])
    values = python_values(pa.chunked_array([pa.array([{"at": far_us, "day": far_days}], kind)]))
    convert = to_json(kind)
    assert convert is not None
    assert convert(values[0]) == {"at": "148108-07-06T14:00:27.387904", "day": "2941775-04-07"}
