"""The readers agree about tables that pyiceberg made alone, so what they say of ours counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer
from pyarrow import fs
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.update import (
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
)

from tests.foreign import tables
from tests.foreign.readers import (
    contents,
    duckdb_connection,
    duckdb_scan,
    read_duckdb,
    read_polars,
    read_pyiceberg,
    read_spark,
    static,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Check = Callable[[Table, pa.Table], None]

METADATA = ".metadata.json"


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """A catalog with a namespace in it, everything in one folder."""
    uri = f"sqlite:///{tmp_path}/catalog.db"
    with SqlCatalog("lakebed", uri=uri, warehouse=f"file://{tmp_path}") as made:
        made.create_namespace(tables.NAME[:1])
        yield made


@pytest.fixture
def everywhere(spark: SparkSession) -> Check:
    """Check that every reader finds the same records in a table, and no other."""

    def check(table: Table, expected: pa.Table) -> None:
        wanted = contents(expected)
        found = {
            "pyiceberg": read_pyiceberg(table),
            "pyiceberg, no catalog": read_pyiceberg(static(table.metadata_location)),
            "duckdb": read_duckdb(table.metadata_location),
            "polars": read_polars(table),
            "polars, native": read_polars(table.metadata_location, reader="native"),
            "polars, pyiceberg": read_polars(table.metadata_location, reader="pyiceberg"),
            "spark": read_spark(spark, table),
        }
        for reader, records in found.items():
            assert contents(records) == wanted, reader
            assert records.equals(found["pyiceberg"]), reader

    return check


@pytest.mark.parametrize("schema", [tables.RAW, tables.TYPED], ids=["raw", "typed"])
def test_every_reader_finds_every_record_once(
    tmp_path: Path, catalog: Catalog, schema: pa.Schema, everywhere: Check
) -> None:
    """Null keys, tombstones, headers empty and missing, nested values: all come back alike."""
    table = tables.create(catalog, schema)
    everywhere(table, schema.empty_table())
    parts = [
        tables.records(schema, part, first, first + 40) for part in (0, 1) for first in (0, 40)
    ]
    paths = [tables.write(tmp_path, part, table.schema()) for part in parts]
    table.add_files(paths, check_duplicate_files=False)
    everywhere(table, pa.concat_tables(parts))


def test_every_reader_follows_a_table_that_grows_a_field_loses_files_and_forgets_snapshots(
    tmp_path: Path, catalog: Catalog, everywhere: Check
) -> None:
    """Each step is one swap, and the older files are gone from the disk at the end."""
    table = tables.create(catalog, tables.TYPED)
    old = [tables.records(tables.TYPED, partition, 0, 40) for partition in (0, 1)]
    old_paths = [tables.write(tmp_path, part, table.schema()) for part in old]
    table.add_files(old_paths, check_duplicate_files=False)

    new = tables.records(tables.WIDER, 0, 40, 80)
    _grow(tmp_path, table, new)
    known = [tables.with_note(part) for part in old]
    everywhere(table, pa.concat_tables([*known, new]))

    _replace(tmp_path, table, old_paths[0], known[0].slice(20))
    Path(old_paths[0]).unlink()
    assert len(table.metadata.snapshots) == 1
    everywhere(table, pa.concat_tables([known[0].slice(20), known[1], new]))


def test_a_record_that_is_there_twice_is_seen(tmp_path: Path, catalog: Catalog) -> None:
    """The same file registered twice under two names is twice the records."""
    table = tables.create(catalog, tables.RAW)
    part = tables.records(tables.RAW, 0, 0, 4)
    path = Path(tables.write(tmp_path, part, table.schema()))
    again = path.with_name("again.parquet")
    again.write_bytes(path.read_bytes())
    table.add_files([str(path), str(again)], check_duplicate_files=False)
    assert set(contents(read_duckdb(table.metadata_location)).values()) == {2}


def test_duckdb_finds_the_newest_metadata_by_the_version_hint(
    tmp_path: Path, catalog: Catalog
) -> None:
    """The hint holds the metadata file's name without its ending, and no line end."""
    table = tables.create(catalog, tables.RAW)
    folder = Path(table.location().removeprefix("file://"))
    with duckdb_connection() as connection:
        for first in (0, 10):
            part = tables.records(tables.RAW, 0, first, first + 10)
            table.add_files([tables.write(tmp_path, part, table.schema())])
            hint = Path(table.metadata_location).name.removesuffix(METADATA)
            (folder / "metadata" / "version-hint.text").write_text(hint)
            assert duckdb_scan(connection, str(folder)).equals(read_pyiceberg(table))


def test_duckdb_skips_files_by_partition_and_offset(tmp_path: Path, catalog: Catalog) -> None:
    """A file that a filter rules out is not opened: it may as well not be there."""
    table = tables.create(catalog, tables.RAW)
    parts = [
        tables.records(tables.RAW, part, first, first + 5) for part in (0, 1) for first in (0, 5)
    ]
    paths = [tables.write(tmp_path, part, table.schema()) for part in parts]
    table.add_files(paths)
    for path in paths[:3]:
        Path(path).unlink()
    with duckdb_connection() as connection:
        where = 'partition = 1 AND "offset" >= 5'
        found = duckdb_scan(connection, table.metadata_location, where)
    assert contents(found) == contents(parts[3])


@pytest.fixture
def s3() -> Iterator[dict[str, str]]:
    """An object store with the bucket `lake`; gives pyiceberg's properties of it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    properties = {
        "s3.endpoint": f"http://{host}:{port}",
        "s3.access-key-id": "key",
        "s3.secret-access-key": "secret",
        "s3.region": "us-east-1",
    }
    _store(properties).create_dir("lake")
    yield properties
    server.stop()


def test_readers_find_a_table_in_an_object_store(tmp_path: Path, s3: dict[str, str]) -> None:
    """Metadata and files both are there; DuckDB needs a secret and Polars the same properties."""
    uri = f"sqlite:///{tmp_path}/catalog.db"
    part = tables.records(tables.TYPED, 0, 0, 20)
    with SqlCatalog("lakebed", uri=uri, warehouse="s3://lake", **s3) as catalog:
        catalog.create_namespace(tables.NAME[:1])
        table = tables.create(catalog, tables.TYPED)
        path = tables.write(tmp_path, part, table.schema())
        fs.copy_files(path, "lake/0.parquet", fs.LocalFileSystem(), _store(s3))
        table.add_files(["s3://lake/0.parquet"])
    where = table.metadata_location
    secret = {
        "KEY_ID": s3["s3.access-key-id"],
        "SECRET": s3["s3.secret-access-key"],
        "REGION": s3["s3.region"],
        "ENDPOINT": s3["s3.endpoint"].removeprefix("http://"),
        "URL_STYLE": "path",
        "USE_SSL": "false",
    }
    wanted = contents(part)
    assert contents(read_pyiceberg(static(where, **s3))) == wanted
    assert contents(read_duckdb(where, s3=secret)) == wanted
    assert contents(read_polars(where, storage=s3)) == wanted
    assert contents(read_polars(table, storage=s3)) == wanted


def _grow(folder: Path, table: Table, part: pa.Table) -> None:
    """Add the field and the first file that has it, in one swap."""
    schema = tables.wider(table.schema())
    path = tables.write(folder, part, schema)
    with table.transaction() as transaction:
        transaction._apply(
            (
                AddSchemaUpdate(schema=schema),
                SetCurrentSchemaUpdate.model_validate({"schema-id": -1}),
            ),
            (
                AssertCurrentSchemaId.model_validate(
                    {"current-schema-id": table.schema().schema_id}
                ),
            ),
        )
        with transaction.update_snapshot().merge_append() as append:
            for file in tables.data_files(transaction, [path]):
                append.append_data_file(file)


def _replace(folder: Path, table: Table, path: str, part: pa.Table) -> None:
    """Put one file in the place of another and forget all older snapshots, in one swap."""
    gone = tables.live_files(table)[path]
    instead = tables.write(folder, part, table.schema())
    with table.transaction() as transaction:
        with transaction.update_snapshot().overwrite() as overwrite:
            overwrite.delete_data_file(gone)
            for file in tables.data_files(transaction, [instead]):
                overwrite.append_data_file(file)
        older = [each.snapshot_id for each in table.metadata.snapshots]
        transaction._apply((RemoveSnapshotsUpdate.model_validate({"snapshot-ids": older}),))


def _store(properties: dict[str, str]) -> fs.S3FileSystem:
    return fs.S3FileSystem(
        endpoint_override=properties["s3.endpoint"],
        access_key=properties["s3.access-key-id"],
        secret_key=properties["s3.secret-access-key"],
        region=properties["s3.region"],
        allow_bucket_creation=True,
    )
