"""JSON values that a type does not have are refused, and never made to fit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from lakebed.topic.json_values import UnfitError, from_json


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
