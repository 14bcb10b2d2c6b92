"""Why a flow failed, in one sentence: found in Spark's message, which is mostly traces."""

from __future__ import annotations

import re
from typing import Final

from lakebed.errors import (
    BadRecordError,
    FlowFailedError,
    LakebedError,
    TransactionTimedOutError,
    UnknownOutcomeError,
)
from lakebed.spark.failures import error_in, python_error_in
from lakebed.spark.pipeline.expectations import BEGIN, END

_BAD: Final = re.compile(re.escape(BEGIN) + r"(.*?)\|(.*?)\|(.*?)" + re.escape(END), re.DOTALL)
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w+.*", re.DOTALL)
_TERMINATED: Final = re.compile(r"terminated with exception: (.*)", re.DOTALL)

_REPEATED: Final = (TransactionTimedOutError, UnknownOutcomeError)
"""Errors after which a batch may be repeated, since the log recognises what it has written."""
_LOST: Final = re.compile(
    r"Python worker (?:failed to connect back|exited unexpectedly)|CANNOT_OPEN_SOCKET"
    r"|ExecutorLostFailure|FetchFailedException"
)
"""Spark's messages about a lost worker, executor or shuffle file."""
_UNREACHABLE: Final = re.compile(
    r"java\.net\.(?:Connect|NoRouteToHost|Socket|SocketTimeout|UnknownHost)Exception"
    r"|java\.util\.concurrent\.TimeoutException|RpcTimeoutException|No space left on device"
    r"|AWSClientIOException|AWSServiceThrottledException|AWSStatus500Exception"
)
"""Java's messages about a machine or store that does not answer, and a full disk."""
_NETWORK: Final = re.compile(
    r"(?:[\w.]+\.)?(?:Connection\w*|BrokenPipe|Timeout)(?:Error|Exception):"
)
"""How an error begins that a Python function raises if the network fails."""


def failure_of(flow: str, said: str) -> LakebedError:
    """Return the error behind a failed query."""
    bad = _BAD.search(said)
    if bad is not None:
        return _bad_record(flow, *bad.groups())
    ours = error_in(said, flow=flow)
    if ours is not None:
        return ours
    return FlowFailedError("a flow failed", flow=flow, cause=_cause(said))


def may_pass(error: LakebedError, said: str) -> bool:
    """Return True if the batch that failed may succeed when it is repeated.

    That is so for retriable errors of the log, and for workers, machines and stores that Spark has
    lost. For everything else there is no sign that a retry would help.
    """
    if not isinstance(error, FlowFailedError):
        return error.retriable or isinstance(error, _REPEATED)
    if _LOST.search(said):
        return True
    raised = python_error_in(said)
    if raised is not None:
        return _NETWORK.match(raised) is not None
    return _UNREACHABLE.search(said) is not None


def first_line(said: str) -> str:
    """Return what an error of Spark says, without the plan and the trace that follow."""
    lines = [line for line in said.strip().splitlines() if line.strip()]
    return _SQLSTATE.sub("", lines[0]).rstrip(" ;") if lines else "Spark gives no reason"


def _bad_record(flow: str, who: str, reason: str, record: str) -> BadRecordError:
    what = "is not as expected" if who.startswith("expectation=") else "cannot be decoded"
    facts = dict(fact.partition("=")[::2] for fact in who.split())
    return BadRecordError(f"a record {what}: {reason}", flow=flow, **facts, record=record)


def _cause(said: str) -> str:
    """Return the error that a Python function raised; if there is none, what Spark says first."""
    raised = python_error_in(said)
    if raised is not None:
        return raised
    inner = _TERMINATED.search(said)
    return first_line(inner[1] if inner else said)
