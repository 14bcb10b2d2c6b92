"""Credentials of S3 that obstore does not find automatically: a profile's, and a role's."""

from __future__ import annotations

import configparser
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from lakebed.errors import PackageMissingError

_READ_AGAIN: Final = timedelta(minutes=5)
"""Keys in a file are replaced by programs that renew them."""

Credentials = Callable[[], dict[str, Any]]
"""Called by obstore whenever the last result has expired."""


def s3_credentials(config: Mapping[str, Any], options: Mapping[str, str]) -> Credentials | None:
    """Return a source of credentials, or None: obstore has keys or finds some."""
    role = options.get("s3.role-arn", options.get("client.role-arn"))
    if role is not None:
        return _role(role, config, options)
    if "access_key_id" in config or "skip_signature" in config or "AWS_ACCESS_KEY_ID" in os.environ:
        return None
    profile = _Profile()
    return profile if profile.exists() else None


class _Profile:
    """The keys of a profile, as the tools of AWS write them."""

    def __init__(self) -> None:
        path = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
        self._path = Path(path).expanduser()
        self._name = os.environ.get("AWS_PROFILE", "default")

    def exists(self) -> bool:
        """Return whether the file has keys of the profile."""
        return "aws_access_key_id" in self._section()

    def __call__(self) -> dict[str, Any]:
        section = self._section()
        return {
            "access_key_id": section["aws_access_key_id"],
            "secret_access_key": section["aws_secret_access_key"],
            "token": section.get("aws_session_token"),
            "expires_at": datetime.now(UTC) + _READ_AGAIN,
        }

    def _section(self) -> Mapping[str, str]:
        file = configparser.RawConfigParser()
        file.read(self._path)
        return file[self._name] if file.has_section(self._name) else {}


def _role(role: str, config: Mapping[str, Any], options: Mapping[str, str]) -> Credentials:
    """Return a source of credentials that assumes a role, and assumes it again in time."""
    try:
        import boto3
    except ImportError as error:
        raise PackageMissingError(
            "the option 's3.role-arn' needs boto3; install it: pip install boto3", missing="boto3"
        ) from error
    session = boto3.Session(
        aws_access_key_id=config.get("access_key_id"),
        aws_secret_access_key=config.get("secret_access_key"),
        aws_session_token=config.get("session_token"),
        region_name=config.get("region"),
    )
    name = options.get("s3.role-session-name", options.get("client.role-session-name", "lakebed"))

    def assume() -> dict[str, Any]:
        answer = session.client("sts").assume_role(RoleArn=role, RoleSessionName=name)
        keys = answer["Credentials"]
        return {
            "access_key_id": keys["AccessKeyId"],
            "secret_access_key": keys["SecretAccessKey"],
            "token": keys["SessionToken"],
            "expires_at": keys["Expiration"].astimezone(UTC),
        }

    return assume
