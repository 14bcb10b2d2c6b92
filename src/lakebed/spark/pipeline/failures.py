"""What a flow failed of, in one sentence: found in what Spark says, which is mostly traces."""

from __future__ import annotations

import re
from typing import Final

from lakebed.errors import BadRecordError, FlowFailedError, LakebedError
from lakebed.spark.failures import error_in, raised_in
from lakebed.spark.pipeline.expectations import BEGIN, END

_BAD: Final = re.compile(re.escape(BEGIN) + r"(.*?)\|(.*?)\|(.*?)" + re.escape(END), re.DOTALL)
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_TERMINATED: Final = re.compile(r"terminated with exception: (.*)", re.DOTALL)


def failure_of(flow: str, said: str) -> LakebedError:
    """Give the error behind a failed query."""
    bad = _BAD.search(said)
    if bad is not None:
        return _bad_record(flow, *bad.groups())
    ours = error_in(said, flow=flow)
    if ours is not None:
        return ours
    return FlowFailedError("a flow failed", flow=flow, cause=_cause(said))


def first_line(said: str) -> str:
    """Give what an error of Spark says, without the plan and the trace that follow."""
    lines = [line for line in said.strip().splitlines() if line.strip()]
    return _SQLSTATE.sub("", lines[0]).rstrip(" ;") if lines else "Spark gives no reason"


def _bad_record(flow: str, who: str, reason: str, record: str) -> BadRecordError:
    what = "is not as expected" if who.startswith("expectation=") else "cannot be decoded"
    facts = dict(each.partition("=")[::2] for each in who.split())
    return BadRecordError(f"a record {what}: {reason}", flow=flow, **facts, record=record)


def _cause(said: str) -> str:
    """Give the error that a Python function raised; if there is none, what Spark says first."""
    raised = raised_in(said)
    if raised is not None:
        return raised
    inner = _TERMINATED.search(said)
    return first_line(inner[1] if inner else said)
