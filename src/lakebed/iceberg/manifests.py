"""Snapshots that add and remove files: what pyiceberg's own snapshots do not do.

Topics' tables: pyiceberg's `overwrite` neither merges manifests nor drops those in which every file
is deleted, so a table whose segments come and go would cost more with each commit. `ReplaceFiles`
does both. Derived tables: pyiceberg reads position deletes and writes none; `ChangeFiles` has files
of rows and of deleted positions, names each file that it drops, and merges small manifests.

Both rest on internal classes of pyiceberg: check this module first when pyiceberg is upgraded.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from functools import cached_property
from typing import Final

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import (
    _ManifestMergeManager,
    _OverwriteFiles,
    _SnapshotProducer,
)

_MANIFESTS_MAX: Final = 20
"""More small manifests than these, of one content, are merged."""
_SMALL_BYTES: Final = 128 * 1024


class ReplaceFiles(_OverwriteFiles):
    """A snapshot that adds some files and removes others."""

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        properties = self._transaction.table_metadata.properties
        live = [manifest for manifest in manifests if self._is_live(manifest)]
        merging = _ManifestMergeManager(
            target_size_bytes=int(properties["commit.manifest.target-size-bytes"]),
            min_count_to_merge=int(properties["commit.manifest.min-count-to-merge"]),
            merge_enabled=True,
            snapshot_producer=self,
        )
        return merging.merge_manifests(live)

    def _is_live(self, manifest: ManifestFile) -> bool:
        """Return whether it holds a file of the table, or one that this snapshot removes."""
        return (
            manifest.has_added_files()
            or manifest.has_existing_files()
            or manifest.added_snapshot_id == self._snapshot_id
        )


def replace_files(change: Transaction, marks: dict[str, str]) -> ReplaceFiles:
    """Begin a snapshot that adds and removes files, with `marks` in its summary."""
    return ReplaceFiles(
        operation=Operation.OVERWRITE,
        transaction=change,
        io=change._table.io,
        commit_uuid=uuid.uuid4(),
        snapshot_properties=marks,
    )


class _DeletesWriter(ManifestWriterV2):
    """A manifest of files with deleted positions."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class ChangeFiles(_SnapshotProducer["ChangeFiles"]):
    """A snapshot that adds and removes files of rows and of deleted positions."""

    @cached_property
    def _base(self) -> TableMetadata:
        """The table before this snapshot: asking the transaction takes milliseconds."""
        return self._transaction.table_metadata

    def schema(self) -> Schema:
        """Return the table's columns."""
        return self._base.schema()

    def spec(self, spec_id: int) -> PartitionSpec:
        """Return one of the ways in which the table is partitioned."""
        return self._base.specs()[spec_id]

    def _deleted_entries(self) -> list[ManifestEntry]:
        return []

    def _existing_manifests(self) -> list[ManifestFile]:
        parent = self._parent_snapshot_id
        snapshot = None if parent is None else self._base.snapshot_by_id(parent)
        return [] if snapshot is None else snapshot.manifests(self._io)

    def _manifests(self) -> list[ManifestFile]:
        added = [
            self._write_manifest(content, files)
            for content in ManifestContent
            if (files := self._entries_to_add(content))
        ]
        gone = {file.file_path for file in self._deleted_data_files}
        kept = [
            kept
            for manifest in self._existing_manifests()
            for kept in self._without(manifest, gone)
        ]
        merged = [
            manifest for content in ManifestContent for manifest in self._merge_small(kept, content)
        ]
        return added + merged

    def _entries_to_add(self, content: ManifestContent) -> list[ManifestEntry]:
        is_data = content == ManifestContent.DATA
        return [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=file,
            )
            for file in self._added_data_files
            if (file.content == DataFileContent.DATA) == is_data
        ]

    def _without(self, manifest: ManifestFile, gone: set[str]) -> list[ManifestFile]:
        """Return a manifest with the removed files marked as deleted; none if no file is left."""
        entries = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
        if not entries:
            return []
        if gone.isdisjoint(entry.data_file.file_path for entry in entries):
            return [manifest]
        changed = [
            self._with_status(entry, deleted=entry.data_file.file_path in gone) for entry in entries
        ]
        return [self._write_manifest(manifest.content, changed, manifest.partition_spec_id)]

    def _with_status(self, entry: ManifestEntry, *, deleted: bool) -> ManifestEntry:
        status = ManifestEntryStatus.DELETED if deleted else ManifestEntryStatus.EXISTING
        return ManifestEntry.from_args(
            status=status,
            snapshot_id=self._snapshot_id if deleted else entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )

    def _merge_small(
        self, manifests: list[ManifestFile], content: ManifestContent
    ) -> list[ManifestFile]:
        """Merge the small manifests from before this snapshot, once they are too many."""
        of_content = [manifest for manifest in manifests if manifest.content == content]
        small = [
            manifest
            for manifest in of_content
            if manifest.manifest_length < _SMALL_BYTES
            and manifest.added_snapshot_id != self._snapshot_id
        ]
        if len(small) <= _MANIFESTS_MAX:
            return of_content
        entries = [
            self._with_status(entry, deleted=False)
            for manifest in small
            for entry in manifest.fetch_manifest_entry(self._io, discard_deleted=True)
        ]
        spec = small[0].partition_spec_id
        return [
            self._write_manifest(content, entries, spec),
            *(manifest for manifest in of_content if manifest not in small),
        ]

    def _write_manifest(
        self, content: ManifestContent, entries: Iterable[ManifestEntry], spec: int | None = None
    ) -> ManifestFile:
        chosen = self._base.spec() if spec is None else self.spec(spec)
        with self._writer(content, chosen) as writer:
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def _writer(self, content: ManifestContent, spec: PartitionSpec) -> ManifestWriter:
        kind = ManifestWriterV2 if content == ManifestContent.DATA else _DeletesWriter
        output = self.new_manifest_output()
        return kind(spec, self.schema(), output, self._snapshot_id, self._compression)


def change_files(
    change: Transaction, added: list[DataFile], removed: list[DataFile], marks: dict[str, str]
) -> ChangeFiles:
    """Prepare a snapshot that adds and removes files, with `marks` in its summary."""
    producer = ChangeFiles(
        operation=_operation(added, removed),
        transaction=change,
        io=change._table.io,
        commit_uuid=uuid.uuid4(),
        snapshot_properties=marks,
    )
    for file in added:
        producer.append_data_file(file)
    for file in removed:
        producer.delete_data_file(file)
    return producer


def _operation(added: list[DataFile], removed: list[DataFile]) -> Operation:
    rows_only = all(file.content == DataFileContent.DATA for file in added)
    if rows_only and not removed:
        return Operation.APPEND
    return Operation.OVERWRITE
