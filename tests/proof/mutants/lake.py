"""Faults in segments, tables, the object store and backups."""

from __future__ import annotations

from tests.proof.mutation import Mutant, always, before, drop, never, replace

ENGINE_DAMAGE = "tests/proof/test_engine_damage.py"
LAKE = "tests/engine/test_lake.py"
TIERING = "tests/engine/test_tiering.py"
BACKUP = "tests/engine/test_backup.py"
BACKUP_FAILURES = "tests/engine/test_backup_failures.py"
LAKE_KILLS = (
    "tests/proof/test_lake_kills.py::test_a_kill_at_any_step_leaves_tables_that_agree_with_the_log"
)

MUTANTS = (
    Mutant(
        name="column-checksum-not-checked",
        breaks="never silently wrong",
        at="lakebed.lake.open_segment:OpenSegment._check",
        changes=(never("$X != checksum"),),
        tests=(
            ENGINE_DAMAGE,
            "tests/lake/test_damage.py",
        ),
        seconds=60,
    ),
    Mutant(
        name="files-put-into-the-table-twice",
        breaks="a table shows every record once",
        at="lakebed.iceberg.topic_table:TopicTables._sync",
        changes=(replace("[$X for $X in $Y if $X not in have]", "list($Y)"),),
        tests=(f"{LAKE_KILLS}[lake.table.swapped]",),
        seconds=5,
    ),
    Mutant(
        name="removed-files-stay-in-the-table",
        breaks="a table shows what the log has, and nothing that it removed",
        at="lakebed.iceberg.topic_table:TopicTables._sync",
        changes=(replace("have.difference(...)", "frozenset()"),),
        tests=(f"{LAKE_KILLS}[engine.retention.logged]",),
        seconds=15,
    ),
    Mutant(
        name="swap-repeated-blindly",
        breaks="a table is read again before it is changed again",
        at="lakebed.iceberg.commit",
        changes=(replace("'0'", "'4'", within="PROPERTIES: Final = $X"),),
        tests=(f"{LAKE}::test_somebody_who_commits_between_our_look_and_our_swap_is_seen",),
        seconds=5,
    ),
    Mutant(
        name="dropped-segment-removed-under-a-snapshot",
        breaks="a file stays while a snapshot refers to it",
        at="lakebed.iceberg.gc:TopicGarbage._delete_dropped",
        changes=(replace("segment in $NEEDED", "not $NEEDED"),),
        tests=(f"{LAKE}::test_a_removed_segment_stays_while_a_snapshot_refers_to_it",),
        seconds=5,
    ),
    Mutant(
        name="object-removed-under-a-snapshot",
        breaks="an object stays while a snapshot refers to it",
        at="lakebed.iceberg.gc:TopicGarbage._sweep",
        changes=(replace("$X in kept", "$X in kept and '/segments/' not in $X"),),
        tests=(f"{LAKE_KILLS}[engine.removal.file_removed]",),
        seconds=15,
    ),
    Mutant(
        name="no-grace-period",
        breaks="a file that may be in use, or in the making, stays for a while",
        at="lakebed.iceberg.pending_deletes:Sweep.offer",
        changes=(never("$X < self._grace_us"),),
        tests=(f"{TIERING}::test_what_a_crash_left_half_written_is_removed",),
        seconds=5,
    ),
    Mutant(
        name="segment-sealed-during-an-upload-forgotten",
        breaks="a table comes to show every sealed record, without anything else happening",
        at="lakebed.iceberg.topic_progress:TopicProgress.record",
        changes=(always("self._is_complete(...)"),),
        tests=(f"{TIERING}::test_what_is_sealed_while_others_are_uploaded_is_not_forgotten",),
        seconds=60,
    ),
    Mutant(
        name="segment-placed-before-its-upload",
        breaks="a table shows only objects that are in the store",
        at="lakebed.iceberg.tiering:Tiering._upload",
        changes=(before("sent: $T = []", "self._place(key, segments, BOTH)"),),
        tests=(f"{TIERING}::test_a_table_never_shows_an_object_that_was_not_uploaded",),
        seconds=5,
    ),
    Mutant(
        name="damaged-segment-uploaded",
        breaks="never silently wrong: the store gets what was written, or nothing",
        at="lakebed.iceberg.tiering:Tiering._send",
        changes=(drop("$READER.verify(...)"),),
        tests=(f"{TIERING}::test_a_damaged_segment_is_not_uploaded",),
        seconds=5,
    ),
    Mutant(
        name="local-files-removed-before-the-log-is-synced",
        breaks="never lost: no entry that survives a power cut needs a file that was removed",
        at="lakebed.iceberg.tiering:Tiering.move",
        changes=(drop("self._wal.flush()"),),
        tests=(
            f"{TIERING}::test_local_files_go_only_when_the_entry_that_says_so_survives_a_power_cut",
        ),
        seconds=5,
    ),
    Mutant(
        name="place-goes-back",
        breaks="a segment that is in the store alone is not asked of the local disk",
        at="lakebed.state.decide_segments:place_segments",
        changes=(replace("$X > $Y.place", "$X != $Y.place"),),
        tests=(f"{TIERING}::test_a_place_never_goes_back",),
        seconds=5,
    ),
    Mutant(
        name="segments-in-a-store-forgotten",
        breaks="a log whose segments cannot be reached is refused, not opened",
        at="lakebed.engine.recovery:tidy",
        changes=(drop("_check_local(...)"),),
        tests=(f"{TIERING}::test_a_store_that_the_settings_have_lost_is_asked_for",),
        seconds=5,
    ),
    Mutant(
        name="adopted-file-not-checked",
        breaks="never silently wrong: a copy that is damaged is fetched again",
        at="lakebed.lake.remote_cache:RemoteCache._intact",
        changes=(drop("_check(...)"),),
        tests=(f"{TIERING}::test_a_fetched_copy_that_was_damaged_meanwhile_is_fetched_again",),
        seconds=5,
    ),
    Mutant(
        name="backup-without-a-hold",
        breaks="a backup has every file that its snapshot names",
        at="lakebed.lake.pins:Pins.is_pinned",
        changes=(never("any(...)"),),
        tests=(f"{BACKUP}::test_what_the_log_drops_meanwhile_stays_until_it_is_copied",),
        seconds=5,
    ),
    Mutant(
        name="backup-manifest-before-names-are-synced",
        breaks="a backup is whole or not there",
        at="lakebed.engine.backup:Backups._sync_folders",
        changes=(drop("$D.sync_folder(...)", within="for $X in $Y: ..."),),
        tests=(f"{BACKUP_FAILURES}::test_a_power_cut_leaves_a_whole_backup_or_none",),
        seconds=5,
    ),
    Mutant(
        name="backup-files-not-synced",
        breaks="a backup is whole or not there",
        at="lakebed.engine.backup_files:copy_file",
        changes=(drop("$F.sync()"),),
        tests=(f"{BACKUP_FAILURES}::test_a_power_cut_leaves_a_whole_backup_or_none",),
        seconds=5,
    ),
    Mutant(
        name="backup-checksums-not-compared",
        breaks="a damaged backup is refused",
        at="lakebed.engine.backup_files:check_same",
        changes=(never("$X != $Y.crc32c"),),
        tests=(f"{BACKUP_FAILURES}::test_a_damaged_file_is_named_and_nothing_is_written",),
        seconds=5,
    ),
)
