"""Why a query failed, in one sentence: found in Spark's message, which is mostly stack traces.

Functions that Spark runs in Python raise Lakebed's errors in another process; only their text
arrives here, inside the text of two or three other errors.
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
"""The line before a Java error; it carries no information."""


def error_in(said: str, **facts: object) -> LakebedError | None:
    """Return the Lakebed error that a message of Spark contains; None if it contains none."""
    matches = _OURS.findall(said)
    if not matches:
        return None
    name, message = matches[-1]
    kind = getattr(errors, name, JobFailedError)
    error: LakebedError = kind(message.strip(), **facts)
    return error


def python_error_in(said: str) -> str | None:
    """Return the error that a Python function raised; None if Spark's message shows none."""
    raised = _PYTHONS.findall(said)
    if raised and "Traceback (most recent call last)" in said:
        return ": ".join(raised[-1])
    return None


def cause_in(said: str) -> str:
    """Return the error that a Python function raised; if there is none, what Spark says first."""
    raised = python_error_in(said)
    if raised is not None:
        return raised
    lines = (line.strip() for line in said.splitlines())
    first = next((line for line in lines if line and not line.startswith(_BRIDGE)), "")
    return first.removeprefix(": ")[:_CAUSE_CHARACTERS]


@contextlib.contextmanager
def translate_failures(job: str, **facts: object) -> Iterator[None]:
    """Raise a Lakebed error for an error of Spark within the block.

    That is the error that Spark's message contains, or a `JobFailedError` with the cause.
    """
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
