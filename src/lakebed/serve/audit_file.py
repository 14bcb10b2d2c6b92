"""The audit as a file of JSON lines, beside the topic `__audit`: administrators cannot purge it.

The file is made with mode 0600 and only appended to. One that was moved away by log rotation is
made again by the next record. What cannot be written is counted, and the count is logged.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from lakebed.errors import InvalidArgumentError
from lakebed.host import AppendFile
from lakebed.reports.audit import AuditRecord

_log = logging.getLogger("lakebed.serve")
_WARN_SECONDS: Final = 10.0


class AuditFile:
    """Appends records to a file. Any thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = AppendFile(Path(path))
        self._guard = threading.Lock()
        self._warned: float | None = None
        self.lost = 0
        """How many records could not be written."""
        try:
            self._file.append(b"")
        except OSError as error:
            raise InvalidArgumentError(
                "the file of the audit cannot be written", audit_file=path, why=error.strerror
            ) from error

    def append(self, records: Sequence[AuditRecord]) -> None:
        """Append records, one line each; those that cannot be written are counted."""
        lines = b"".join(_line(record) for record in records)
        with self._guard:
            try:
                self._file.append(lines)
            except OSError as error:
                self.lost += len(records)
                self._file.close()
                self._warn(error)

    def reopen(self) -> None:
        """Close the file; the next record opens it again."""
        with self._guard:
            self._file.close()

    def _warn(self, error: OSError) -> None:
        now = time.monotonic()
        if self._warned is None or now - self._warned >= _WARN_SECONDS:
            self._warned = now
            _log.warning(
                "the file of the audit cannot be written: file=%s lost=%d why=%s",
                self._path,
                self.lost,
                error.strerror,
            )


def _line(record: AuditRecord) -> bytes:
    time = datetime.fromtimestamp(record.time / 1_000_000, UTC)
    values = {**record._asdict(), "time": time.isoformat(timespec="microseconds")}
    return json.dumps(values).encode() + b"\n"
