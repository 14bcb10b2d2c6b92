"""Options of buckets: pyiceberg's names reach obstore's client, and its requests."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import (
    ClosedError,
    InvalidArgumentError,
    PackageMissingError,
    StoreDeniedError,
    StoreNotFoundError,
)
from lakebed.host import bucket_credentials
from lakebed.host.bucket_options import connect
from lakebed.host.store import ObjectStore
from tests.s3 import KEY, SECRET, Proxy, Server, options, proxy, s3

__all__ = ["proxy", "s3"]


def client(location: str = "s3://bucket/prefix", **given: str) -> Any:
    """Connect with options whose names have `_` for `.` once and `-` after it."""
    named = {name.replace("_", ".", 1).replace("_", "-"): text for name, text in given.items()}
    return connect(location, named, repetitions=0)


def test_options_of_the_user_win_over_ours() -> None:
    ours = client(s3_endpoint="http://127.0.0.1:9")
    assert ours.client_options["read_timeout"] == "10s"
    assert ours.client_options["connect_timeout"] == "3s"
    theirs = client(s3_endpoint="http://127.0.0.1:9", s3_request_timeout="7.5")
    assert theirs.client_options["read_timeout"] == "7s 500ms"


def test_names_of_s3_win_over_those_of_every_aws_client() -> None:
    both = client(
        client_region="one", s3_region="two", client_access_key_id="a", client_secret_access_key="b"
    )
    assert both.config["region"] == "two"
    assert both.config["access_key_id"] == "a"


@pytest.mark.parametrize(
    ("endpoint", "virtual", "expected", "plain"),
    [
        ("http://host:9000", "false", "http://host:9000", "true"),
        ("host:9000", "false", "https://host:9000", "false"),
        ("https://host", "true", "https://bucket.host", "false"),
    ],
)
def test_an_endpoint_may_lack_its_scheme_and_hold_the_bucket(
    endpoint: str, virtual: str, expected: str, plain: str
) -> None:
    made = client(s3_endpoint=endpoint, s3_force_virtual_addressing=virtual)
    assert made.config["endpoint"] == expected
    assert made.client_options["allow_http"] == plain


def test_a_bucket_of_alibaba_is_part_of_the_host() -> None:
    made = client("oss://bucket/prefix", s3_endpoint="https://oss.example.com")
    assert made.config["endpoint"] == "https://bucket.oss.example.com"


def test_the_token_and_host_of_google_are_used(proxy: Proxy) -> None:
    given = {"gcs.service.host": proxy.url, "gcs.oauth2.token": "token-of-the-test"}
    proxy.answer(403, "AccessDenied", times=1)
    with pytest.raises(StoreDeniedError):
        ObjectStore("gs://bucket/log", given).size("a")
    assert proxy.seen[0].path == "/bucket/log%2Fa"
    assert proxy.seen[0].headers["authorization"] == "Bearer token-of-the-test"


@pytest.mark.parametrize(
    ("location", "account"),
    [
        ("abfs://box/log", {"adls.account-name": "shop"}),
        ("abfss://box@shop.dfs.core.windows.net/log", {}),
    ],
)
def test_the_account_and_signature_of_azure_are_used_and_not_told(
    proxy: Proxy, location: str, account: dict[str, str]
) -> None:
    given = {
        "adls.sas-token": "sv=1&sig=hidden",
        "adls.blob-storage-authority": proxy.url.removeprefix("http://"),
        "adls.blob-storage-scheme": "http",
        **account,
    }
    proxy.answer(403, "AuthenticationFailed", times=1)
    with pytest.raises(StoreDeniedError) as caught:
        ObjectStore(location, given).size("a")
    assert proxy.seen[0].path.startswith("/shop/box/log/a?")
    assert "sig=hidden" in proxy.seen[0].path
    assert "hidden" not in "".join(traceback.format_exception(caught.value))


def test_a_redirect_is_a_bucket_that_is_elsewhere(proxy: Proxy, s3: Server) -> None:
    store = ObjectStore(f"s3://{s3.bucket()}", options(proxy.url))
    proxy.answer(301, "PermanentRedirect")
    with pytest.raises(StoreNotFoundError, match="region"):
        store.size("a")


@pytest.mark.parametrize("code", ["ExpiredToken", "InvalidToken", "AuthorizationHeaderMalformed"])
def test_a_token_that_expired_is_denied_though_its_status_is_400(
    proxy: Proxy, s3: Server, code: str
) -> None:
    store = ObjectStore(f"s3://{s3.bucket()}", options(proxy.url))
    proxy.answer(400, code, method="PUT")
    with pytest.raises(StoreDeniedError, match=code):
        store.put("a", memoryview(b"a"))
    assert store.stats.retries == 0


@pytest.mark.parametrize("endpoint", ["http://", "ftp://host", "http:///path"])
def test_an_endpoint_that_is_none_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidArgumentError, match="endpoint"):
        client(s3_endpoint=endpoint)


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what writes the keys of a profile."""
    path = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setenv("AWS_PROFILE", "shop")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)

    def write(key: str) -> None:
        path.write_text(f"[shop]\naws_access_key_id = {key}\naws_secret_access_key = s\n")

    return write


def test_keys_of_a_profile_are_used_and_read_again(
    proxy: Proxy, profile: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_credentials, "_READ_AGAIN", timedelta(0))
    profile("first")
    given = {"s3.endpoint": proxy.url}
    store = ObjectStore("s3://bucket", given)
    proxy.answer(403, "AccessDenied", times=2)
    for key in ("first", "second"):
        profile(key)
        with pytest.raises(StoreDeniedError):
            store.size("a")
        assert f"Credential={key}/" in proxy.seen[-1].headers["authorization"]


def test_keys_of_the_options_win_over_a_profile(
    proxy: Proxy, profile: Callable[[str], None]
) -> None:
    profile("first")
    proxy.answer(403, "AccessDenied")
    with pytest.raises(StoreDeniedError):
        ObjectStore("s3://bucket", options(proxy.url)).size("a")
    assert f"Credential={KEY}/" in proxy.seen[-1].headers["authorization"]


def test_a_role_is_assumed(s3: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", s3.url)
    given = options(proxy.url, s3_role_arn="arn:aws:iam::123456789012:role/shop")
    store = ObjectStore(f"s3://{s3.bucket()}", given)
    store.put("a", memoryview(b"a"))
    assert "x-amz-security-token" in proxy.seen[-1].headers
    assert KEY not in proxy.seen[-1].headers["authorization"]


def test_a_role_without_boto3_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "boto3", None)
    with pytest.raises(PackageMissingError, match="pip install boto3"):
        client(s3_endpoint="http://127.0.0.1:9", s3_role_arn="arn")


def _use_in_child(url: str, results: Any) -> None:
    try:
        ObjectStore("s3://bucket", options(url)).size("a")
    except ClosedError as error:
        results.put(str(error))


def test_a_forked_process_is_told_instead_of_waiting_forever(s3: Server) -> None:
    assert ObjectStore(f"s3://{s3.bucket()}", options(s3.url)).size("a") is None
    forking = multiprocessing.get_context("fork")
    results = forking.Queue()
    child = forking.Process(target=_use_in_child, args=(s3.url, results))
    child.start()
    assert "forked" in results.get(timeout=600)
    child.join()


def test_no_secret_is_in_a_client(s3: Server) -> None:
    made = ObjectStore(f"s3://{s3.bucket()}", options(s3.url))
    made.size("a")
    assert SECRET not in repr(made)
    assert SECRET not in repr(made._objects)
