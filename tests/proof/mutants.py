"""Deliberate faults: each breaks one promise, and the tests named with it must see that.

A mutant is a change of one place of the source, given as the exact text there and what takes its
place. When the code changes, its mutants change with it: a text that is not found exactly once
fails the test.
"""

from __future__ import annotations

from dataclasses import dataclass

MODEL = "tests/proof/test_power_cut_model.py::test_a_power_cut_leaves_what_was_acknowledged"
FLIPS = "tests/proof/test_damage.py::test_a_flipped_bit_is_reported_or_harmless"
CUT_SHORT = "tests/proof/test_damage.py::test_a_file_that_was_cut_short_is_refused"
TABLE = "tests/wal/test_recovery_table.py"
PROMISES = "tests/wal/test_promises.py"
LOG = "tests/wal/test_log.py"
BAD_INPUT = "tests/wal/test_bad_input.py"
FAILING = "tests/proof/test_failing_disk.py"
ENGINE_CUTS = (
    "tests/proof/test_engine_power_cut.py::test_a_power_cut_leaves_every_acknowledged_record[0]"
)
ENGINE_LATER = (
    "tests/proof/test_engine_power_cut.py::test_a_log_that_syncs_later_opens_after_any_cut"
)
ENGINE_MODEL = "tests/proof/test_engine_model.py::test_a_log_behaves_like_lists"
ENGINE_DAMAGE = "tests/proof/test_engine_damage.py"
ENGINE_REGRESSIONS = "tests/proof/test_engine_regressions.py"
TOGETHER = "tests/engine/test_together.py"
LAKE = "tests/engine/test_lake.py"
TIERING = "tests/engine/test_tiering.py"
BACKUP = "tests/engine/test_backup.py"
BACKUP_FAILURES = "tests/engine/test_backup_failures.py"
COMPACTION = "tests/engine/test_compaction.py"
LAKE_KILLS = (
    "tests/proof/test_lake_kills.py::test_a_kill_at_any_step_leaves_tables_that_agree_with_the_log"
)
GUARD = "tests/serve/test_guard.py"
ACCESS = "tests/engine/test_access.py"
MATRIX = "tests/serve/test_matrix.py"
BAD_CLIENTS = "tests/serve/test_bad_clients.py"
ACKS = "tests/serve/test_acknowledgements.py"
SERVER_KILLS = "tests/serve/test_kills.py"
SLOW = "tests/serve/test_http_slow_clients.py"
CROWDS = "tests/serve/test_http_crowds.py"
PRIVATE = "tests/serve/test_private_paths.py"
GATEWAY = "tests/serve/test_gateway.py"
PROCESSES = "tests/serve/test_together_of_processes.py"


@dataclass(frozen=True)
class Mutant:
    """A fault: what it breaks, where, and which tests must fail."""

    name: str
    breaks: str
    file: str
    """Below `src/lakebed`."""
    old: str
    new: str
    tests: tuple[str, ...]
    quick: bool = False
    """Also part of the short form."""


MUTANTS = (
    Mutant(
        name="no-fdatasync",
        breaks="acknowledged means on disk",
        file="wal/appender.py",
        old="tail.file.sync_data()\n            _SYNCED.hit()\n            synced = end\n",
        new="_SYNCED.hit()\n            synced = end\n",
        tests=(f"{MODEL}[always-0]",),
        quick=True,
    ),
    Mutant(
        name="ack-before-sync",
        breaks="acknowledged means on disk",
        file="wal/appender.py",
        old="        if sync:\n            tail.file.sync_data()\n",
        new=(
            "        if sync:\n"
            "            for each in group:\n"
            "                each.settle()\n"
            "            tail.file.sync_data()\n"
        ),
        tests=(f"{PROMISES}::test_nothing_is_acknowledged_or_read_while_its_sync_is_under_way",),
        quick=True,
    ),
    Mutant(
        name="reader-past-durable",
        breaks="readers see only durable entries",
        file="wal/writer.py",
        old="            written = self._appender.write(after, group, sync=sync)\n",
        new=(
            "            self.committer.tail = self._appender.write(after, group, sync=False)\n"
            "            self._publish(after, group)\n"
            "            written = self._appender.write(after, group, sync=sync)\n"
        ),
        tests=(f"{PROMISES}::test_nothing_is_acknowledged_or_read_while_its_sync_is_under_way",),
    ),
    Mutant(
        name="no-folder-sync-after-rotation",
        breaks="never lost: the file's name survives before anything in it is acknowledged",
        file="wal/appender.py",
        old="        self._disk.sync_folder(self._layout.wal)\n        _FOLDER_SYNCED.hit()\n",
        new="        _FOLDER_SYNCED.hit()\n",
        tests=(f"{MODEL}[always-0]",),
        quick=True,
    ),
    Mutant(
        name="no-folder-sync-after-recycling",
        breaks="never lost: a file that gets its old name back has its old contents",
        file="wal/spares.py",
        old="        self._disk.sync_folder(self._layout.wal)\n        _RECYCLED.hit()\n",
        new="        _RECYCLED.hit()\n",
        tests=(f"{PROMISES}::test_a_file_is_not_used_again_before_its_old_name_is_surely_gone",),
    ),
    Mutant(
        name="header-not-synced-before-rename",
        breaks="a file with a WAL name has a valid header",
        file="wal/appender.py",
        old="        file.sync()\n        _HEADER_SYNCED.hit()\n",
        new="        _HEADER_SYNCED.hit()\n",
        tests=(f"{MODEL}[always-0]",),
    ),
    Mutant(
        name="old-file-not-synced-before-rotation",
        breaks="a later file proves that the one before is whole",
        file="wal/appender.py",
        old=(
            "        if tail.synced < tail.position:\n"
            "            tail = self.sync(tail)\n"
            "        tail.file.sync()\n"
            "        _OLD_SYNCED.hit()\n"
        ),
        new="        _OLD_SYNCED.hit()\n",
        tests=(f"{MODEL}[os-0]", f"{MODEL}[interval-0]"),
    ),
    Mutant(
        name="end-block-not-written",
        breaks="the log ends where it was last written, also in a recycled file",
        file="wal/appender.py",
        old="        buffers.append(END_BLOCK)\n",
        new="        buffers.append(b'')\n",
        tests=(f"{PROMISES}::test_a_recycled_file_ends_where_it_was_last_written",),
    ),
    Mutant(
        name="durable-through-says-too-much",
        breaks="a torn write is told from damage",
        file="wal/appender.py",
        old="                synced,\n                link,\n                time_us,\n",
        new="                tail.position + size_bytes + request.span,\n                link,\n"
        "                time_us,\n",
        tests=(f"{MODEL}[always-0]",),
    ),
    Mutant(
        name="failed-sync-retried",
        breaks="a failed sync is never made good by a later one",
        file="wal/appender.py",
        old="tail.file.sync_data()\n            _SYNCED.hit()\n            synced = end\n",
        new=(
            "try:\n"
            "                tail.file.sync_data()\n"
            "            except OSError:\n"
            "                tail.file.sync_data()\n"
            "            _SYNCED.hit()\n"
            "            synced = end\n"
        ),
        tests=(f"{FAILING}::test_a_failed_sync_is_never_made_good_by_a_later_one",),
        quick=True,
    ),
    Mutant(
        name="poison-not-set",
        breaks="after a failed write nothing more is acknowledged",
        file="wal/writer.py",
        old="        self.committer.refuse(self.poison_error)\n        _log.error(",
        new="        self.poison = self._failure = None\n        _log.error(",
        tests=(f"{FAILING}::test_a_failed_sync_is_never_made_good_by_a_later_one",),
    ),
    Mutant(
        name="short-write-not-completed",
        breaks="never lost: what is acknowledged was written whole",
        file="host/disk.py",
        old="    while rest:\n        count = _write_some",
        new="    while False:\n        count = _write_some",
        tests=(f"{FAILING}::test_no_failing_call_breaks_a_promise[write]",),
    ),
    Mutant(
        name="disk-full-poisons",
        breaks="a full disk is an answer, not the end",
        file="wal/writer.py",
        old='            _log.warning("an append was rejected: %s", error.cause)\n',
        new="            self.poison = error.cause\n",
        tests=(f"{FAILING}::test_a_full_disk_rejects_and_the_log_goes_on",),
    ),
    Mutant(
        name="payload-checksum-ignored-in-scan",
        breaks="never silently wrong",
        file="wal/scan.py",
        old="if end <= self._have:\n                right = checksum_of(buffer[body:end]) =",
        new="if end <= self._have:\n                right = payload_checksum =",
        tests=(f"{FLIPS}[plain-0]",),
    ),
    Mutant(
        name="payload-checksum-ignored-across-chunks",
        breaks="never silently wrong",
        file="wal/scan.py",
        old="return rest == 0 and checksum == payload_checksum,",
        new="return rest == 0,",
        tests=(f"{FLIPS}[wide-0]", f"{FLIPS}[wide-1]", f"{FLIPS}[wide-2]"),
    ),
    Mutant(
        name="header-checksum-ignored-in-reader",
        breaks="never silently wrong",
        file="wal/reader.py",
        old=" or checksum_of(header[8:], salt) != fields[1]:",
        new=":",
        tests=(
            "tests/proof/test_damaged_files.py"
            "::test_damage_after_opening_is_reported_when_it_is_read",
        ),
    ),
    Mutant(
        name="payload-checksum-ignored-in-reader",
        breaks="never silently wrong",
        file="wal/reader.py",
        old="                if checksum_of(payload) != fields[3]:\n",
        new="                if False:\n",
        tests=(
            "tests/proof/test_damaged_files.py"
            "::test_damage_after_opening_is_reported_when_it_is_read",
        ),
    ),
    Mutant(
        name="torn-tail-cut-whatever-is-proven",
        breaks="never lost: damage to synced bytes is not a torn write",
        file="wal/recovery.py",
        old="    if proven or not last_file:\n",
        new="    if not last_file:\n",
        tests=(TABLE,),
        quick=True,
    ),
    Mutant(
        name="torn-tail-cut-in-any-file",
        breaks="never lost: only the last file can have been torn",
        file="wal/recovery.py",
        old="    if proven or not last_file:\n",
        new="    if proven:\n",
        tests=(TABLE,),
    ),
    Mutant(
        name="unreadable-taken-for-the-end",
        breaks="a device error never truncates",
        file="wal/recovery.py",
        old="    if ending is Ending.UNREADABLE:\n        return Verdict.DEVICE_ERROR\n",
        new="",
        tests=(TABLE,),
    ),
    Mutant(
        name="torn-bytes-not-zeroed",
        breaks="never invented: what was cut off never comes back",
        file="wal/repair.py",
        old="        write_all(file, [piece], at, len(piece))\n    _CUT.hit()\n",
        new="    _CUT.hit()\n",
        tests=(TABLE,),
    ),
    Mutant(
        name="cut-not-synced",
        breaks="never invented: what was cut off never comes back",
        file="wal/repair.py",
        old="    file.sync_data()\n    _SYNCED.hit()\n",
        new="    _SYNCED.hit()\n",
        tests=(
            f"{PROMISES}::test_a_torn_tail_is_surely_gone_before_anything_is_written_in_its_place",
        ),
    ),
    Mutant(
        name="parent-not-checked",
        breaks="never silently wrong: frames follow each other",
        file="wal/scan.py",
        old="fields[11] != self.link or fields[4] not in KINDS:\n",
        new="fields[4] not in KINDS:\n",
        tests=(TABLE,),
    ),
    Mutant(
        name="file-number-not-checked",
        breaks="never silently wrong: a frame is in the file it was written to",
        file="wal/scan.py",
        old="if fields[7] != number or fields[11] != self.link",
        new="if fields[11] != self.link",
        tests=(TABLE,),
    ),
    Mutant(
        name="entry-index-not-checked",
        breaks="never moved: indexes are dense",
        file="wal/recovery.py",
        old="                if fields[8] != run.next_index:\n",
        new="                if False:\n",
        tests=(TABLE,),
    ),
    Mutant(
        name="truncated-file-accepted",
        breaks="never lost: a file that is shorter than it was made is damage",
        file="wal/recovery.py",
        old="        if size < header.capacity_bytes:\n",
        new="        if False:\n",
        tests=(f"{CUT_SHORT}[0]", f"{CUT_SHORT}[1]"),
    ),
    Mutant(
        name="foreign-file-accepted",
        breaks="never silently wrong: another log's entries are not ours",
        file="wal/recovery.py",
        old="            if report.header.log_id != log_id:\n",
        new="            if False:\n",
        tests=(BAD_INPUT,),
    ),
    Mutant(
        name="missing-file-accepted",
        breaks="never lost: a gap at the front is not a release",
        file="wal/recovery.py",
        old="    if missing > result.state.mark.index:\n",
        new="    if False:\n",
        tests=("tests/proof/test_damaged_files.py",),
    ),
    Mutant(
        name="hard-state-not-carried",
        breaks="a node never forgets its vote",
        file="wal/appender.py",
        old="    if hard_state != HardState():\n",
        new="    if False:\n",
        tests=(f"{LOG}::test_the_latest_hard_state_wins_and_outlives_its_file",),
    ),
    Mutant(
        name="mark-not-carried",
        breaks="a release is never forgotten",
        file="wal/appender.py",
        old="    if mark != Mark():\n",
        new="    if False:\n",
        tests=(f"{PROMISES}::test_a_release_outlives_the_file_it_was_written_to",),
    ),
    Mutant(
        name="freed-before-released",
        breaks="never lost: only what is released is freed",
        file="wal/reclaim.py",
        old="            while self._sealed and self._sealed[0].last_index <= released:\n",
        new="            while self._sealed and self._sealed[0].last_index <= released + 3:\n",
        tests=(f"{MODEL}[always-0]",),
    ),
    Mutant(
        name="recycled-under-a-reader",
        breaks="a view stays what it was, however long it is kept",
        file="wal/reclaim.py",
        old="            if unmapped and self._spares.fits",
        new="            if self._spares.fits",
        tests=(f"{LOG}::test_views_stay_valid_when_their_file_is_freed_and_the_log_closed",),
    ),
    Mutant(
        name="last-file-not-settled",
        breaks="what a reopened log has shown stays",
        file="wal/opening.py",
        old="        self._settle_last_file()\n        found = survey",
        new="        found = survey",
        tests=("tests/proof/test_kill_then_power_cut.py",),
    ),
    Mutant(
        name="interval-forgets-to-sync",
        breaks="a weaker mode loses no more than it says",
        file="wal/writer.py",
        old="        synced = self._appender.sync(tail)\n",
        new="        synced = tail._replace(synced=tail.position)\n",
        tests=(f"{PROMISES}::test_a_weaker_mode_calls_durable_only_what_it_has_synced",),
    ),
    Mutant(
        name="entry-limit-not-checked",
        breaks="a limit on everything",
        file="wal/request.py",
        old="    if length > bytes_max:\n",
        new="    if False:\n",
        tests=("tests/wal/test_settings.py::test_setting_entry_bytes_max",),
    ),
    Mutant(
        name="lock-not-taken",
        breaks="a folder has one owner",
        file="host/os_disk.py",
        old="            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n",
        new="",
        tests=(f"{BAD_INPUT}::test_a_second_owner_in_this_process_is_refused_too",),
    ),
    Mutant(
        name="waiters-behind-a-batch-not-woken",
        breaks="every caller learns what became of its entry",
        file="wal/request.py",
        old="            if waiter.gate is not None:\n                _unlock(waiter.gate)\n",
        new=(
            "            if waiter.gate is None:\n"
            "                return\n"
            "            else:\n"
            "                _unlock(waiter.gate)\n"
        ),
        tests=(f"{PROMISES}::test_every_caller_of_a_shared_group_returns",),
    ),
    Mutant(
        name="waiters-behind-a-flush-not-woken",
        breaks="every caller learns what became of its entry",
        file="wal/committer.py",
        old="                request.pass_on()\n",
        new="",
        tests=(f"{PROMISES}::test_a_flush_that_comes_late_lets_nobody_wait",),
    ),
    Mutant(
        name="released-taken-for-lost",
        breaks="errors say what happened",
        file="wal/reader.py",
        old="        _check_range(index, self._tail())  # it may have been released or truncated a"
        " moment ago\n",
        new="",
        tests=(
            f"{PROMISES}::test_a_read_that_meets_a_change_says_so_and_not_that_the_log_is_damaged",
        ),
    ),
    Mutant(
        name="records-acknowledged-without-a-sync",
        breaks="every acknowledged record is there after a power cut",
        file="wal/writer.py",
        old="            written = self._appender.write(after, group, sync=sync)\n",
        new=("            written = self._appender.write(after, group, sync=False)\n"),
        tests=(ENGINE_CUTS,),
    ),
    Mutant(
        name="snapshot-name-not-synced",
        breaks="never lost: a snapshot's name survives before the WAL frees what it holds",
        file="raft/snapshot.py",
        old="            self._disk.sync_folder(self._folder)\n            _FOLDER_SYNCED.hit()\n",
        new="            _FOLDER_SYNCED.hit()\n",
        tests=(ENGINE_CUTS,),
    ),
    Mutant(
        name="flush-logged-before-segment-names-are-synced",
        breaks="never lost: a segment's name survives before an entry speaks of it",
        file="engine/checkpoint.py",
        old="            self._lake.sync(number)  # the names must survive",
        new="            pass  # the names must survive",
        tests=(ENGINE_CUTS,),
        quick=True,
    ),
    Mutant(
        name="wal-released-up-to-the-newest-snapshot",
        breaks="a damaged newest snapshot is passed over",
        file="engine/checkpoint.py",
        old="            self._wal.release(newest[0])\n",
        new="            self._wal.release(newest[-1])\n",
        tests=(f"{ENGINE_DAMAGE}::test_without_its_newest_snapshot_a_log_is_the_same",),
        quick=True,
    ),
    Mutant(
        name="snapshot-ahead-of-the-wal",
        breaks="a log that syncs later opens after a power cut",
        file="engine/checkpoint.py",
        old="self._wal.flush()  # a log that syncs later must not end before its snapshot\n",
        new="pass\n",
        tests=(ENGINE_LATER, ENGINE_REGRESSIONS),
    ),
    Mutant(
        name="no-epoch-check",
        breaks="one who was fenced cannot write",
        file="state/machine.py",
        old="    if producer.epoch != epoch:\n",
        new="    if producer.epoch < epoch:\n",
        tests=(ENGINE_MODEL,),
    ),
    Mutant(
        name="transaction-visible-before-its-commit",
        breaks="a transaction is wholly visible or not at all",
        file="engine/transaction.py",
        old=(
            "            command = TransactionWrite(self.id, self.epoch, time_us, "
            "(self._ready[0].part,))\n"
        ),
        new=(
            "            from lakebed.state.commands import Write\n"
            "            command = Write(time_us, (self._ready[0].part,))\n"
        ),
        tests=(ENGINE_CUTS, ENGINE_MODEL),
    ),
    Mutant(
        name="repeat-not-recognised",
        breaks="a producer's batch is written once",
        file="state/machine.py",
        old="    if known is not None:\n",
        new="    if known == ():\n",
        tests=(ENGINE_CUTS,),
    ),
    Mutant(
        name="low-watermark-not-in-the-snapshot",
        breaks="records that were removed do not come back",
        file="state/image.py",
        old='"partitions": [[*key, *state.partitions[key]] for key',
        new='"partitions": [[*key, 0, *state.partitions[key][1:]] for key',
        tests=(ENGINE_MODEL,),
    ),
    Mutant(
        name="offsets-of-a-rejected-transaction",
        breaks="consumer offsets are committed with their transaction or not at all",
        file="engine/core.py",
        old="            result, changes, dropped = error, [], ()\n",
        new=(
            "            from lakebed.state.values import Committed\n"
            "            offsets = getattr(prepared.command, 'offsets', ())\n"
            "            changes = [\n"
            "                (state.offsets, (e[0], e[2], e[3]), Committed(e[4], 0))\n"
            "                for e in offsets if len(e) == 5\n"
            "            ]\n"
            "            result, dropped = error, ()\n"
        ),
        tests=(ENGINE_MODEL,),
    ),
    Mutant(
        name="column-checksum-not-checked",
        breaks="never silently wrong",
        file="lake/opened.py",
        old="            if found != checksum:\n",
        new="            if checksum < 0:\n",
        tests=(ENGINE_DAMAGE, "tests/lake/test_damage.py"),
    ),
    Mutant(
        name="orphans-deleted",
        breaks="a file that is not the log's is put aside, never deleted",
        file="engine/recovery.py",
        old="            strange.append(lake.path(*name))\n",
        new="            lake.remove(*name)\n",
        tests=(f"{ENGINE_DAMAGE}::test_a_file_that_is_not_the_logs_is_put_aside_and_kept",),
    ),
    Mutant(
        name="staged-files-removed-too-early",
        breaks="never lost: a staged file stays while a snapshot or a transaction needs it",
        file="engine/checkpoint.py",
        old="        needed = self._core.staged_needed().union(*self._kept.values())\n",
        new="        needed: set[int] = set()\n",
        tests=(ENGINE_CUTS,),
    ),
    Mutant(
        name="stale-abort-drops-bodies",
        breaks="one who was fenced cannot harm the transaction that follows",
        file="engine/core.py",
        old="            if changes:  # one of an epoch that was taken over aborts nothing\n",
        new="            if True:\n",
        tests=(ENGINE_REGRESSIONS,),
    ),
    Mutant(
        name="files-put-into-the-table-twice",
        breaks="a table shows every record once",
        file="lake/iceberg.py",
        old="        added = [place for place in wanted.files if place not in have]\n",
        new="        added = list(wanted.files)\n",
        tests=(f"{LAKE_KILLS}[lake.table.swapped]",),
        quick=True,
    ),
    Mutant(
        name="removed-files-stay-in-the-table",
        breaks="a table shows what the log has, and nothing that it removed",
        file="lake/iceberg.py",
        old="        removed = have.difference(wanted.files)\n",
        new="        removed: frozenset[str] = frozenset()\n",
        tests=(f"{LAKE_KILLS}[engine.retention.logged]",),
    ),
    Mutant(
        name="swap-repeated-blindly",
        breaks="a table is read again before it is changed again",
        file="lake/swaps.py",
        old='    "commit.retry.num-retries": "0",',
        new='    "commit.retry.num-retries": "4",',
        tests=(f"{LAKE}::test_somebody_who_commits_between_our_look_and_our_swap_is_seen",),
    ),
    Mutant(
        name="buried-segment-removed-under-a-snapshot",
        breaks="a file stays while a snapshot refers to it",
        file="engine/removal.py",
        old="                if segment in needed:\n",
        new="                if not needed:\n",
        tests=(f"{LAKE}::test_a_removed_segment_stays_while_a_snapshot_refers_to_it",),
    ),
    Mutant(
        name="object-removed-under-a-snapshot",
        breaks="an object stays while a snapshot refers to it",
        file="engine/removal.py",
        old="            if wanted is None or place in wanted or self._is_unknown(found.name):\n",
        new='            if wanted is None or (place in wanted and "/segments/" not in place):\n',
        tests=(f"{LAKE_KILLS}[engine.removal.file_removed]",),
    ),
    Mutant(
        name="no-grace-period",
        breaks="a file that may be in use, or in the making, stays for a while",
        file="engine/removal.py",
        old="            if now_us - since_us >= grace_us:\n",
        new="            if True:\n",
        tests=(f"{TIERING}::test_what_a_crash_left_half_written_is_removed",),
    ),
    Mutant(
        name="segment-sealed-during-an-upload-forgotten",
        breaks="a table comes to show every sealed record, without anything else happening",
        file="engine/tables.py",
        old="            if self._is_complete(shape):\n",
        new="            if True:\n",
        tests=(f"{TIERING}::test_what_is_sealed_while_others_are_uploaded_is_not_forgotten",),
    ),
    Mutant(
        name="segment-placed-before-its-upload",
        breaks="a table shows only objects that are in the store",
        file="engine/tiering.py",
        old="        sent: list[Segment] = []\n        try:\n",
        new=(
            "        self._place(key, segments, BOTH)\n"
            "        sent: list[Segment] = []\n        try:\n"
        ),
        tests=(f"{TIERING}::test_a_table_never_shows_an_object_that_was_not_uploaded",),
        quick=True,
    ),
    Mutant(
        name="damaged-segment-uploaded",
        breaks="never silently wrong: the store gets what was written, or nothing",
        file="engine/tiering.py",
        old="            self._reader.verify(*key, segment)\n",
        new="",
        tests=(f"{TIERING}::test_a_damaged_segment_is_not_uploaded",),
    ),
    Mutant(
        name="local-files-removed-before-the-log-is-synced",
        breaks="never lost: no entry that survives a power cut needs a file that was removed",
        file="engine/tiering.py",
        old="                self._flush()  # the entry must survive before the files go\n",
        new="",
        tests=(
            f"{TIERING}::test_local_files_go_only_when_the_entry_that_says_so_survives_a_power_cut",
        ),
    ),
    Mutant(
        name="place-goes-back",
        breaks="a segment that is in the store alone is not asked of the local disk",
        file="state/machine.py",
        old="            if places[each.id] > each.place:\n",
        new="            if places[each.id] != each.place:\n",
        tests=(f"{TIERING}::test_a_place_never_goes_back",),
    ),
    Mutant(
        name="segments-in-a-store-forgotten",
        breaks="a log whose segments cannot be reached is refused, not opened",
        file="engine/recovery.py",
        old="    if not stored:\n        _check_local(segments)\n",
        new="",
        tests=(f"{TIERING}::test_a_store_that_the_settings_have_lost_is_asked_for",),
    ),
    Mutant(
        name="adopted-file-not-checked",
        breaks="never silently wrong: a copy that is damaged is fetched again",
        file="lake/fetched.py",
        old="                _check(self._disk, path, segment)\n        except LakebedError:\n",
        new="                entry.whole = True\n        except LakebedError:\n",
        tests=(f"{TIERING}::test_a_fetched_copy_that_was_damaged_meanwhile_is_fetched_again",),
    ),
    Mutant(
        name="backup-without-a-hold",
        breaks="a backup has every file that its snapshot names",
        file="lake/holds.py",
        old="        return any(hold.covers(name) for hold in self._holds)\n",
        new="        return False\n",
        tests=(f"{BACKUP}::test_what_the_log_drops_meanwhile_stays_until_it_is_copied",),
        quick=True,
    ),
    Mutant(
        name="backup-manifest-before-names-are-synced",
        breaks="a backup is whole or not there",
        file="engine/backup.py",
        old="                self._disk.sync_folder(each)\n",
        new="                pass\n",
        tests=(f"{BACKUP_FAILURES}::test_a_power_cut_leaves_a_whole_backup_or_none",),
    ),
    Mutant(
        name="backup-files-not-synced",
        breaks="a backup is whole or not there",
        file="engine/backup_files.py",
        old="                    writing.sync()\n",
        new="                    pass\n",
        tests=(f"{BACKUP_FAILURES}::test_a_power_cut_leaves_a_whole_backup_or_none",),
    ),
    Mutant(
        name="backup-checksums-not-compared",
        breaks="a damaged backup is refused",
        file="engine/backup_files.py",
        old="    if checksum != expected.crc32c:\n",
        new="    if False:\n",
        tests=(f"{BACKUP_FAILURES}::test_a_damaged_file_is_named_and_nothing_is_written",),
    ),
    # The server
    Mutant(
        name="put-acknowledged-before-it-is-durable",
        breaks="acknowledged over the wire means on disk",
        file="serve/puts.py",
        old="answered.add_done_callback(lambda future: self._answer(number, future, stack))\n",
        new=(
            "answered.add_done_callback(lambda _: stack.close())\n"
            "        self._settle(number, [(1, 0, 0, 1, 0)])\n"
        ),
        tests=(f"{ACKS}::test_nothing_is_acknowledged_over_the_wire_while_its_sync_is_under_way",),
        quick=True,
    ),
    Mutant(
        name="calls-not-checked",
        breaks="deny by default: whatever no rule allows is refused",
        file="serve/flight.py",
        old="        if not call.open or names:\n",
        new="        if False:\n",
        tests=(f"{MATRIX}::test_a_caller_may_do_what_its_roles_allow_and_nothing_else[writer]",),
        quick=True,
    ),
    Mutant(
        name="puts-not-checked",
        breaks="deny by default: whatever no rule allows is refused",
        file="serve/flight.py",
        old='            self._guard.check(principal, "put", STREAMS["put"], [topic])\n',
        new="",
        tests=(f"{MATRIX}::test_a_caller_may_do_what_its_roles_allow_and_nothing_else[reader]",),
    ),
    Mutant(
        name="heartbeat-of-a-fetch-not-checked",
        breaks="whoever speaks for a member of a group may do so",
        file="serve/flight.py",
        old="                if group is not None:  # it is the heartbeat of a member too\n",
        new="                if False:\n",
        tests=(f"{MATRIX}::test_a_member_of_a_group_needs_the_group_also_to_fetch",),
    ),
    Mutant(
        name="batch-not-validated",
        breaks="received data is validated in full",
        file="serve/puts.py",
        old="            batch.validate(full=True)\n",
        new="            batch.validate()\n",
        tests=(f"{BAD_CLIENTS}::test_data_that_is_not_what_it_says_is_refused",),
    ),
    Mutant(
        name="sent-again-as-something-new",
        breaks="what is sent again is written once",
        file="client/puts.py",
        old="                again = list(self._flying.items())\n",
        new="                again, self._known = list(self._flying.items()), None\n",
        tests=(f"{SERVER_KILLS}::test_what_was_written_and_not_acknowledged_is_not_written_twice",),
        quick=True,
    ),
    Mutant(
        name="single-records-wait-for-ever",
        breaks="every call on a server that is gone ends in time",
        file="client/puts.py",
        old="        self._gathered.refuse(gone)\n",
        new="",
        tests=(f"{SERVER_KILLS}::test_a_client_of_a_server_that_is_gone_is_told_so_in_time",),
    ),
    Mutant(
        name="secret-of-a-token-not-compared",
        breaks="nobody comes in without a valid token",
        file="engine/access.py",
        old="        if token is None or not same:\n",
        new="        if token is None:\n",
        tests=(f"{MATRIX}::test_a_token_with_another_secret_is_none",),
        quick=True,
    ),
    Mutant(
        name="producer-of-somebody-else-accepted",
        breaks="a producer belongs to whoever it was given to",
        file="serve/calls.py",
        old="    if found is not None and found.owner != (",
        new="    if False and found.owner != (",
        tests=(f"{BAD_CLIENTS}::test_somebody_elses_producer_cannot_be_used",),
    ),
    Mutant(
        name="answers-pile-up",
        breaks="a client that does not read costs little memory",
        file="serve/puts.py",
        old="        return self._under_way >= UNDER_WAY_MAX or len(self._acks) >= _ANSWERS_MAX\n",
        new="        return self._under_way >= UNDER_WAY_MAX\n",
        tests=(f"{ACKS}::test_answers_that_nobody_reads_do_not_pile_up",),
    ),
    # Access
    Mutant(
        name="access-check-skipped",
        breaks="deny by default: one choke point checks every call",
        file="serve/guard.py",
        old="        if refused is None:\n            return\n        error = AccessDeniedError(\n",
        new="        return\n        error = AccessDeniedError(\n",
        tests=(f"{GUARD}::test_every_action_and_every_built_in_role",),
        quick=True,
    ),
    Mutant(
        name="only-the-first-name-checked",
        breaks="every name of a call is checked",
        file="serve/guard.py",
        old='    for name in names:\n        if need.on == "topic" and is_internal(name):\n',
        new='    for name in names[:1]:\n        if need.on == "topic" and is_internal(name):\n',
        tests=(f"{GUARD}::test_every_name_has_to_be_allowed",),
    ),
    Mutant(
        name="no-names-means-allowed",
        breaks="a call that names nothing is one on everything",
        file="serve/guard.py",
        old='    if need.on == "log" or not names:\n',
        new='    if need.on == "log":\n',
        tests=(f"{GUARD}::test_what_has_no_name_needs_the_pattern_for_everything",),
    ),
    Mutant(
        name="audit-topic-like-any-other",
        breaks="the audit is read by administrators and written by nobody",
        file="serve/guard.py",
        old='        if need.on == "topic" and is_internal(name):\n',
        new="        if False:\n",
        tests=(f"{GUARD}::test_the_logs_own_topics_are_for_administrators_and_written_by_nobody",),
    ),
    Mutant(
        name="bad-token-falls-back-to-the-certificate",
        breaks="a token that is shown has to be valid",
        file="serve/guard.py",
        old="            if token is not None and not (",
        new="            if token and not (",
        tests=(
            f"{GUARD}::test_a_token_comes_before_the_certificate_and_a_bad_one_is_not_made_good_by_it",
        ),
    ),
    Mutant(
        name="secret-not-compared",
        breaks="a token is more than its id",
        file="engine/access.py",
        old="        if token is None or not same:\n",
        new="        if token is None:\n",
        tests=(f"{ACCESS}::test_whatever_is_not_a_token_is_refused_without_being_repeated",),
        quick=True,
    ),
    Mutant(
        name="digest-without-the-logs-identity",
        breaks="a token of one log does not fit another",
        file="engine/access.py",
        old="hashlib.sha256(self._log_id.bytes + number.encode()",
        new="hashlib.sha256(number.encode()",
        tests=(f"{ACCESS}::test_a_token_of_another_log_does_not_fit_even_under_the_same_id",),
    ),
    Mutant(
        name="revoked-token-accepted",
        breaks="a revoked token is valid no more",
        file="engine/access.py",
        old=(
            "        if token.revoked_us:\n"
            '            raise UnauthenticatedError("the token was revoked", token=number)\n'
            "        if not token.valid_at(self._core.clock.time_us()):\n"
        ),
        new="        if token.expires_us and self._core.clock.time_us() >= token.expires_us:\n",
        tests=(f"{GUARD}::test_revocation_and_expiry_count_at_once",),
    ),
    Mutant(
        name="rules-remembered",
        breaks="a changed rule counts for the next call",
        file="engine/access.py",
        old="        if known is None or known[0] != changes:\n",
        new="        if known is None:\n",
        tests=(f"{ACCESS}::test_a_change_counts_at_once",),
    ),
    Mutant(
        name="revoked-tokens-forgotten",
        breaks="revoking the last token does not open the log to everybody",
        file="state/machine.py",
        old="    return Decision(None, [(state.tokens, token.id, revoked)])\n",
        new="    return Decision(None, [(state.tokens, token.id, GONE)])\n",
        tests=(f"{ACCESS}::test_a_revoked_token_is_valid_no_more_and_the_log_stays_closed",),
    ),
    Mutant(
        name="audit-without-a-limit",
        breaks="refused callers cannot fill the disk by trying",
        file="serve/audit.py",
        old="            window.written < REFUSALS_PER_SECOND\n            and ",
        new="            ",
        tests=(f"{GUARD}::test_many_refusals_of_one_caller_are_counted",),
    ),
    Mutant(
        name="secret-shown-by-repr",
        breaks="secrets redact themselves",
        file="types.py",
        old='        return "<secret>"\n',
        new="        return super().__repr__()\n",
        tests=(f"{ACCESS}::test_a_secret_is_shown_to_whoever_asks_and_by_nothing_else",),
    ),
    Mutant(
        name="marker-not-checked",
        breaks="transactions that are committed together count once for each number",
        file="state/machine.py",
        old="    if marker is not None and marker.number >= command.number:\n",
        new="    if marker is not None and marker.number > command.number:\n",
        tests=(f"{TOGETHER}::test_a_number_counts_once_however_often_and_late_it_is_committed",),
        quick=True,
    ),
    Mutant(
        name="somebody-elses-transaction-committed",
        breaks="a transaction is committed by its owner alone",
        file="state/machine.py",
        old="    if state.producers[number].owner != owner_of(command.name):\n",
        new="    if state.producers[number].owner is None:\n",
        tests=(f"{PROCESSES}::test_a_transaction_of_another_principal_is_not_committed",),
    ),
    Mutant(
        name="rewritten-segments-not-verified",
        breaks="what stands for old segments was read again and compared first",
        file="engine/survival.py",
        old="            self._verify(key, new, survivors)\n",
        new="",
        tests=(
            f"{COMPACTION}::test_a_key_survives_once",
            f"{COMPACTION}::test_a_row_that_was_lost_on_its_way_never_counts",
        ),
    ),
    Mutant(
        name="answer-not-held",
        breaks="bytes of an HTTP answer count until it is sent",
        file="serve/http_door.py",
        old='            caller.hold(len(response.body), always=request.method != "GET")\n',
        new="",
        tests=(f"{SLOW}::test_answers_count_until_they_are_sent",),
    ),
    Mutant(
        name="stalled-client-kept",
        breaks="an HTTP client that takes nothing is closed",
        file="serve/http_stalls.py",
        old="            self._stalled()\n",
        new="            self._wait()\n",
        tests=(f"{SLOW}::test_a_client_that_takes_nothing_is_closed_and_counted",),
    ),
    Mutant(
        name="body-deadline-begun-again",
        breaks="the body of an HTTP request has one deadline",
        file="serve/http_body.py",
        old="        piece, more = await _receive(request, began + allowed - time.monotonic())\n",
        new="        piece, more = await _receive(request, allowed)\n",
        tests=(f"{SLOW}::test_a_body_that_comes_byte_by_byte_has_one_deadline",),
    ),
    Mutant(
        name="places-not-by-principal",
        breaks="slow requests of one principal leave places for others",
        file="serve/http_places.py",
        old="        if self._principals.get(principal, 0) >= self._principal_most:\n",
        new="        if self._all >= self._principal_most:\n",
        tests=(f"{SLOW}::test_slow_bodies_of_one_principal_leave_places_for_others",),
    ),
    Mutant(
        name="places-not-by-address",
        breaks="requests from one address are limited together",
        file="serve/http_places.py",
        old="        if self._addresses.get(address, 0) >= self._address_most:\n",
        new="        if self._addresses.get(address, 0) < 0:\n",
        tests=(
            f"{SLOW}::test_slow_bodies_from_one_address_leave_places_for_health_and_are_counted_together",
        ),
    ),
    Mutant(
        name="body-read-before-the-permission",
        breaks="who may manage nothing does not get a body read",
        file="serve/gateway.py",
        old="            caller.check_somewhere()\n",
        new="",
        tests=(f"{SLOW}::test_who_may_manage_nothing_does_not_get_a_body_read",),
    ),
    Mutant(
        name="one-json-limit-for-all-calls",
        breaks="only records may be long",
        file="serve/http_door.py",
        old="            min(bytes_max, door.body_bytes_max),\n",
        new="            door.body_bytes_max,\n",
        tests=(f"{SLOW}::test_a_large_body_is_for_records_alone",),
    ),
    Mutant(
        name="json-values-not-counted",
        breaks="JSON of too many values is refused before it is built",
        file="serve/http_body.py",
        old="    check_values(body)\n",
        new="",
        tests=(f"{SLOW}::test_json_of_too_many_values_is_refused_before_it_is_built",),
    ),
    Mutant(
        name="values-counted-in-texts",
        breaks="commas in texts are no values",
        file="serve/http_body.py",
        old="    values = np.count_nonzero(before & ~in_text)\n",
        new="    values = np.count_nonzero(before)\n",
        tests=(f"{SLOW}::test_json_of_too_many_values_is_refused_before_it_is_built",),
    ),
    Mutant(
        name="known-callers-evicted-first",
        breaks="connections without a known caller make room first",
        file="serve/http_connections.py",
        old="        for pool in (self.idle_unknown, self.idle_known):\n",
        new="        for pool in (self.idle_known, self.idle_unknown):\n",
        tests=(f"{CROWDS}::test_idle_connections_make_room_for_the_next_one",),
    ),
    Mutant(
        name="no-reserve-of-connections",
        breaks="health probes are served when every connection is busy",
        file="serve/http_connections.py",
        old="        if self._spares < limits.HTTP_RESERVE:\n            return True\n",
        new="        if self._spares < limits.HTTP_RESERVE:\n            return False\n",
        tests=(
            f"{CROWDS}::test_health_probes_and_administrators_are_served_when_every_connection_is_busy",
        ),
    ),
    Mutant(
        name="handshake-not-counted",
        breaks="a connection counts during its handshake",
        file="serve/http_listener.py",
        old="        seat.prepare(lambda: _cancel(task), handshake=bool(self._tls))\n",
        new="",
        tests=(f"{CROWDS}::test_a_handshake_that_does_not_come_is_ended_and_counted",),
    ),
    Mutant(
        name="two-tokens-taken",
        breaks="an ambiguous head is refused",
        file="serve/http_head.py",
        old="        if given.count(name) > 1:\n",
        new="        if given.count(name) > 2:\n",
        tests=(f"{CROWDS}::test_an_ambiguous_head_is_refused_and_its_connection_closed",),
    ),
    Mutant(
        name="length-and-chunks-taken",
        breaks="an ambiguous head is refused",
        file="serve/http_head.py",
        old='    if b"transfer-encoding" in given and b"content-length" in given:\n',
        new='    if b"transfer-encoding" in given and given.count(b"content-length") > 1:\n',
        tests=(f"{CROWDS}::test_an_ambiguous_head_is_refused_and_its_connection_closed",),
    ),
    Mutant(
        name="websocket-records-unchecked",
        breaks="a WebSocket refuses what HTTP refuses",
        file="serve/record_socket.py",
        old="        check_record(given)\n",
        new="",
        tests=(f"{CROWDS}::test_a_record_that_http_refuses_a_websocket_refuses",),
    ),
    Mutant(
        name="paths-told",
        breaks="errors that are sent do not tell where the log is",
        file="serve/server.py",
        old="        hide_folders(self.log.folder, *filter(None, [self.config.backups]))\n",
        new="",
        tests=(f"{PRIVATE}::test_an_error_of_the_disk_does_not_tell_where_the_log_is",),
    ),
    Mutant(
        name="connection-lines-without-a-limit",
        breaks="HTTP connections have one log line a second",
        file="serve/refusals.py",
        old="            if second == self._second:\n",
        new="            if second < self._second:\n",
        tests=(f"{CROWDS}::test_lines_about_connections_are_written_once_a_second",),
    ),
    Mutant(
        name="audit-hidden-from-administrators",
        breaks="administrators read the audit over HTTP",
        file="serve/gateway.py",
        old="TopicPath = Annotated[str, Path(pattern=TOPIC_PATTERN",
        new="TopicPath = Annotated[str, Path(pattern=NAME_PATTERN",
        tests=(f"{GATEWAY}::test_an_administrator_reads_the_audit_and_others_do_not",),
    ),
)
