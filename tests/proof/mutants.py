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
UNKNOWN = "tests/serve/test_before_authentication.py"
STREAMS_OF_ONE = "tests/serve/test_streams_of_one.py"
NOT_TAKEN = "tests/serve/test_answers_not_taken.py"
REQUESTS = "tests/serve/test_requests.py"
ROOM = "tests/serve/test_room.py"
CONNECTIONS = "tests/serve/test_connections.py"
ACKS = "tests/serve/test_acknowledgements.py"
SERVER_KILLS = "tests/serve/test_kills.py"
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
        old="        if group is not None:  # it is the heartbeat of a member too\n",
        new="        if False:\n",
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
    # Before a caller is known, and limits of one caller
    Mutant(
        name="put-streams-authenticated-with-their-first-message",
        breaks="a stream without a token holds no thread",
        file="serve/flight.py",
        old="                caller.principal = self._guard.authenticate(caller.token)\n",
        new="                pass\n",
        tests=(f"{UNKNOWN}::test_a_stream_without_a_token_holds_no_thread",),
        quick=True,
    ),
    Mutant(
        name="methods-that-are-not-offered-pass",
        breaks="what is not offered is refused by an error that says so",
        file="serve/flight.py",
        old="            if method is not PUT:\n                raise ProtocolError(",
        new="            if False:\n                raise ProtocolError(",
        tests=(
            f"{UNKNOWN}::test_a_method_that_is_not_offered_is_refused_by_an_error_that_says_so",
        ),
    ),
    Mutant(
        name="two-tokens-taken-for-the-first",
        breaks="a call has one token",
        file="serve/callers.py",
        old=' and len(values) == 1 else ""',
        new=' else ""',
        tests=(f"{UNKNOWN}::test_two_tokens_are_none",),
    ),
    Mutant(
        name="unknown-connections-send-what-they-like",
        breaks="a caller that is not known may send few bytes",
        file="serve/connections.py",
        old="                if each.received > config.flight_unauthenticated_bytes_max:\n",
        new="                if False:\n",
        tests=(f"{UNKNOWN}::test_a_caller_that_is_not_known_may_send_few_bytes",),
        quick=True,
    ),
    Mutant(
        name="silent-connections-kept",
        breaks="a connection without a known caller is closed in time",
        file="serve/connections.py",
        old="            if not each.known and now - each.since > patience:\n",
        new="            if False:\n",
        tests=(
            f"{UNKNOWN}::test_a_connection_that_says_nothing_is_closed_and_that_of_a_known_caller_is_kept",
        ),
    ),
    Mutant(
        name="known-connections-closed-too",
        breaks="the connection of a known caller is kept",
        file="serve/connections.py",
        old="                found.known, found.base = True, each.received\n",
        new="                found.base = each.received\n",
        tests=(
            f"{UNKNOWN}::test_a_connection_that_says_nothing_is_closed_and_that_of_a_known_caller_is_kept",
        ),
    ),
    Mutant(
        name="connections-of-an-address-not-limited",
        breaks="connections of one address are limited",
        file="serve/connections.py",
        old="            elif addresses[address] >= config.flight_address_connections_max:\n",
        new="            elif False:\n",
        tests=(f"{UNKNOWN}::test_connections_of_one_address_are_limited",),
    ),
    Mutant(
        name="another-connection-shut-down",
        breaks="a descriptor that belongs to another connection by now is left alone",
        file="serve/connections.py",
        old="            if _peer_of(connection, self._port) == seen.peer:\n",
        new="            if True:\n",
        tests=(f"{CONNECTIONS}::test_a_descriptor_of_another_connection_is_left_alone",),
    ),
    Mutant(
        name="large-requests-of-known-callers-taken",
        breaks="a known caller may not send a request of any size",
        file="serve/connections.py",
        old="            elif each.received - each.base > self._allowed(peer):\n",
        new="            elif False:\n",
        tests=(f"{CONNECTIONS}::test_a_known_connection_may_send_what_its_streams_may",),
    ),
    Mutant(
        name="unknown-connections-not-limited-together",
        breaks="connections without a known caller have a limit together",
        file="serve/connections.py",
        old="            if total <= most:\n                return\n",
        new="            return\n",
        tests=(f"{CONNECTIONS}::test_connections_that_are_not_known_have_a_limit_together",),
    ),
    Mutant(
        name="streams-of-a-principal-not-limited",
        breaks="one principal leaves the others their streams",
        file="serve/slots.py",
        old="        if not administrator and self._names[name] >= self._principal_most:\n",
        new="        if False:\n",
        tests=(f"{STREAMS_OF_ONE}::test_a_principal_has_so_many_streams_and_the_others_theirs",),
        quick=True,
    ),
    Mutant(
        name="streams-of-an-address-not-limited",
        breaks="one address leaves the others their streams",
        file="serve/slots.py",
        old="            if self._addresses[address] >= self._address_most:\n",
        new="            if False:\n",
        tests=(f"{STREAMS_OF_ONE}::test_an_open_log_limits_addresses",),
    ),
    Mutant(
        name="no-reserve-of-streams",
        breaks="administrators have streams that others cannot use up",
        file="serve/slots.py",
        old="            most = self._most if administrator else self._most - self._reserved\n",
        new="            most = self._most\n",
        tests=(f"{STREAMS_OF_ONE}::test_administrators_have_a_reserve",),
    ),
    Mutant(
        name="quota-told-as-a-server-that-is-gone",
        breaks="a refusal for want of streams is told as such",
        file="client/puts.py",
        old="        gone = self._over_quota or ServerUnavailableError(",
        new="        gone = ServerUnavailableError(",
        tests=(f"{STREAMS_OF_ONE}::test_a_refusal_for_want_of_streams_is_told_as_such[append]",),
    ),
    Mutant(
        name="answers-not-counted",
        breaks="the bytes of an answer count until it is sent",
        file="serve/flight.py",
        old="            caller.stack.enter_context(self._quotas.held(principal, answer.nbytes))\n",
        new="            pass\n",
        tests=(f"{NOT_TAKEN}::test_an_answer_counts_until_it_is_sent[read]",),
    ),
    Mutant(
        name="stalled-clients-kept",
        breaks="a client that takes nothing is disconnected",
        file="serve/flight.py",
        old="            if caller.progress < late:\n",
        new="            if False:\n",
        tests=(f"{NOT_TAKEN}::test_a_client_that_takes_nothing_is_disconnected",),
    ),
    Mutant(
        name="slow-readers-of-streams-disconnected",
        breaks="a stream of batches may be read slowly",
        file="serve/flight.py",
        old=(
            "            if isinstance(answer, pa.Table):\n"
            "                self._is_sending(caller, principal)\n"
        ),
        new=(
            "            self._is_sending(caller, principal)\n"
            "            if isinstance(answer, pa.Table):\n"
        ),
        tests=(f"{NOT_TAKEN}::test_a_stream_of_batches_may_be_read_slowly",),
    ),
    Mutant(
        name="large-requests-taken-apart-first",
        breaks="who may do nothing of a kind has no large request taken apart",
        file="serve/requests.py",
        old="    if size > SMALL_REQUEST_BYTES and actions:\n",
        new="    if False:\n",
        tests=(f"{REQUESTS}::test_who_may_do_nothing_of_a_kind_has_no_large_request_taken_apart",),
    ),
    Mutant(
        name="bodies-of-calls-that-take-nothing",
        breaks="a call that takes nothing refuses a body",
        file="serve/requests.py",
        old="    if not call.parameters and size > len(_NOTHING):\n",
        new="    if False:\n",
        tests=(f"{REQUESTS}::test_a_call_that_takes_nothing_refuses_a_body[hello]",),
    ),
    Mutant(
        name="large-tickets-taken-apart-first",
        breaks="a large ticket is taken apart for readers alone",
        file="serve/flight.py",
        old="        if len(data) > SMALL_REQUEST_BYTES:\n",
        new="        if False:\n",
        tests=(f"{REQUESTS}::test_a_large_ticket_is_taken_apart_for_readers_alone",),
    ),
    Mutant(
        name="lists-of-any-length",
        breaks="a list or map of a request has so many items",
        file="serve/protocol.py",
        old="            max_array_len=items_max,\n            max_map_len=items_max,\n",
        new="",
        tests=(f"{REQUESTS}::test_a_list_or_map_has_so_many_items",),
    ),
    Mutant(
        name="one-principal-fills-the-state",
        breaks="one caller leaves room for the others",
        file="serve/room.py",
        old="        if not self._administrator and count >= most:\n",
        new="        if False:\n",
        tests=(f"{ROOM}::test_one_caller_leaves_room_for_the_others",),
    ),
    Mutant(
        name="markers-of-old-forgotten-late",
        breaks="markers whose time is over are forgotten with the next commit",
        file="state/owned.py",
        old="            stack += (2 * index + 1, 2 * index + 2)\n",
        new="            stack += (2 * index + 1,)\n",
        tests=("tests/state/test_owned.py::test_markers_know_whose_time_is_over",),
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
)
