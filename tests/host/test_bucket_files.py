"""Files of tables in a bucket: pyiceberg's `FileIO` over an object store."""

from __future__ import annotations

import gc

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakebed.errors import StoreDeniedError, StoreUnavailableError
from lakebed.host.synced_io import SyncedFileIO
from tests.s3 import FOREVER, Proxy, Server, options, proxy, s3

__all__ = ["proxy", "s3"]


class Files:
    """A `FileIO`, and a file of a bucket."""

    def __init__(self, s3: Server, proxy: Proxy) -> None:
        self.s3, self.proxy = s3, proxy
        self.bucket = s3.bucket()
        self.location = f"s3://{self.bucket}/t/metadata/1.metadata.json"
        self.io = SyncedFileIO(options(proxy.url))

    def write(self, data: bytes) -> None:
        with self.io.new_output(self.location).create(overwrite=True) as stream:
            stream.write(data)


@pytest.fixture
def files(s3: Server, proxy: Proxy) -> Files:
    return Files(s3, proxy)


def test_what_was_written_is_read_and_removed(files: Files) -> None:
    files.write(b"first")
    files.write(b"second")
    written = files.io.new_input(files.location)
    assert (written.exists(), len(written)) == (True, 6)
    with written.open() as stream:
        assert stream.read() == b"second"
    with pytest.raises(FileExistsError):
        files.io.new_output(files.location).create()
    files.io.delete(files.location)
    files.io.delete(files.location)
    assert not written.exists()
    with pytest.raises(FileNotFoundError):
        written.open()


def test_an_error_while_writing_leaves_no_object(files: Files) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        files.io.new_output(files.location).create() as stream,
    ):
        stream.write(b"half")
        raise KeyboardInterrupt
    dropped = files.io.new_output(files.location).create()
    dropped.write(b"half")
    del dropped
    gc.collect()
    assert files.s3.keys(files.bucket) == []


def test_a_footer_is_read_without_the_rest(files: Files) -> None:
    location = f"s3://{files.bucket}/t/data/1.parquet"
    with files.io.new_output(location).create() as stream:
        pq.write_table(pa.table({"value": [b"x" * 4_000_000]}), stream, compression="none")
    files.proxy.seen.clear()
    with files.io.new_input(location).open() as source:
        assert pq.read_metadata(source).num_rows == 1
    ranges = [seen.headers["range"] for seen in files.proxy.seen if seen.method == "GET"]
    begins = [int(text.removeprefix("bytes=").partition("-")[0]) for text in ranges]
    assert min(begins) > 2_000_000


def test_failures_of_the_bucket_are_typed(files: Files) -> None:
    files.write(b"first")
    files.proxy.answer(403, "AccessDenied", times=FOREVER)
    with pytest.raises(StoreDeniedError):
        files.io.new_input(files.location).open()
    with pytest.raises(StoreDeniedError):
        files.write(b"second")
    files.proxy.behave()
    with files.io.new_input(files.location).open() as stream:
        files.proxy.answer(503, "SlowDown", times=5)
        with pytest.raises(StoreUnavailableError):
            stream.read()
