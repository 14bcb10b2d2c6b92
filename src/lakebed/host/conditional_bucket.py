"""A conditional store in a bucket: S3 and compatible services, Google, Azure, through obstore.

pyarrow ignores `If-None-Match` without an error, so it cannot be used here. Options have
pyiceberg's names, as in `host/store.py`, and the library's own retries are turned off: it would
repeat a creation that had succeeded and report that the object exists.

| the library raises | meaning for a conditional write |
|---|---|
| `AlreadyExistsError`, `PreconditionError` | refused; also S3's 409, where nothing was written |
| `FileNotFoundError` for `put_if` | refused: the object is gone |
| `PermissionDeniedError`, `UnauthenticatedError` | unknown, with `StoreDeniedError` as the cause |
| anything else | unknown: the answer was cut, late, or an error of the server |
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from lakebed.errors import StoreDeniedError, StoreNotFoundError, StoreUnavailableError
from lakebed.host.bucket_options import connect
from lakebed.host.conditional import DONE, REFUSED, Answer, Outcome, Versioned
from lakebed.host.store_failures import is_missing_bucket, secrets_of, translate_bucket_errors


class BucketStore:
    """The objects below a prefix of a bucket. Any thread."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        self.location = location.rstrip("/")
        self._secrets = secrets_of(options)
        self._client = connect(location, options, repetitions=0)

    def put_new(self, name: str, data: bytes) -> Answer:
        """See `ConditionalStore`."""
        return self._write("creating", name, data, "create")

    def put_if(self, name: str, data: bytes, version: str) -> Answer:
        """See `ConditionalStore`."""
        return self._write("replacing", name, data, json.loads(version))

    def get(self, name: str) -> Versioned | None:
        """See `ConditionalStore`."""
        with self._failures("reading", name):
            try:
                result = self._client.get(name)
                data = bytes(result.bytes())
            except FileNotFoundError as error:
                if is_missing_bucket(error):
                    raise
                return None
        meta = result.meta
        version = {part: meta[part] for part in ("e_tag", "version") if meta[part] is not None}
        return Versioned(data, json.dumps(version))

    def put(self, name: str, data: bytes) -> None:
        """See `ConditionalStore`."""
        with self._failures("writing", name):
            self._client.put(name, data, use_multipart=False)

    def delete(self, name: str) -> None:
        """See `ConditionalStore`."""
        with self._failures("removing", name):
            try:
                self._client.delete(name)
            except FileNotFoundError as error:
                if is_missing_bucket(error):
                    raise

    def _write(self, doing: str, name: str, data: bytes, mode: Any) -> Answer:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            with self._failures(doing, name):
                try:
                    self._client.put(name, data, mode=mode, use_multipart=False)
                except (AlreadyExistsError, PreconditionError):
                    return REFUSED
                except FileNotFoundError as error:
                    if mode == "create" or is_missing_bucket(error):
                        raise
                    return REFUSED
        except (StoreUnavailableError, StoreDeniedError, StoreNotFoundError) as error:
            return Answer(Outcome.UNKNOWN, error)
        return DONE

    def _failures(self, doing: str, name: str) -> contextlib.AbstractContextManager[None]:
        return translate_bucket_errors(doing, f"{self.location}/{name}", self._secrets)
