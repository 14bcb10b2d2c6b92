"""Faults in the checks of Arrow data and predicates from outside."""

from __future__ import annotations

from tests.proof.mutation import Mutant, drop, never, replace

HOSTILE = "tests/serve/test_hostile_data.py"
EXPANSION = "tests/topic/test_expansion.py"

MUTANTS = (
    Mutant(
        name="size-counted-by-reading-offsets",
        breaks="nothing of a batch is read before it is validated",
        at="lakebed.wire.received:batch_bytes",
        changes=(replace("$X.get_total_buffer_size()", "$X.nbytes"),),
        tests=(f"{HOSTILE}::test_a_batch_that_claims_more_rows_than_it_has_is_refused",),
        seconds=15,
    ),
    Mutant(
        name="empty-batch-looked-at",
        breaks="the columns of a batch without rows are not looked at",
        at="lakebed.wire.received:Received.check",
        changes=(never("$X.num_rows == 0"),),
        tests=(f"{HOSTILE}::test_a_batch_without_rows_is_answered_without_looking_at_its_columns",),
        seconds=15,
    ),
    Mutant(
        name="views-of-null-slots-not-checked",
        breaks="no view of negative size reaches a kernel",
        at="lakebed.wire.received:Received.check",
        changes=(never("has_negative_view(...)"),),
        tests=(f"{HOSTILE}::test_a_view_of_negative_size_in_a_null_slot_is_refused",),
        seconds=15,
    ),
    Mutant(
        name="views-not-checked-in-one-process",
        breaks="no view of negative size reaches a kernel",
        at="lakebed.topic.columns:_cast",
        changes=(never("has_negative_view(...)"),),
        tests=(f"{EXPANSION}::test_a_negative_view_is_refused_within_one_process_too",),
        seconds=5,
    ),
    Mutant(
        name="offsets-of-empty-lists-left-as-they-are",
        breaks="what is stored can be read without a crash",
        at="lakebed.topic.records:_by_name",
        changes=(replace("own_offsets($X)", "$X"),),
        tests=(f"{HOSTILE}::test_offsets_of_a_map_without_entries_within_a_list_are_replaced",),
        seconds=15,
    ),
    Mutant(
        name="any-type-received",
        breaks="only types whose arrays are checked are worked on",
        at="lakebed.wire.received:Received._check_schema",
        changes=(drop("_check_type(...)"),),
        tests=(f"{HOSTILE}::test_a_type_that_no_topic_holds_is_refused_by_its_name",),
        seconds=15,
    ),
    Mutant(
        name="names-of-columns-not-checked",
        breaks="text that is not UTF-8 is refused",
        at="lakebed.wire.received:Received._check_schema",
        changes=(drop("check_text(...)"),),
        tests=(f"{HOSTILE}::test_a_name_or_a_time_zone_that_is_not_text_is_refused",),
        seconds=15,
    ),
    Mutant(
        name="names-of-a-schema-not-checked",
        breaks="text that is not UTF-8 is refused",
        at="lakebed.wire.protocol:_schema",
        changes=(drop("check_text(...)"),),
        tests=(f"{HOSTILE}::test_a_schema_with_a_name_that_is_not_text_is_refused",),
        seconds=15,
    ),
    Mutant(
        name="shared-values-not-counted",
        breaks="a conversion is bounded before it takes memory",
        at="lakebed.topic.expansion:ExpansionBudget._take",
        changes=(drop("self._left -= $X"),),
        tests=(
            f"{EXPANSION}::test_what_many_rows_share_is_counted_for_each_of_them",
            f"{EXPANSION}::test_nulls_and_missing_fields_are_counted",
        ),
        seconds=5,
    ),
    Mutant(
        name="nulls-of-predicates-typed",
        breaks="no predicate ends the process",
        at="lakebed.wire.predicates:_literal",
        changes=(replace("None if $X is None else $Y", "$Y"),),
        tests=(f"{HOSTILE}::test_a_comparison_with_a_null_selects_nothing",),
        seconds=15,
    ),
    Mutant(
        name="patterns-of-any-bytes",
        breaks="a predicate is accepted, or refused by a typed error",
        at="lakebed.wire.predicates:_pattern",
        changes=(replace("$X if isinstance($X, str) else $Y", "$X"),),
        tests=(f"{HOSTILE}::test_a_pattern_that_is_not_text_is_refused",),
        seconds=15,
    ),
)
