"""Columns of integers and times as numbers, for checks and searches over whole batches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def column_numbers(batch: pa.RecordBatch | pa.Table, name: str) -> npt.NDArray[np.int64]:
    """Return a column of integers or times as numbers, times in microseconds."""
    column = batch.column(name)
    numbers: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
    return numbers


def ascending(offsets: npt.NDArray[np.int64]) -> bool:
    """Return whether each offset is greater than the one before."""
    return bool((offsets[1:] > offsets[:-1]).all())
