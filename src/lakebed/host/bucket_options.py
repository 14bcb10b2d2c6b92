"""How a bucket is reached: pyiceberg's options, translated to those of obstore.

| scheme | service |
|---|---|
| `s3`, `s3a`, `s3n` | Amazon S3 and compatible services |
| `oss` | Alibaba, whose buckets are part of the host name |
| `gs`, `gcs` | Google |
| `abfs`, `abfss`, `wasb`, `wasbs` | Azure; `CONTAINER@ACCOUNT.HOST` names the account as well |

A misspelt option has no effect, as in pyiceberg. Without a key in the options, credentials come
from the environment, the profile of `~/.aws/credentials`, or the machine's role.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from lakebed.errors import ClosedError, InvalidArgumentError, LakebedError
from lakebed.host.bucket_credentials import s3_credentials
from lakebed.host.forks import watch_forks

_Names = dict[str, tuple[str, ...]]
"""obstore's options, and pyiceberg's names for each: the first of them that is given counts."""

_S3_DEFAULTS: Final = {
    "s3.connect-timeout": "3",
    "s3.request-timeout": "10",
}
"""A request fails when no byte has come for this many seconds. The user's options win."""

_S3: Final[_Names] = {
    "endpoint": ("s3.endpoint",),
    "access_key_id": ("s3.access-key-id", "client.access-key-id"),
    "secret_access_key": ("s3.secret-access-key", "client.secret-access-key"),
    "session_token": ("s3.session-token", "client.session-token"),
    "region": ("s3.region", "client.region"),
    "skip_signature": ("s3.anonymous",),
    "server_side_encryption": ("s3.server-side-encryption",),
    "sse_kms_key_id": ("s3.sse-kms-key-id",),
}
_GCS: Final[_Names] = {
    "base_url": ("gcs.service.host",),
    "bearer_token": ("gcs.oauth2.token",),
    "service_account": ("gcs.credential-file",),
}
_AZURE: Final[_Names] = {
    "account_name": ("adls.account-name",),
    "account_key": ("adls.account-key",),
    "sas_key": ("adls.sas-token",),
    "token": ("adls.token",),
    "tenant_id": ("adls.tenant-id",),
    "client_id": ("adls.client-id",),
    "client_secret": ("adls.client-secret",),
    "endpoint": ("adls.account-host",),
    "skip_signature": ("adls.anon",),
}
_SCHEMES: Final[dict[str, tuple[str, _Names]]] = {
    **dict.fromkeys(("s3", "s3a", "s3n", "oss"), ("S3Store", _S3)),
    **dict.fromkeys(("gs", "gcs"), ("GCSStore", _GCS)),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), ("AzureStore", _AZURE)),
}
BUCKET_SCHEMES: Final = tuple(_SCHEMES)

_ADDRESSES: Final = ("endpoint", "base_url")
_UNLIMITED: Final = timedelta(days=1)
"""For a whole request: a large download takes as long as bytes come."""


def with_defaults(options: Mapping[str, str]) -> dict[str, str]:
    """Return options with what is better than pyiceberg's defaults; those that are given win."""
    effective = {**_S3_DEFAULTS, **options}
    if "s3.endpoint" in effective and "client.region" not in effective:
        # Without a region pyiceberg asks Amazon, even if the endpoint is another.
        effective.setdefault("s3.region", "us-east-1")
    return effective


def connect(
    location: str, options: Mapping[str, str], *, repetitions: int, more_seconds: float = 0
) -> Any:
    """Return obstore's client of a bucket and prefix; nothing is asked of the bucket.

    A request is repeated `repetitions` times by the library. Its answer may take the seconds of
    `s3.request-timeout` and `more_seconds`, for which a large upload has a use: the time to send a
    request is part of them.
    """
    parts = urllib.parse.urlsplit(location)
    if parts.scheme not in _SCHEMES or not parts.netloc or parts.password is not None:
        raise InvalidArgumentError(
            "location must be SCHEME://BUCKET/PREFIX without a password",
            schemes=",".join(_SCHEMES),
        )
    _threads.check()
    try:
        return _connect(parts, with_defaults(options), repetitions, more_seconds)
    except LakebedError:
        raise
    except Exception as error:
        # The cause is left out: it may repeat an option's value.
        raise InvalidArgumentError(
            "the options of the object store are not usable",
            location=location,
            options=sorted(options),
            kind=type(error).__name__,
        ) from None


def _connect(
    parts: urllib.parse.SplitResult,
    options: Mapping[str, str],
    repetitions: int,
    more_seconds: float,
) -> Any:
    from obstore import store as stores

    kind, names = _SCHEMES[parts.scheme]
    bucket, _, host = parts.netloc.partition("@")
    config: dict[str, Any] = {
        name: next(options[option] for option in choices if option in options)
        for name, choices in names.items()
        if any(option in options for option in choices)
    }
    if kind == "S3Store":
        _complete_s3(config, options, bucket, oss=parts.scheme == "oss")
    elif kind == "AzureStore":
        _complete_azure(config, options, host)
    client: dict[str, Any] = {
        "timeout": _UNLIMITED,
        "read_timeout": _seconds(options["s3.request-timeout"], more_seconds),
        "connect_timeout": _seconds(options["s3.connect-timeout"]),
    }
    if "s3.proxy-uri" in options:
        client["proxy_url"] = options["s3.proxy-uri"]
    for name in _ADDRESSES:
        if name in config:
            config[name] = _check_address(config[name])
            client["allow_http"] = config[name].startswith("http:")
    return getattr(stores, kind)(
        bucket,
        prefix=parts.path.strip("/") or None,
        client_options=client,
        retry_config={"max_retries": repetitions},
        **config,
    )


class _Threads:
    """The threads that serve obstore's clients: a forked process has none of them."""

    forked = False

    def after_fork(self) -> None:
        """See `Forkable`."""
        self.forked = True

    def check(self) -> None:
        """Raise `ClosedError` in a forked process, where a request would wait forever."""
        if self.forked:
            raise ClosedError(
                "an object store cannot be used in a process that was forked from one that uses "
                "it; start the process by 'spawn' or 'forkserver'"
            )
        watch_forks(self)


_threads: Final = _Threads()


def _seconds(text: str, more: float = 0) -> timedelta:
    return timedelta(seconds=float(text) + more)


def _check_address(text: str) -> str:
    address = text if "://" in text else f"https://{text}"
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgumentError("the object store's endpoint is not usable")
    return address


def _complete_s3(
    config: dict[str, Any], options: Mapping[str, str], bucket: str, *, oss: bool
) -> None:
    # One request to remove an object, which every service has: not all remove many at once.
    config["disable_bulk_delete"] = True
    virtual = options.get("s3.force-virtual-addressing", str(oss)).lower()
    if "endpoint" not in config:
        if "region" not in config:
            _ask_region(config, bucket)
    elif virtual in ("true", "1", "yes", "on", "y", "t"):
        address = urllib.parse.urlsplit(_check_address(config["endpoint"]))
        config["endpoint"] = f"{address.scheme}://{bucket}.{address.netloc}"
        config["virtual_hosted_style_request"] = True
    credentials = s3_credentials(config, options)
    if credentials is not None:
        config["credential_provider"] = credentials


def _ask_region(config: dict[str, Any], bucket: str) -> None:
    """Ask Amazon for a bucket's region, as pyiceberg does."""
    from pyarrow.fs import resolve_s3_region

    try:
        config["region"] = resolve_s3_region(bucket)
    except OSError:  # a bucket that may not be seen: the environment's region, or the default
        return


def _complete_azure(config: dict[str, Any], options: Mapping[str, str], host: str) -> None:
    if host:
        config.setdefault("account_name", host.partition(".")[0])
    authority = options.get("adls.blob-storage-authority")
    if authority is None:
        return
    account = config.get("account_name", "")
    scheme = options.get("adls.blob-storage-scheme", "https")
    config["endpoint"] = (
        f"{scheme}://{account}{authority}"
        if authority.startswith(".")
        else f"{scheme}://{authority}/{account}"
    )
