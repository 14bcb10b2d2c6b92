"""Faults in the WAL: its files, frames, recovery and callers."""

from __future__ import annotations

from tests.proof.mutation import Mutant, before, drop, instead, never, omit, replace

MODEL = "tests/proof/test_power_cut_model.py::test_a_power_cut_leaves_what_was_acknowledged"
FLIPS = "tests/proof/test_damage.py::test_a_flipped_bit_is_reported_or_harmless"
CUT_SHORT = "tests/proof/test_damage.py::test_a_file_that_was_cut_short_is_refused"
TABLE = "tests/wal/test_recovery_table.py"
PROMISES = "tests/wal/test_promises.py"
LOG = "tests/wal/test_log.py"
DESCRIPTORS = "tests/wal/test_descriptors.py::test_running_out_of_descriptors_is_refused_and_heals"
BAD_INPUT = "tests/wal/test_bad_input.py"
FAILING = "tests/proof/test_failing_disk.py"

MUTANTS = (
    Mutant(
        name="no-fdatasync",
        breaks="acknowledged means on disk",
        at="lakebed.wal.appender:Appender.write",
        changes=(drop("$F.sync_data()"),),
        tests=(f"{MODEL}[always-0]",),
        seconds=5,
    ),
    Mutant(
        name="ack-before-sync",
        breaks="acknowledged means on disk",
        at="lakebed.wal.appender:Appender.write",
        changes=(before("$F.sync_data()", "for early in group:\n    early.settle()"),),
        tests=(f"{PROMISES}::test_nothing_is_acknowledged_or_read_while_its_sync_is_under_way",),
        seconds=5,
    ),
    Mutant(
        name="reader-past-durable",
        breaks="readers see only durable entries",
        at="lakebed.wal.group_commit:GroupCommit._round",
        changes=(
            replace("$W.commit(self.tail, group)", "$W.commit(shown, group)"),
            before(
                "$W.commit(...)",
                """
early = self._writer._appender.write(self.tail, group, sync=False)
self._writer._publish(self.tail, early, group, only_entries=True)
shown, self.tail = self.tail, early
""",
            ),
        ),
        tests=(f"{PROMISES}::test_nothing_is_acknowledged_or_read_while_its_sync_is_under_way",),
        seconds=5,
    ),
    Mutant(
        name="no-folder-sync-after-rotation",
        breaks="never lost: the file's name survives before anything in it is acknowledged",
        at="lakebed.wal.appender:Appender.start_file",
        changes=(drop("self._folder.sync()"),),
        tests=(f"{MODEL}[always-0]",),
        seconds=5,
    ),
    Mutant(
        name="folder-opened-for-each-sync",
        breaks="a process without descriptors is refused, and its log is not poisoned",
        at="lakebed.wal.appender:Appender.start_file",
        changes=(instead("self._folder.sync()", "self._disk.sync_folder(self._layout.wal)"),),
        tests=(f"{DESCRIPTORS}[rotation_to_a_spare]",),
        seconds=20,
    ),
    Mutant(
        name="no-folder-sync-after-recycling",
        breaks="never lost: a file that gets its old name back has its old contents",
        at="lakebed.wal.spares:Spares.give",
        changes=(drop("$D.sync_folder(...)"),),
        tests=(f"{PROMISES}::test_a_file_is_not_used_again_before_its_old_name_is_surely_gone",),
        seconds=5,
    ),
    Mutant(
        name="header-not-synced-before-rename",
        breaks="a file with a WAL name has a valid header",
        at="lakebed.wal.appender:Appender.start_file",
        changes=(drop("file.sync()"),),
        tests=(f"{MODEL}[always-0]",),
        seconds=5,
    ),
    Mutant(
        name="old-file-not-synced-before-rotation",
        breaks="a later file proves that the one before is whole",
        at="lakebed.wal.appender:Appender.rotate",
        changes=(
            drop("self.sync(...)"),
            drop("$T.file.sync()"),
        ),
        tests=(
            f"{MODEL}[os-0]",
            f"{MODEL}[interval-0]",
        ),
        seconds=5,
    ),
    Mutant(
        name="end-block-not-written",
        breaks="the log ends where it was last written, also in a recycled file",
        at="lakebed.wal.appender:Appender.write",
        changes=(drop("$B.append(END_BLOCK)"),),
        tests=(f"{PROMISES}::test_a_recycled_file_ends_where_it_was_last_written",),
        seconds=5,
    ),
    Mutant(
        name="durable-through-says-too-much",
        breaks="a torn write is told from damage",
        at="lakebed.wal.appender:Appender.write",
        changes=(
            replace(
                "synced",
                "tail.position + size_bytes + request.span",
                within="pack_body(...)",
            ),
        ),
        tests=(f"{MODEL}[always-0]",),
        seconds=5,
    ),
    Mutant(
        name="failed-sync-retried",
        breaks="a failed sync is never made good by a later one",
        at="lakebed.wal.appender:Appender.write",
        changes=(
            instead(
                "$F.sync_data()",
                """
try:
    $F.sync_data()
except OSError:
    $F.sync_data()
""",
            ),
        ),
        tests=(f"{FAILING}::test_a_failed_sync_is_never_made_good_by_a_later_one",),
        seconds=5,
    ),
    Mutant(
        name="poison-not-set",
        breaks="after a failed write nothing more is acknowledged",
        at="lakebed.wal.writer:Writer._poison",
        changes=(instead("_log.error(...)", "self.poison = self._failure = None"),),
        tests=(f"{FAILING}::test_a_failed_sync_is_never_made_good_by_a_later_one",),
        seconds=5,
    ),
    Mutant(
        name="short-write-not-completed",
        breaks="never lost: what is acknowledged was written whole",
        at="lakebed.host.disk:write_all",
        changes=(drop("while $X: ..."),),
        tests=(f"{FAILING}::test_no_failing_call_breaks_a_promise[write]",),
        seconds=5,
    ),
    Mutant(
        name="disk-full-poisons",
        breaks="a full disk is an answer, not the end",
        at="lakebed.wal.writer:Writer.commit",
        changes=(instead("_log.warning(...)", "self.poison = error.cause"),),
        tests=(f"{FAILING}::test_a_full_disk_rejects_and_the_log_goes_on",),
        seconds=5,
    ),
    Mutant(
        name="payload-checksum-ignored-in-scan",
        breaks="never silently wrong",
        at="lakebed.wal.scan:FileScan._frames",
        changes=(replace("not right", "not right and end > self._have"),),
        tests=(f"{FLIPS}[plain-0]",),
        seconds=5,
    ),
    Mutant(
        name="payload-checksum-ignored-across-chunks",
        breaks="never silently wrong",
        at="lakebed.wal.scan:FileScan._across_chunks",
        changes=(omit("$X == payload_checksum"),),
        tests=(
            f"{FLIPS}[wide-0]",
            f"{FLIPS}[wide-1]",
            f"{FLIPS}[wide-2]",
        ),
        seconds=5,
    ),
    Mutant(
        name="header-checksum-ignored-in-reader",
        breaks="never silently wrong",
        at="lakebed.wal.reader:read_run",
        changes=(omit("checksum_of(...) != $X"),),
        tests=(
            "tests/proof/test_damaged_files.py::test_damage_after_opening_is_reported_when_it_is_read",
        ),
        seconds=5,
    ),
    Mutant(
        name="payload-checksum-ignored-in-reader",
        breaks="never silently wrong",
        at="lakebed.wal.reader:read_run",
        changes=(never("checksum_of($P) != $X"),),
        tests=(
            "tests/proof/test_damaged_files.py::test_damage_after_opening_is_reported_when_it_is_read",
        ),
        seconds=5,
    ),
    Mutant(
        name="torn-tail-cut-whatever-is-proven",
        breaks="never lost: damage to synced bytes is not a torn write",
        at="lakebed.wal.recovery:decide",
        changes=(omit("proven"),),
        tests=(TABLE,),
        seconds=5,
    ),
    Mutant(
        name="torn-tail-cut-in-any-file",
        breaks="never lost: only the last file can have been torn",
        at="lakebed.wal.recovery:decide",
        changes=(omit("not last_file"),),
        tests=(TABLE,),
        seconds=5,
    ),
    Mutant(
        name="unreadable-taken-for-the-end",
        breaks="a device error never truncates",
        at="lakebed.wal.recovery:decide",
        changes=(drop("$X is Ending.UNREADABLE"),),
        tests=(TABLE,),
        seconds=5,
    ),
    Mutant(
        name="torn-bytes-not-zeroed",
        breaks="never invented: what was cut off never comes back",
        at="lakebed.wal.repair:cut_torn_tail",
        changes=(drop("write_all(...)"),),
        tests=(TABLE,),
        seconds=5,
    ),
    Mutant(
        name="cut-not-synced",
        breaks="never invented: what was cut off never comes back",
        at="lakebed.wal.repair:cut_torn_tail",
        changes=(drop("$F.sync_data()"),),
        tests=(
            f"{PROMISES}::test_a_torn_tail_is_surely_gone_before_anything_is_written_in_its_place",
        ),
        seconds=5,
    ),
    Mutant(
        name="parent-not-checked",
        breaks="never silently wrong: frames follow each other",
        at="lakebed.wal.scan:FileScan._frames",
        changes=(omit("$X != self.link"),),
        tests=(TABLE,),
        seconds=5,
    ),
    Mutant(
        name="file-number-not-checked",
        breaks="never silently wrong: a frame is in the file it was written to",
        at="lakebed.wal.scan:FileScan._frames",
        changes=(omit("$X != file_number"),),
        tests=(TABLE,),
        seconds=5,
    ),
    Mutant(
        name="entry-index-not-checked",
        breaks="never moved: indexes are dense",
        at="lakebed.wal.recovery:_Surveyor._replay",
        changes=(never("$X != $RUN.next_index"),),
        tests=(TABLE,),
        seconds=5,
    ),
    Mutant(
        name="truncated-file-accepted",
        breaks="never lost: a file that is shorter than it was made is damage",
        at="lakebed.wal.recovery:_Surveyor._header",
        changes=(never("$X < $HEADER.capacity_bytes"),),
        tests=(
            f"{CUT_SHORT}[0]",
            f"{CUT_SHORT}[1]",
        ),
        seconds=15,
    ),
    Mutant(
        name="foreign-file-accepted",
        breaks="never silently wrong: another log's entries are not ours",
        at="lakebed.wal.recovery:_Surveyor._log_id",
        changes=(never("$X.log_id != log_id"),),
        tests=(BAD_INPUT,),
        seconds=5,
    ),
    Mutant(
        name="missing-file-accepted",
        breaks="never lost: a gap at the front is not a release",
        at="lakebed.wal.recovery:_check_start",
        changes=(never("$X > $STATE.mark.index"),),
        tests=("tests/proof/test_damaged_files.py",),
        seconds=5,
    ),
    Mutant(
        name="hard-state-not-carried",
        breaks="a node never forgets its vote",
        at="lakebed.wal.appender:_frames_to_carry",
        changes=(never("$X != HardState()"),),
        tests=(f"{LOG}::test_the_latest_hard_state_wins_and_outlives_its_file",),
        seconds=5,
    ),
    Mutant(
        name="mark-not-carried",
        breaks="a release is never forgotten",
        at="lakebed.wal.appender:_frames_to_carry",
        changes=(never("$X != Mark()"),),
        tests=(f"{PROMISES}::test_a_release_outlives_the_file_it_was_written_to",),
        seconds=5,
    ),
    Mutant(
        name="freed-before-released",
        breaks="never lost: only what is released is freed",
        at="lakebed.wal.reclaim:Reclaimer.free",
        changes=(replace("$X.last_index <= $Y", "$X.last_index <= $Y + 3"),),
        tests=(f"{MODEL}[always-0]",),
        seconds=5,
    ),
    Mutant(
        name="recycled-under-a-reader",
        breaks="a view stays what it was, however long it is kept",
        at="lakebed.wal.reclaim:Reclaimer._free_one",
        changes=(omit("unmapped"),),
        tests=(f"{LOG}::test_views_stay_valid_when_their_file_is_freed_and_the_log_closed",),
        seconds=5,
    ),
    Mutant(
        name="last-file-not-settled",
        breaks="what a reopened log has shown stays",
        at="lakebed.wal.opening:_Opening.run",
        changes=(drop("self._settle_last_file()"),),
        tests=("tests/proof/test_kill_then_power_cut.py",),
        seconds=5,
    ),
    Mutant(
        name="interval-forgets-to-sync",
        breaks="a weaker mode loses no more than it says",
        at="lakebed.wal.writer:Writer._sync",
        changes=(replace("$A.sync($T)", "$T._replace(synced=$T.position)"),),
        tests=(f"{PROMISES}::test_a_weaker_mode_calls_durable_only_what_it_has_synced",),
        seconds=5,
    ),
    Mutant(
        name="entry-limit-not-checked",
        breaks="a limit on everything",
        at="lakebed.wal.request:entry_request",
        changes=(never("$X > bytes_max"),),
        tests=("tests/wal/test_settings.py::test_setting_entry_bytes_max",),
        seconds=5,
    ),
    Mutant(
        name="lock-not-taken",
        breaks="a folder has one owner, also beside version 0.6",
        at="lakebed.host.os_disk:_lock_file",
        changes=(drop("fcntl.flock(...)"),),
        tests=(
            "tests/wal/test_lock_file.py"
            "::test_the_file_is_locked_for_versions_that_look_at_it_alone",
        ),
        seconds=5,
    ),
    Mutant(
        name="folder-not-locked",
        breaks="one owner of a folder, even if the lock file is removed",
        at="lakebed.wal.folder:take_lock",
        changes=(replace("$D.lock(..., folder=True)", "disk.lock(layout.lock, owner_text())"),),
        tests=("tests/wal/test_lock_file.py::test_a_removed_lock_file_gives_no_second_owner",),
        seconds=5,
    ),
    Mutant(
        name="waiters-behind-a-batch-not-woken",
        breaks="every caller learns what became of its entry",
        at="lakebed.wal.request:Waiter.wake",
        changes=(before("$W.gate is not None", "if $W.gate is None:\n    return"),),
        tests=(f"{PROMISES}::test_every_caller_of_a_shared_group_returns",),
        seconds=5,
    ),
    Mutant(
        name="waiters-behind-a-flush-not-woken",
        breaks="every caller learns what became of its entry",
        at="lakebed.wal.group_commit:GroupCommit._join",
        changes=(drop("$R.pass_on()"),),
        tests=(f"{PROMISES}::test_a_flush_that_comes_late_lets_nobody_wait",),
        seconds=5,
    ),
    Mutant(
        name="released-taken-for-lost",
        breaks="errors say what happened",
        at="lakebed.wal.reader:Reader._entry_lost_error",
        changes=(drop("_check_range(...)"),),
        tests=(
            f"{PROMISES}::test_a_read_that_meets_a_change_says_so_and_not_that_the_log_is_damaged",
        ),
        seconds=5,
    ),
)
