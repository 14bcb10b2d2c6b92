"""How often the S3 library retries a request before the store's own attempts.

Once: a part of a large upload that fails need not cost the parts before it, and an endpoint that is
dead is found out soon. It is named in the option `s3.retry-strategy-impl`, hence imported late.
"""

from __future__ import annotations

from pyarrow.fs import AwsStandardS3RetryStrategy


class RepeatOnce(AwsStandardS3RetryStrategy):  # type: ignore[misc]
    """Two attempts at each request."""

    def __init__(self) -> None:
        super().__init__(max_attempts=2)
