"""The APIs of the Kafka protocol that the server has, and their versions.

Versions are those that `kio` has schemas of, which is what Kafka 4 keeps, with two exceptions:

* Produce begins at 0, although 0 to 2 are answered with UNSUPPORTED_VERSION: librdkafka before 2.1
  sends uncompressed records to a broker whose Produce begins at 3 (KAFKA-18659).
* Some end below what kio has: see `_MOST`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.index import api_key_map, schema_name_map

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
OFFSET_COMMIT: Final = 8
OFFSET_FETCH: Final = 9
FIND_COORDINATOR: Final = 10
JOIN_GROUP: Final = 11
HEARTBEAT: Final = 12
LEAVE_GROUP: Final = 13
SYNC_GROUP: Final = 14
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
DELETE_RECORDS: Final = 21
INIT_PRODUCER_ID: Final = 22
OFFSET_FOR_LEADER_EPOCH: Final = 23
DESCRIBE_ACLS: Final = 29
DESCRIBE_CONFIGS: Final = 32
ALTER_CONFIGS: Final = 33
DESCRIBE_LOG_DIRS: Final = 35
SASL_AUTHENTICATE: Final = 36
CREATE_PARTITIONS: Final = 37
DELETE_GROUPS: Final = 42
INCREMENTAL_ALTER_CONFIGS: Final = 44
LIST_PARTITION_REASSIGNMENTS: Final = 46
DESCRIBE_CLIENT_QUOTAS: Final = 48
DESCRIBE_CLUSTER: Final = 60
DESCRIBE_TOPIC_PARTITIONS: Final = 75

_LEAST: Final = {PRODUCE: 0}
_MOST: Final = {
    PRODUCE: 11,  # 12 belongs to transactions that are not begun by AddPartitionsToTxn
    LIST_OFFSETS: 10,  # 11 asks for offsets of remote storage
    OFFSET_COMMIT: 9,  # 10 names topics by id, for groups of KIP-848
    OFFSET_FETCH: 9,
    INIT_PRODUCER_ID: 5,  # 6 prepares transactions for two-phase commit
}


class Api(NamedTuple):
    """One API, and the versions of it that are served."""

    key: int
    name: str
    least: int
    most: int


def offer(keys: tuple[int, ...]) -> dict[int, Api]:
    """Return the descriptions of APIs by their keys."""
    offered = {}
    for key in keys:
        versions = schema_name_map[api_key_map[key]]
        least, most = _LEAST.get(key, min(versions)), _MOST.get(key, max(versions))
        offered[key] = Api(key, api_key_map[key], least, most)
    return offered
