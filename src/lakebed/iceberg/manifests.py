"""How a table forgets files without keeping a trace of each forever.

pyiceberg's own `overwrite` neither merges manifests nor drops those in which every file is deleted,
so that a table whose segments come and go costs more with each swap. This one does both. It rests
on pyiceberg's inner classes: whoever takes a newer pyiceberg looks here first.
"""

from __future__ import annotations

import uuid

from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles


class ReplaceFiles(_OverwriteFiles):
    """A snapshot that adds some files and removes others."""

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        properties = self._transaction.table_metadata.properties
        living = [each for each in manifests if self._is_living(each)]
        merging = _ManifestMergeManager(
            target_size_bytes=int(properties["commit.manifest.target-size-bytes"]),
            min_count_to_merge=int(properties["commit.manifest.min-count-to-merge"]),
            merge_enabled=True,
            snapshot_producer=self,
        )
        return merging.merge_manifests(living)

    def _is_living(self, manifest: ManifestFile) -> bool:
        """Return whether it holds a file of the table, or one that this very snapshot removes."""
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
