"""Faults in the log engine: records, producers, transactions, checkpoints, compaction."""

from __future__ import annotations

from tests.proof.mutation import Mutant, after, always, before, drop, instead, never, replace

ENGINE_CUTS = (
    "tests/proof/test_engine_power_cut.py::test_a_power_cut_leaves_every_acknowledged_record[0]"
)
ALL_ENGINE_CUTS = ENGINE_CUTS.partition("[")[0]
"""For what not every life meets, however it is drawn."""
ENGINE_LATER = (
    "tests/proof/test_engine_power_cut.py::test_a_log_that_syncs_later_opens_after_any_cut"
)
ENGINE_MODEL = "tests/proof/test_engine_model.py::test_a_log_behaves_like_lists"
ENGINE_DAMAGE = "tests/proof/test_engine_damage.py"
ENGINE_REGRESSIONS = "tests/proof/test_engine_regressions.py"
TOGETHER = "tests/engine/test_together.py"
COMPACTION = "tests/engine/test_compaction.py"

MUTANTS = (
    Mutant(
        name="idleness-by-the-wall-clock-alone",
        breaks="a producer that writes is not forgotten, whatever the wall clock says",
        at="lakebed.engine.idleness:Idleness.expiry_us",
        changes=(drop("before_us = min(...)"),),
        tests=(
            "tests/engine/test_producers.py"
            "::test_a_producer_that_wrote_while_the_clock_was_behind_is_not_forgotten",
        ),
        seconds=5,
    ),
    Mutant(
        name="unused-memory-kept",
        breaks="memory that was freed is returned to the operating system",
        at="lakebed.engine.idle_memory:IdleMemory.look",
        changes=(never("since >= $X"),),
        tests=(
            "tests/serve/test_memory_returned.py"
            "::test_memory_is_returned_when_the_log_is_idle_and_seldom_when_it_is_not",
        ),
        seconds=5,
    ),
    Mutant(
        name="wal-file-that-cannot-be-made-is-ready",
        breaks="a server without a file for the next entries is not ready",
        at="lakebed.serve.server:Server._ready",
        changes=(never("lacking is not None"),),
        tests=(
            "tests/serve/test_full_disk_reported.py"
            "::test_a_wal_file_that_cannot_be_made_is_not_ready_until_it_can",
        ),
        seconds=30,
    ),
    Mutant(
        name="full-disk-not-told",
        breaks="a writer learns at once that the disk is full",
        at="lakebed.engine.budget:Budget.disk_full",
        changes=(never("isinstance(...)"),),
        tests=(
            "tests/serve/test_full_disk_reported.py"
            "::test_writers_learn_at_once_that_the_disk_is_full",
        ),
        seconds=70,
    ),
    Mutant(
        name="records-acknowledged-without-a-sync",
        breaks="every acknowledged record is there after a power cut",
        at="lakebed.wal.writer:Writer.commit",
        changes=(replace("$A.write($T, $G, sync=$S)", "$A.write($T, $G, sync=False)"),),
        tests=(ENGINE_CUTS,),
        seconds=15,
    ),
    Mutant(
        name="snapshot-name-not-synced",
        breaks="never lost: a snapshot's name survives before the WAL frees what it holds",
        at="lakebed.host.atomic:write_atomically",
        changes=(drop("$D.sync_folder(...)"),),
        tests=(ALL_ENGINE_CUTS,),
        seconds=60,
    ),
    Mutant(
        name="name-of-an-atomic-write-not-synced",
        breaks="a file that is written atomically survives once the write returns",
        at="lakebed.host.atomic:write_atomically",
        changes=(drop("$D.sync_folder(...)"),),
        tests=("tests/host/test_atomic.py",),
        seconds=5,
    ),
    Mutant(
        name="contents-not-synced-before-their-name",
        breaks="a file that is written atomically is whole under its name",
        at="lakebed.host.atomic:write_atomically",
        changes=(drop("file.sync()"),),
        tests=("tests/host/test_atomic.py",),
        seconds=5,
    ),
    Mutant(
        name="flush-logged-before-segment-names-are-synced",
        breaks="never lost: a segment's name survives before an entry speaks of it",
        at="lakebed.engine.checkpoint:Checkpointer._write_all",
        changes=(drop("$LAKE.sync(...)"),),
        tests=(ENGINE_CUTS,),
        seconds=15,
    ),
    Mutant(
        name="wal-released-up-to-the-newest-snapshot",
        breaks="a damaged newest snapshot is passed over",
        at="lakebed.engine.checkpoint:Checkpointer._snapshot",
        changes=(replace("$X[0]", "$X[-1]", within="$WAL.release(...)"),),
        tests=(f"{ENGINE_DAMAGE}::test_without_its_newest_snapshot_a_log_is_the_same",),
        seconds=5,
    ),
    Mutant(
        name="snapshot-ahead-of-the-wal",
        breaks="a log that syncs later opens after a power cut",
        at="lakebed.engine.checkpoint:Checkpointer._snapshot",
        changes=(drop("$WAL.flush()"),),
        tests=(
            ENGINE_LATER,
            ENGINE_REGRESSIONS,
        ),
        seconds=5,
    ),
    Mutant(
        name="no-epoch-check",
        breaks="one who was fenced cannot write",
        at="lakebed.state.decide_producers:find_producer",
        changes=(replace("$X.epoch != epoch", "$X.epoch < epoch"),),
        tests=(ENGINE_MODEL,),
        seconds=15,
    ),
    Mutant(
        name="transaction-visible-before-its-commit",
        breaks="a transaction is wholly visible or not at all",
        at="lakebed.api.transaction:Transaction._write_all",
        changes=(
            before("TransactionWrite(...)", "from lakebed.state.commands import Write"),
            replace("TransactionWrite($ID, $EPOCH, $TIME, $PARTS)", "Write($TIME, $PARTS)"),
        ),
        tests=(
            ENGINE_CUTS,
            ENGINE_MODEL,
        ),
        seconds=15,
    ),
    Mutant(
        name="repeat-not-recognised",
        breaks="a producer's batch is written once",
        at="lakebed.state.decide_writes:producer_write",
        changes=(replace("earlier is not None", "earlier == ()"),),
        tests=(
            "tests/engine/test_producers.py"
            "::test_a_repeated_batch_is_told_its_first_place_and_written_once",
        ),
        seconds=5,
    ),
    Mutant(
        name="low-watermark-not-in-the-snapshot",
        breaks="records that were removed do not come back",
        at="lakebed.state.image:encode_state",
        changes=(replace("(*$K, *$S.partitions[$K])", "(*$K, 0, *$S.partitions[$K][1:])"),),
        tests=(ENGINE_MODEL,),
        seconds=60,
    ),
    Mutant(
        name="offsets-of-a-rejected-transaction",
        breaks="consumer offsets are committed with their transaction or not at all",
        at="lakebed.engine.core:Core._decide",
        changes=(
            after(
                "error, [], ()",
                """
from lakebed.state.values import Committed
changes = [
    (state.offsets, (item[0], item[2], item[3]), Committed(item[4], 0))
    for item in getattr(prepared.command, "offsets", ())
    if len(item) == 5
]
""",
            ),
        ),
        tests=(ENGINE_MODEL,),
        seconds=15,
    ),
    Mutant(
        name="orphans-deleted",
        breaks="a file that is not the log's is put aside, never deleted",
        at="lakebed.engine.recovery:tidy",
        changes=(instead("$X.append(lake.path(*$NAME))", "lake.remove(*$NAME)"),),
        tests=(f"{ENGINE_DAMAGE}::test_a_file_that_is_not_the_logs_is_put_aside_and_kept",),
        seconds=5,
    ),
    Mutant(
        name="staged-files-removed-too-early",
        breaks="never lost: a staged file stays while a snapshot or a transaction needs it",
        at="lakebed.engine.checkpoint:Checkpointer._clean",
        changes=(replace("$X.list_staged_needed().union(...)", "set()"),),
        tests=(ALL_ENGINE_CUTS,),
        seconds=60,
    ),
    Mutant(
        name="stale-abort-drops-bodies",
        breaks="one who was fenced cannot harm the transaction that follows",
        at="lakebed.engine.core:Core._data",
        changes=(always("changes", within="if changes: ..."),),
        tests=(ENGINE_REGRESSIONS,),
        seconds=5,
    ),
    Mutant(
        name="marker-not-checked",
        breaks="transactions that are committed together count once for each number",
        at="lakebed.state.decide_transactions:commit_together",
        changes=(replace("$X.number >= $Y", "$X.number > $Y"),),
        tests=(f"{TOGETHER}::test_a_number_counts_once_however_often_and_late_it_is_committed",),
        seconds=5,
    ),
    Mutant(
        name="rewritten-segments-not-verified",
        breaks="what stands for old segments was read again and compared first",
        at="lakebed.engine.compaction_rewrite:CompactionRewrite._write",
        changes=(drop("self._verify(...)"),),
        tests=(
            f"{COMPACTION}::test_a_key_survives_once",
            f"{COMPACTION}::test_a_row_that_was_lost_on_its_way_never_counts",
        ),
        seconds=5,
    ),
)
