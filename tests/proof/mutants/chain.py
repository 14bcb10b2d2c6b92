"""Faults in the chain: the guards of the protocol removed one by one."""

from __future__ import annotations

from tests.proof.mutation import Mutant, always, before, drop, instead, never, replace

SCHEDULES = "tests/chain/test_schedules.py::test_no_schedule_loses_or_forks_the_log"
SETTLING = "tests/chain/test_settle.py"
SHIPPING = "tests/engine/test_shipping.py"
BASES = "tests/chain/test_owner.py"
REPLICA = "tests/engine/test_replica.py"
TABLES = "tests/engine/test_store_catalog.py"

MUTANTS = (
    Mutant(
        name="fences-removed",
        breaks="a paused owner's late write is refused, however late it comes",
        at="lakebed.chain.owner:removable",
        changes=(always("slot.kind is not SlotKind.FENCE"),),
        tests=(f"{SCHEDULES}[3]",),
        seconds=60,
    ),
    Mutant(
        name="fence-not-verified",
        breaks="an owner has every acknowledged entry",
        at="lakebed.chain.owner:take_over",
        changes=(never("not $W.includes($B)"),),
        tests=(f"{SCHEDULES}[3]",),
        seconds=60,
    ),
    Mutant(
        name="digest-of-base-not-compared",
        breaks="an owner has every acknowledged entry",
        at="lakebed.chain.walk:Walker.includes",
        changes=(always("self.seen.get(...) == $D"),),
        tests=(f"{SCHEDULES}[5]",),
        seconds=60,
    ),
    Mutant(
        name="no-digest-chain",
        breaks="two readers that accept the same slot have read the same history",
        at="lakebed.chain.walk:Walker.step",
        changes=(never("slot.previous != self.digest"),),
        tests=(f"{SCHEDULES}[3]",),
        seconds=60,
    ),
    Mutant(
        name="void-fences-not-passed",
        breaks="a process alone comes to own the log",
        at="lakebed.chain.walk:Walker._pass_over",
        changes=(always("not self.includes($B)"),),
        tests=(f"{SCHEDULES}[5]",),
        seconds=60,
    ),
    Mutant(
        name="unknown-taken-for-done",
        breaks="after an unknown outcome the object is read",
        at="lakebed.chain.settle:create",
        changes=(replace("outcome is Outcome.DONE", "outcome is not Outcome.REFUSED"),),
        tests=(f"{SCHEDULES}[2]",),
        seconds=15,
    ),
    Mutant(
        name="conflict-taken-for-exists",
        breaks="a creation that was refused without an object is repeated",
        at="lakebed.chain.settle:create",
        changes=(
            before("(yield Get(name))", "if outcome is Outcome.REFUSED:\n    return b'taken'"),
        ),
        tests=(f"{SETTLING}::test_a_conflict_that_wrote_nothing_is_repeated",),
        seconds=5,
    ),
    Mutant(
        name="base-moves-back",
        breaks="the base only moves to a higher slot",
        at="lakebed.chain.owner:ChainOwner.move_base",
        changes=(never("current.slot >= base.slot"),),
        tests=(f"{BASES}::test_a_base_never_moves_back",),
        seconds=5,
    ),
    Mutant(
        name="write-after-fence",
        breaks="a stale owner's writes are refused",
        at="lakebed.chain.owner:ChainOwner.write",
        changes=(instead("raise self.fenced", "return", within="if other is not None: ..."),),
        tests=(f"{SCHEDULES}[2]",),
        seconds=15,
    ),
    Mutant(
        name="acknowledged-before-the-slot",
        breaks="with acks = store an acknowledged record is in the store",
        at="lakebed.wal.writer:Writer.commit",
        changes=(drop("self.replicate(group)"),),
        tests=(f"{SHIPPING}::test_setting_acks",),
        seconds=5,
    ),
    Mutant(
        name="segment-named-before-it-is-in-the-store",
        breaks="what an entry names is in the store before the entry",
        at="lakebed.engine.checkpoint:Checkpointer._flush",
        changes=(drop("$U.segments(written)"),),
        tests=(
            "tests/engine/test_by_url.py"
            "::test_segments_are_in_the_store_before_an_entry_names_them",
        ),
        seconds=5,
    ),
    Mutant(
        name="diverged-entries-not-kept",
        breaks="what diverged is set aside, never deleted",
        at="lakebed.engine.reconcile:LocalLog.set_aside",
        changes=(drop("self._write($P, bytes($E))"),),
        tests=(f"{SHIPPING}::test_what_diverged_is_set_aside_with_a_report",),
        seconds=15,
    ),
    Mutant(
        name="backlog-not-shipped",
        breaks="what only a returning folder has is shipped before what follows",
        at="lakebed.engine.shipping:Shipping.start",
        changes=(drop("self._ship_available(...)"),),
        tests=(f"{SHIPPING}::test_a_log_that_was_in_a_folder_moves_into_the_store_whole",),
        seconds=5,
    ),
    Mutant(
        name="lease-without-nonce",
        breaks="a version of the lease is never used twice",
        at="lakebed.chain.records:encode_lease",
        changes=(replace("nonce.hex()", "''"),),
        tests=("tests/chain/test_lease.py::test_equal_leases_have_different_bytes",),
        seconds=5,
    ),
    Mutant(
        name="standby-begins-to-wait-again",
        breaks="a standby on a busy machine takes over, later",
        at="lakebed.engine.standby:Standby._watch",
        changes=(instead("watch.discount(...)", "watch = Watch(self._ttl_seconds)"),),
        tests=("tests/engine/test_standby.py::test_a_slow_standby_takes_over_later_but_it_does",),
        seconds=5,
    ),
    Mutant(
        name="replica-accepts-writes",
        breaks="a replica writes nothing",
        at="lakebed.wal.log:Wal.check_writable",
        changes=(never("self.refusal is not None"),),
        tests=(f"{REPLICA}::test_what_only_the_owner_does_is_refused_and_names_it[append]",),
        seconds=5,
    ),
    Mutant(
        name="replica-does-not-look-again",
        breaks="a segment that the owner has replaced is looked for again",
        at="lakebed.engine.replica:Replica.catch_up",
        changes=(drop("self._wake.set()"),),
        tests=(f"{REPLICA}::test_a_segment_that_the_owner_has_replaced_is_looked_for_again",),
        seconds=15,
    ),
    Mutant(
        name="replica-goes-back",
        breaks="what a replica has shown stays",
        at="lakebed.engine.replica:StateFollower.load",
        changes=(never("self._is_loaded and base.index <= self.index"),),
        tests=(f"{REPLICA}::test_a_walk_that_begins_again_does_not_go_back",),
        seconds=5,
    ),
    Mutant(
        name="no-term-in-the-table",
        breaks="an owner that was taken over changes no table",
        at="lakebed.iceberg.pointers:check_term",
        changes=(never("term > own_term"),),
        tests=(f"{TABLES}::test_an_owner_that_was_taken_over_changes_no_table",),
        seconds=15,
    ),
    Mutant(
        name="table-not-claimed",
        breaks="an owner claims a table before it judges its files",
        at="lakebed.iceberg.pointers:TablePointers.find",
        changes=(never("pointer.term < self._owner.term"),),
        tests=(f"{TABLES}::test_an_owner_claims_a_table_before_it_judges_its_files",),
        seconds=15,
    ),
    Mutant(
        name="commit-without-a-snapshot-in-a-shared-catalog",
        breaks="an owner that was taken over changes no table of a shared catalog",
        at="lakebed.iceberg.derived_table:Derived._change_files",
        changes=(never("self._catalog.needs_snapshots"),),
        tests=(
            f"{TABLES}::"
            "test_a_commit_of_an_owner_that_is_taken_over_before_its_swap_is_refused[shared]",
        ),
        seconds=15,
    ),
    Mutant(
        name="table-shows-what-is-not-shipped",
        breaks="a table shows nothing that is not in the store",
        at="lakebed.iceberg.catalog:Catalog.confirm",
        changes=(drop("self._owner.confirm()"),),
        tests=(f"{TABLES}::test_a_table_shows_nothing_that_is_not_in_the_store",),
        seconds=15,
    ),
)
