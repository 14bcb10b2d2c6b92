"""Which failures of a flow may pass when its batch is repeated, told from what Spark says."""

from __future__ import annotations

import pytest

from lakebed.errors import (
    BadRecordError,
    DataLossError,
    FencedError,
    InvalidArgumentError,
    LakebedError,
    PipelineChangedError,
    QuotaExceededError,
    ServerUnavailableError,
    TopicNotFoundError,
    TransactionTimedOutError,
    UnknownOutcomeError,
)
from lakebed.spark.pipeline.failures import failure_of, may_pass

TRACE = "Traceback (most recent call last):\n  File\n"
STREAM = "[STREAM_FAILED] Query [id = 1] terminated with exception: "


@pytest.mark.parametrize(
    ("kind", "passes"),
    [
        (QuotaExceededError, True),
        (ServerUnavailableError, True),
        (TransactionTimedOutError, True),
        (UnknownOutcomeError, True),
        (BadRecordError, False),
        (DataLossError, False),
        (FencedError, False),
        (InvalidArgumentError, False),
        (PipelineChangedError, False),
        (TopicNotFoundError, False),
    ],
)
def test_errors_of_the_log_say_whether_they_may_pass(
    kind: type[LakebedError], passes: bool
) -> None:
    said = f"{STREAM}{TRACE}lakebed.errors.{kind.__name__}: no\n\tat java.net.SocketException"
    error = failure_of("paid", said)
    assert type(error) is kind
    assert may_pass(error, said) is passes


@pytest.mark.parametrize(
    ("said", "passes"),
    [
        ("org.apache.spark.SparkException: Python worker failed to connect back.", True),
        ("Caused by: Python worker exited unexpectedly (crashed)\njava.io.EOFException", True),
        (f"{TRACE}PySparkRuntimeError: [CANNOT_OPEN_SOCKET] Can not open socket", True),
        ("ExecutorLostFailure (executor 1 exited caused by one of the running tasks)", True),
        ("org.apache.spark.shuffle.FetchFailedException: lost", True),
        ("java.net.ConnectException: Connection refused", True),
        ("java.io.IOException: No space left on device", True),
        (f"{TRACE}requests.exceptions.ConnectionError: refused\n\tat org.apache", True),
        (f"{TRACE}TimeoutError: timed out\n\tat org.apache", True),
        (f"{TRACE}ConnectionResetError: [Errno 104] reset\n\tat org.apache", True),
        (f"{TRACE}ValueError: ConnectionError: in a record\njava.net.SocketException", False),
        (f"{TRACE}ZeroDivisionError: division by zero\n\tat org.apache", False),
        ("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", False),
        ("[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column cannot be resolved", False),
        ("", False),
    ],
)
def test_failures_of_spark_may_pass_if_something_was_lost_or_did_not_answer(
    said: str, passes: bool
) -> None:
    error = failure_of("paid", f"{STREAM}{said}")
    assert error.code == "flow_failed"
    assert may_pass(error, f"{STREAM}{said}") is passes
