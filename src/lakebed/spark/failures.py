"""What a query failed of, in one sentence: found in what Spark says, which is mostly stack traces.

Functions that Spark runs in Python raise the log's own errors there; what arrives here is their
text, within that of two or three other errors.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

from lakebed import errors
from lakebed.errors import JobFailedError, LakebedError

_OURS: Final = re.compile(r"lakebed\.errors\.(\w+Error): (.*)")
_PYTHONS: Final = re.compile(
    r"^((?!org\.|java\.|py4j\.)[A-Za-z_][\w.]*(?:Error|Exception)): (.+)$", re.MULTILINE
)
_CAUSE_CHARACTERS: Final = 500
_BRIDGE: Final = "An error occurred while calling"
"""What stands before an error of Java, and says nothing."""


def error_in(said: str, **facts: object) -> LakebedError | None:
    """Return the error of the log that a text of Spark's speaks of; None if it speaks of none."""
    found = _OURS.findall(said)
    if not found:
        return None
    name, message = found[-1]
    kind = getattr(errors, name, JobFailedError)
    error: LakebedError = kind(message.strip(), **facts)
    return error


def raised_in(said: str) -> str | None:
    """Return the error that a Python function raised; None if a text of Spark's shows none."""
    raised = _PYTHONS.findall(said)
    if raised and "Traceback (most recent call last)" in said:
        return ": ".join(raised[-1])
    return None


def cause_in(said: str) -> str:
    """Return the error that a Python function raised; if there is none, what Spark says first."""
    raised = raised_in(said)
    if raised is not None:
        return raised
    lines = (line.strip() for line in said.splitlines())
    first = next((line for line in lines if line and not line.startswith(_BRIDGE)), "")
    return first.removeprefix(": ")[:_CAUSE_CHARACTERS]


@contextlib.contextmanager
def told(job: str, **facts: object) -> Iterator[None]:
    """Let Spark's errors be the log's own: the one that it speaks of, or `JobFailedError`."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        said = str(error)
        ours = error_in(said)
        if ours is not None:
            raise ours from error
        raise JobFailedError(
            f"Spark failed in the job {job}", **facts, cause=cause_in(said)
        ) from error
