"""Which function answers which API."""

from __future__ import annotations

from typing import Final

from lakebed.kafka import apis
from lakebed.kafka.admin import (
    alter_configs,
    alter_some_configs,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_configs,
    describe_log_dirs,
    describe_quotas,
    list_reassignments,
)
from lakebed.kafka.classic_groups import (
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    sync_group,
)
from lakebed.kafka.fetching import fetch
from lakebed.kafka.list_offsets import describe_epochs, list_offsets
from lakebed.kafka.metadata import (
    describe_cluster,
    describe_metadata,
    describe_topic_partitions,
    find_coordinator,
)
from lakebed.kafka.offsets import commit_offsets, fetch_offsets
from lakebed.kafka.producers import init_producer
from lakebed.kafka.services import Handler

HANDLERS: Final[dict[int, Handler]] = {
    apis.FETCH: fetch,
    apis.LIST_OFFSETS: list_offsets,
    apis.METADATA: describe_metadata,
    apis.OFFSET_COMMIT: commit_offsets,
    apis.OFFSET_FETCH: fetch_offsets,
    apis.JOIN_GROUP: join_group,
    apis.HEARTBEAT: heartbeat,
    apis.LEAVE_GROUP: leave_group,
    apis.SYNC_GROUP: sync_group,
    apis.DESCRIBE_GROUPS: describe_groups,
    apis.LIST_GROUPS: list_groups,
    apis.FIND_COORDINATOR: find_coordinator,
    apis.INIT_PRODUCER_ID: init_producer,
    apis.OFFSET_FOR_LEADER_EPOCH: describe_epochs,
    apis.CREATE_TOPICS: create_topics,
    apis.DELETE_TOPICS: delete_topics,
    apis.DELETE_RECORDS: delete_records,
    apis.CREATE_PARTITIONS: create_partitions,
    apis.DESCRIBE_CONFIGS: describe_configs,
    apis.ALTER_CONFIGS: alter_configs,
    apis.INCREMENTAL_ALTER_CONFIGS: alter_some_configs,
    apis.DESCRIBE_LOG_DIRS: describe_log_dirs,
    apis.DESCRIBE_ACLS: describe_acls,
    apis.DESCRIBE_CLIENT_QUOTAS: describe_quotas,
    apis.LIST_PARTITION_REASSIGNMENTS: list_reassignments,
    apis.DELETE_GROUPS: delete_groups,
    apis.DESCRIBE_CLUSTER: describe_cluster,
    apis.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
}
_BY_THE_CONNECTION: Final = (
    apis.PRODUCE,
    apis.SASL_HANDSHAKE,
    apis.SASL_AUTHENTICATE,
    apis.API_VERSIONS,
)
OFFERED: Final = apis.offer(tuple(sorted((*HANDLERS, *_BY_THE_CONNECTION))))
"""The APIs that clients are told of."""
