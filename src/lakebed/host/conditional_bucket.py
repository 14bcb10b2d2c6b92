"""A conditional store in a bucket: S3 and compatible services, Google, Azure, through obstore.

pyarrow ignores `If-None-Match` without an error, so it cannot be used here. Options have
pyiceberg's names, as in `host/store.py`, and the library's own retries are turned off: it would
repeat a creation that had succeeded and report that the object exists.

| the library raises | meaning for a conditional write |
|---|---|
| `AlreadyExistsError`, `PreconditionError` | refused; also S3's 409, where nothing was written |
| `NotFoundError` for `put_if` | refused: the object is gone |
| `PermissionDeniedError`, `UnauthenticatedError` | unknown, with `StoreDeniedError` as the cause |
| anything else | unknown: the answer was cut, late, or an error of the server |
"""

from __future__ import annotations

import contextlib
import json
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lakebed.errors import (
    InvalidArgumentError,
    LakebedError,
    PackageMissingError,
    StoreDeniedError,
    StoreNotFoundError,
    StoreUnavailableError,
)
from lakebed.host.conditional import DONE, REFUSED, Answer, Outcome, Versioned
from lakebed.host.store_failures import secrets_of

_S3: Final = {
    "s3.endpoint": "endpoint",
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token",
    "s3.region": "region",
    "client.access-key-id": "access_key_id",
    "client.secret-access-key": "secret_access_key",
    "client.session-token": "session_token",
    "client.region": "region",
}
_GCS: Final = {"gcs.service.host": "base_url", "gcs.credential-file": "service_account"}
_AZURE: Final = {
    "adls.account-name": "account_name",
    "adls.account-key": "account_key",
    "adls.sas-token": "sas_token",
    "adls.tenant-id": "tenant_id",
    "adls.client-id": "client_id",
    "adls.client-secret": "client_secret",
    "adls.account-host": "endpoint",
}
_SCHEMES: Final[dict[str, tuple[str, dict[str, str]]]] = {
    **dict.fromkeys(("s3", "s3a", "s3n"), ("S3Store", _S3)),
    **dict.fromkeys(("gs", "gcs"), ("GCSStore", _GCS)),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), ("AzureStore", _AZURE)),
}

_TIMEOUT_SECONDS: Final = "10"
_CONNECT_SECONDS: Final = "3"


class BucketStore:
    """The objects below a prefix of a bucket. Any thread."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        self.location = location.rstrip("/")
        self._secrets = secrets_of(options)
        try:
            import obstore
        except ImportError as error:
            raise PackageMissingError(
                "Lakebed is installed without the extra 'store', which a log in a bucket needs; "
                "install it: pip install '.[store]' in a clone of the repository",
                missing="obstore",
            ) from error
        self._library: Any = obstore
        self._absent = (obstore.exceptions.NotFoundError, FileNotFoundError)
        self._store = _connect(location, options)

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
                result = self._library.get(self._store, name)
                data = bytes(result.bytes())
            except self._absent as error:
                if "NoSuchBucket" in str(error):
                    raise
                return None
        meta = result.meta
        known = {part: meta[part] for part in ("e_tag", "version") if meta[part] is not None}
        return Versioned(data, json.dumps(known))

    def put(self, name: str, data: bytes) -> None:
        """See `ConditionalStore`."""
        with self._failures("writing", name):
            self._library.put(self._store, name, data, use_multipart=False)

    def delete(self, name: str) -> None:
        """See `ConditionalStore`."""
        with self._failures("removing", name):
            try:
                self._library.delete(self._store, name)
            except self._absent as error:
                if "NoSuchBucket" in str(error):
                    raise

    def _write(self, doing: str, name: str, data: bytes, mode: Any) -> Answer:
        errors = self._library.exceptions
        try:
            with self._failures(doing, name):
                try:
                    self._library.put(self._store, name, data, mode=mode, use_multipart=False)
                except (errors.AlreadyExistsError, errors.PreconditionError):
                    return REFUSED
                except self._absent as error:
                    if mode == "create" or "NoSuchBucket" in str(error):
                        raise
                    return REFUSED
        except (StoreUnavailableError, StoreDeniedError, StoreNotFoundError) as error:
            return Answer(Outcome.UNKNOWN, error)
        return DONE

    @contextlib.contextmanager
    def _failures(self, doing: str, name: str) -> Iterator[None]:
        """Raise a failure of the library as ours, with no secret in it."""
        errors = self._library.exceptions
        kinds: dict[type[Exception], type[LakebedError]] = {
            errors.NotFoundError: StoreNotFoundError,
            FileNotFoundError: StoreNotFoundError,
            PermissionError: StoreDeniedError,
            errors.PermissionDeniedError: StoreDeniedError,
            errors.UnauthenticatedError: StoreDeniedError,
            errors.InvalidPathError: InvalidArgumentError,
        }
        try:
            yield
        except (errors.BaseError, OSError) as error:
            kind = kinds.get(type(error), StoreUnavailableError)
            # The library's text has its whole response in it; the first line says what failed.
            reason = str(error).strip().partition("\n")[0][:300]
            for secret in self._secrets:
                reason = reason.replace(secret, "***")
            raise kind(
                f"{doing} an object failed: {reason}", uri=f"{self.location}/{name}"
            ) from None


def _connect(location: str, options: Mapping[str, str]) -> Any:
    from obstore import store as stores

    parts = urllib.parse.urlsplit(location)
    if parts.scheme not in _SCHEMES or not parts.netloc or parts.password is not None:
        raise InvalidArgumentError(
            "location must be SCHEME://BUCKET/PREFIX without a password",
            schemes=",".join(_SCHEMES),
        )
    kind, names = _SCHEMES[parts.scheme]
    given: dict[str, Any] = {
        names[option]: text for option, text in options.items() if option in names
    }
    bucket = parts.netloc.partition("@")[0]
    if kind == "S3Store" and "endpoint" in given:
        given.setdefault("region", "us-east-1")
        if options.get("s3.force-virtual-addressing") == "true":
            given["virtual_hosted_style_request"] = True
    client = {
        "timeout": f"{options.get('s3.request-timeout', _TIMEOUT_SECONDS)}s",
        "connect_timeout": f"{options.get('s3.connect-timeout', _CONNECT_SECONDS)}s",
        "allow_http": str(given.get("endpoint", "")).startswith("http://"),
    }
    try:
        return getattr(stores, kind)(
            bucket,
            prefix=parts.path.strip("/") or None,
            client_options=client,
            retry_config={"max_retries": 0},
            **given,
        )
    except Exception as error:
        # The cause is left out: it may repeat an option's value.
        raise InvalidArgumentError(
            "the options of the object store are not usable",
            location=location,
            options=sorted(options),
            kind=type(error).__name__,
        ) from None
