"""Every operation of a log, in one row each.

A row states the request, the result, the permission, whether the call may be repeated, how long it
takes, whether it is audited, and its HTTP route. From it follow

    client/_stubs.py, aio/_stubs.py    the methods; written by `python -m tools.generate`
    serve/calls.py                     the checks of a request, and the method that is called
    serve/protocol.py                  the reports that may travel
    serve/gateway.py, serve/openapi.py  the routes and `/openapi.json`

Signature and documentation of a method are those of its class in `engine/`.
"""

from __future__ import annotations

import os
from typing import Any, Final

from lakebed.engine.access import DenialInfo, GrantInfo, RuleInfo, TokenInfo
from lakebed.engine.backup import BackupReport
from lakebed.engine.checkpoint import CheckpointReport
from lakebed.engine.cleanup import CleanupReport
from lakebed.engine.compaction import CompactionPlan, RewriteReport
from lakebed.engine.groups import GroupInfo
from lakebed.engine.lake_reports import LakeStats, SnapshotInfo, SyncReport, TableInfo
from lakebed.engine.plan import ScanPlan
from lakebed.engine.reading import microseconds
from lakebed.engine.removal import RemovalReport
from lakebed.engine.segments import SegmentInfo
from lakebed.engine.stats import LogStats
from lakebed.engine.survival import checked_segments
from lakebed.engine.together import CommittedTogether
from lakebed.engine.topics import TopicInfo
from lakebed.lake.derived_values import Committed, DerivedFiles, DerivedTable
from lakebed.operations.description import Operation, Owner, Pace, Parameter, Route, Size
from lakebed.operations.requests import (
    about,
    as_list,
    filter_group,
    filter_names,
    filter_offsets,
    groups_of_offsets,
    joined_topics,
    topics_of_offsets,
    topics_of_transaction,
)
from lakebed.operations.terms import (
    ABOUT_ROLE,
    ABOUT_RULE,
    ADMIN,
    ALL_TOPICS,
    ANY,
    FLAG,
    FLOAT,
    GROUP,
    GROUP_NAME,
    GROUP_PATH,
    IDENTITY,
    IN_GROUP,
    IN_TOPIC,
    INT,
    LIST,
    MANAGE,
    NAME,
    NEW_TOPIC,
    NONE,
    ONE_GROUP,
    ONE_TABLE,
    ONE_TOPIC,
    OPTIONAL,
    OPTIONAL_TEXT,
    READ,
    ROLE,
    RULE,
    SEGMENT,
    TABLE_NAME,
    TEXT,
    TOPIC,
    TOPIC_PATH,
    VALUE,
    WRITE,
)
from lakebed.state.permissions import Action
from lakebed.topic.survivors import checked_survivors
from lakebed.types import Secret, TopicPartition

LOG, LAKE, DERIVED, ACCESS = Owner.LOG, Owner.LAKE, Owner.DERIVED, Owner.ACCESS
TABLE, GROUPS, CLIENT = Owner.TABLE, Owner.GROUPS, Owner.CLIENT
REMOTE, SLOW = Pace.REMOTE, Pace.SLOW

_ROWS: Final = (
    Operation(CLIENT, "hello", ANY, {}, dict[str, Any], open=True),
    Operation(CLIENT, "wake", ANY, {"waiter": TEXT}, None, open=True),
    Operation(
        LOG,
        "topics",
        READ,
        {},
        list[str],
        open=True,
        lists_names=True,
        route=Route("GET", "/v1/topics", answer="TopicNames"),
    ),
    Operation(
        LOG,
        "create_topic",
        MANAGE,
        NEW_TOPIC,
        TopicInfo,
        names=NAME,
        safe=False,
        size=Size.SCHEMA,
        route=Route("POST", "/v1/topics", 201, "Topic", body="NewTopic", errors=(409,)),
    ),
    Operation(
        LOG, "get_or_create_topic", MANAGE, NEW_TOPIC, TopicInfo, names=NAME, size=Size.SCHEMA
    ),
    Operation(
        LOG,
        "describe_topic",
        READ,
        ONE_TOPIC,
        TopicInfo,
        names=NAME,
        route=Route("GET", TOPIC_PATH, answer="Topic", errors=(404,)),
    ),
    Operation(CLIENT, "topic", WRITE, {"name": TEXT}, tuple[Any, ...], names=NAME),
    Operation(
        LOG,
        "alter_topic",
        MANAGE,
        NEW_TOPIC,
        TopicInfo,
        names=NAME,
        size=Size.SCHEMA,
        route=Route("PATCH", TOPIC_PATH, answer="Topic", body="TopicChange", errors=(404, 409)),
    ),
    Operation(
        LOG, "add_partitions", MANAGE, {"name": TOPIC, "partitions": VALUE}, TopicInfo, names=NAME
    ),
    Operation(LOG, "purge_topic", MANAGE, ONE_TOPIC, None, names=NAME, safe=False),
    Operation(
        LOG,
        "delete_topic",
        MANAGE,
        ONE_TOPIC,
        None,
        names=NAME,
        safe=False,
        route=Route("DELETE", TOPIC_PATH, 204, errors=(404,)),
    ),
    Operation(
        LOG,
        "offsets",
        READ,
        {"topic": TOPIC},
        dict[int, tuple[int, int]],
        names=IN_TOPIC,
        route=Route("GET", f"{TOPIC_PATH}/offsets", answer="Offsets", errors=(404,)),
    ),
    Operation(
        LOG,
        "offset_for_time",
        READ,
        {"topic": TOPIC, "partition": VALUE, "timestamp": Parameter((int,), microseconds)},
        int,
        names=IN_TOPIC,
    ),
    Operation(
        TABLE,
        "plan",
        READ,
        {
            "topic": TEXT,
            "id": Parameter((int, NONE)),
            "partitions": OPTIONAL,
            "start": OPTIONAL,
            "until": OPTIONAL,
        },
        ScanPlan,
        names=IN_TOPIC,
        size=Size.LONG_LISTS,
    ),
    Operation(
        CLIENT,
        "register_producer",
        ANY,
        {"name": OPTIONAL_TEXT},
        tuple[int, int],
        somewhere=(Action.WRITE,),
        open=True,
    ),
    Operation(CLIENT, "forget_producer", ANY, IDENTITY, None, open=True),
    Operation(
        CLIENT,
        "begin_transaction",
        ANY,
        {"name": OPTIONAL_TEXT, "timeout_ms": INT},
        tuple[int, int],
        somewhere=(Action.WRITE, Action.GROUP),
        open=True,
    ),
    Operation(
        CLIENT,
        "commit_transaction",
        GROUP,
        {**IDENTITY, "offsets": LIST},
        list[Any],
        names=groups_of_offsets,
        topics=topics_of_transaction,
        safe=False,
        open=True,
        size=Size.LONG_LISTS,
    ),
    Operation(
        LOG,
        "commit_together",
        GROUP,
        {"name": TEXT, "number": INT, "keep_ms": INT, "transactions": LIST, "offsets": LIST},
        CommittedTogether,
        names=groups_of_offsets,
        topics=topics_of_transaction,
        somewhere=(Action.WRITE, Action.GROUP),
        open=True,
        size=Size.LONG_LISTS,
    ),
    Operation(LOG, "committed_number", ANY, {"name": TEXT}, int | None, open=True),
    Operation(CLIENT, "abort_transaction", ANY, IDENTITY, None, open=True),
    Operation(
        GROUPS,
        "join",
        GROUP,
        {"group": GROUP_NAME, "topics": LIST, "session_seconds": FLOAT, "strategy": TEXT},
        str,
        names=IN_GROUP,
        topics=joined_topics,
        safe=False,
        size=Size.LONG_LISTS,
    ),
    Operation(
        GROUPS,
        "heartbeat",
        GROUP,
        {"group": TEXT, "member": TEXT, "held": Parameter((tuple,), sorted)},
        frozenset[TopicPartition],
        names=IN_GROUP,
        size=Size.LONG_LISTS,
    ),
    Operation(GROUPS, "leave", GROUP, {"group": TEXT, "member": TEXT}, None, names=IN_GROUP),
    Operation(
        GROUPS,
        "commit",
        GROUP,
        {"group": GROUP_NAME, "member": TEXT, "offsets": LIST},
        None,
        names=IN_GROUP,
        topics=topics_of_offsets,
        size=Size.LONG_LISTS,
    ),
    Operation(
        LOG,
        "commit_offsets",
        GROUP,
        {"group": GROUP_NAME, "offsets": LIST},
        None,
        names=IN_GROUP,
        topics=topics_of_offsets,
        size=Size.LONG_LISTS,
        route=Route("PUT", f"{GROUP_PATH}/offsets", 204, body="Commit", errors=(404, 409)),
    ),
    Operation(
        LOG,
        "committed",
        GROUP,
        {"group": GROUP_NAME},
        dict[TopicPartition, int],
        names=IN_GROUP,
        filter_reply=filter_offsets,
    ),
    Operation(
        LOG,
        "groups",
        GROUP,
        {},
        list[str],
        open=True,
        lists_names=True,
        route=Route("GET", "/v1/groups", answer="GroupNames"),
    ),
    Operation(
        LOG,
        "describe_group",
        GROUP,
        ONE_GROUP,
        GroupInfo,
        names=NAME,
        filter_reply=filter_group,
        route=Route("GET", GROUP_PATH, answer="Group", errors=(404,)),
    ),
    Operation(
        LOG,
        "reset_group",
        GROUP,
        {"name": GROUP_NAME, "offsets": LIST},
        None,
        names=NAME,
        topics=topics_of_offsets,
        size=Size.LONG_LISTS,
    ),
    Operation(
        LOG,
        "delete_group",
        GROUP,
        ONE_GROUP,
        None,
        names=NAME,
        safe=False,
        route=Route("DELETE", GROUP_PATH, 204, errors=(404, 409)),
    ),
    Operation(LOG, "checkpoint", ADMIN, {}, CheckpointReport, pace=SLOW),
    Operation(
        LOG, "retain", ADMIN, {"topic": ALL_TOPICS}, CleanupReport, names=IN_TOPIC, pace=SLOW
    ),
    Operation(
        LOG,
        "plan_compaction",
        ADMIN,
        {"topic": TOPIC, "force": Parameter((bool,), bool)},
        CompactionPlan,
        names=IN_TOPIC,
        audited=False,
    ),
    Operation(
        LOG,
        "rewrite_segments",
        ADMIN,
        {
            **SEGMENT,
            "segments": Parameter((tuple,), checked_segments),
            "survivors": Parameter((bytes,), checked_survivors),
        },
        RewriteReport,
        names=IN_TOPIC,
        pace=SLOW,
        size=Size.LONG_LISTS,
    ),
    Operation(
        LOG, "verify", ADMIN, {"topic": ALL_TOPICS}, int, names=IN_TOPIC, pace=SLOW, audited=False
    ),
    Operation(LOG, "segments", ADMIN, SEGMENT, list[SegmentInfo], names=IN_TOPIC, audited=False),
    Operation(
        LOG,
        "verify_segment",
        ADMIN,
        {**SEGMENT, "segment": INT},
        bool,
        names=IN_TOPIC,
        pace=SLOW,
        audited=False,
    ),
    Operation(
        LOG,
        "backup",
        ADMIN,
        {"name": Parameter((object,), os.fspath)},
        BackupReport,
        names=NAME,
        safe=False,
        pace=SLOW,
    ),
    Operation(LOG, "stats", ADMIN, {}, LogStats, audited=False),
    Operation(LOG, "tick", ADMIN, {}, None, pace=SLOW, audited=False),
    Operation(
        LAKE,
        "lake_sync",
        ADMIN,
        {"topic": OPTIONAL_TEXT, "take_over": Parameter((bool, NONE))},
        SyncReport,
        names=IN_TOPIC,
        pace=SLOW,
    ),
    Operation(LAKE, "lake_gc", ADMIN, {"now": FLAG}, RemovalReport, pace=SLOW),
    Operation(LAKE, "lake_tables", ADMIN, {}, list[TableInfo], pace=SLOW, audited=False),
    Operation(LAKE, "lake_describe", READ, {"topic": TEXT}, TableInfo, names=IN_TOPIC, pace=REMOTE),
    Operation(
        LAKE, "lake_history", READ, {"topic": TEXT}, list[SnapshotInfo], names=IN_TOPIC, pace=REMOTE
    ),
    Operation(LAKE, "lake_stats", ADMIN, {}, LakeStats, audited=False),
    Operation(
        DERIVED,
        "derived_tables",
        READ,
        {},
        list[str],
        open=True,
        filter_reply=filter_names,
        pace=REMOTE,
    ),
    Operation(DERIVED, "derived_describe", READ, ONE_TABLE, DerivedTable, names=NAME, pace=REMOTE),
    Operation(
        DERIVED,
        "derived_files",
        READ,
        {"name": TABLE_NAME, "buckets": Parameter((object, NONE), as_list)},
        DerivedFiles,
        names=NAME,
        pace=SLOW,
        size=Size.LONG_LISTS,
    ),
    Operation(
        DERIVED,
        "derived_create",
        MANAGE,
        {
            "name": TABLE_NAME,
            "schema": VALUE,
            "kind": TEXT,
            "key": Parameter((object,), as_list),
            "buckets": VALUE,
        },
        DerivedTable,
        names=NAME,
        pace=REMOTE,
        size=Size.SCHEMA,
    ),
    Operation(
        DERIVED,
        "derived_evolve",
        MANAGE,
        {"name": TABLE_NAME, "schema": VALUE},
        DerivedTable,
        names=NAME,
        pace=REMOTE,
        size=Size.SCHEMA,
    ),
    Operation(DERIVED, "derived_restore", MANAGE, ONE_TABLE, DerivedTable, names=NAME, pace=REMOTE),
    Operation(
        DERIVED, "derived_drop", MANAGE, ONE_TABLE, bool, names=NAME, safe=False, pace=REMOTE
    ),
    Operation(
        DERIVED,
        "derived_commit",
        WRITE,
        {
            "name": TEXT,
            "writer": TEXT,
            "number": INT,
            "added": LIST,
            "removed": LIST,
            "positions": OPTIONAL,
            "expected": INT,
        },
        Committed,
        names=NAME,
        pace=SLOW,
        size=Size.LONG_LISTS,
    ),
    Operation(ACCESS, "tokens", ADMIN, {}, list[TokenInfo], audited=False),
    Operation(
        ACCESS,
        "create_token",
        ADMIN,
        {"principal": VALUE, "expires_ms": OPTIONAL, "roles": Parameter((tuple, str), as_list)},
        Secret,
        names=about("principal"),
        safe=False,
    ),
    Operation(
        ACCESS,
        "revoke_token",
        ADMIN,
        {"token_id": VALUE, "force": FLAG},
        None,
        names=about("token_id"),
    ),
    Operation(ACCESS, "rules", ADMIN, {}, list[RuleInfo], audited=False),
    Operation(ACCESS, "allow", ADMIN, RULE, None, names=ABOUT_RULE),
    Operation(ACCESS, "forbid", ADMIN, RULE, None, names=ABOUT_RULE, safe=False),
    Operation(ACCESS, "denials", ADMIN, {}, list[DenialInfo], audited=False),
    Operation(ACCESS, "deny", ADMIN, RULE, None, names=ABOUT_RULE),
    Operation(ACCESS, "lift", ADMIN, RULE, None, names=ABOUT_RULE, safe=False),
    Operation(ACCESS, "grants", ADMIN, {}, list[GrantInfo], audited=False),
    Operation(ACCESS, "grant", ADMIN, ROLE, None, names=ABOUT_ROLE),
    Operation(ACCESS, "revoke", ADMIN, ROLE, None, names=ABOUT_ROLE, safe=False),
)
OPERATIONS: Final = {operation.name: operation for operation in _ROWS}
"""By the name of the call on the wire."""
