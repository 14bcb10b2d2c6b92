"""Every limit of the project in one place, with its unit in its name and its reason beside it."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

ENTRY_BYTES_MAX: Final = 1 * GIB
"""The largest entry any configuration may allow: a length field of 32 bits, with room to spare."""

ENTRY_PARTS_MAX: Final = 65_536
"""The most buffers one entry may be handed over in."""

MARK_BYTES_MAX: Final = 256 * KIB
"""The largest payload of a frame that is not an entry; each new file carries these frames along."""

FILE_BYTES_MIN: Final = 4 * KIB
"""The smallest WAL file: a header, the carried frames and some entries (tests use small files)."""

FILE_BYTES_MAX: Final = 16 * GIB
"""The largest WAL file."""

FILE_NUMBER_MAX: Final = 2**32 - 1
"""Frames hold their file's number in 32 bits."""

INDEX_MAX: Final = 2**63 - 1
"""No log gets this far; a reset goes at most half way, so that it stays so."""

OFFSET_MAX: Final = 2**63 - 1
"""Offsets are 64-bit numbers."""

TIME_US_MIN: Final = -62_135_596_800_000_000
"""The first time of a record or in a value, 0001-01-01T00:00:00Z, in microseconds since 1970.

Earlier ones fit into 64 bits and cannot be read back everywhere: Python's `datetime`, Spark's and
SQL's timestamps begin with the year 1.
"""

TIME_US_MAX: Final = 253_402_300_799_999_999
"""The last such time, 9999-12-31T23:59:59.999999Z, for the same reason."""

GROUP_BYTES_MAX: Final = 16 * MIB
"""A group commit takes no further entry beyond this, so that the first waiter is served soon."""

GROUP_FRAMES_MAX: Final = 8_192
"""The most frames in one group commit."""

QUEUE_BYTES_MAX: Final = 256 * MIB
"""Entries waiting for the committer; beyond this, callers wait for space."""

READ_CHUNK_BYTES: Final = 1 * MIB
"""What a scan holds in memory at a time."""

MAPPED_FILES_MAX: Final = 8
"""How many WAL files a reader keeps mapped."""

MARK_EVERY_BYTES: Final = 256 * KIB
"""Distance between two remembered positions.

A lookup walks at most this far, and memory is 1/16,000 of the log.
"""

TORN_FILES_KEPT: Final = 8
"""How many torn tails are kept aside; the oldest makes room."""

SNAPSHOT_BYTES_MAX: Final = 4 * GIB
"""The largest snapshot."""

PARTITIONS_MAX: Final = 100_000
"""The most partitions of one topic."""

TOPICS_MAX: Final = 100_000
"""The most topics of one log."""

RECORD_BYTES_MAX: Final = 512 * MIB
"""The largest record any topic may allow; it must fit into an entry."""

BATCH_RECORDS_MAX: Final = 4_000_000
"""The most records of one batch."""

HEADERS_MAX: Final = 1_000
"""The most headers of one record."""

ROW_GROUP_RECORDS: Final = 65_536
"""Records of one row group: small enough to serve a consumer, large enough to compress."""

SEQUENCES_KEPT: Final = 5
"""How many batches of a producer, in each partition, are remembered to recognise a repeat."""

SCHEMA_BYTES_MAX: Final = 256 * KIB
"""The largest schema of a topic, encoded."""

SCHEMA_DEPTH_MAX: Final = 16
"""How deeply a schema may be nested; Arrow's own decoder stops at some depth beyond it."""

GROUP_MEMBERS_MAX: Final = 1_000
"""The most consumers of one group."""

MERGE_SEGMENTS_MIN: Final = 8
"""The fewest small segments worth a merge.

Fewer would rewrite each byte more often, more would leave more files for a reader to open.
"""

MARKERS_MAX: Final = 100_000
"""The most names under which transactions are committed together; each is in the state."""

MARKERS_OF_ONE_MAX: Final = 20_000
"""The most such names of one principal of a server; administrators have no limit but the log's."""

PRODUCERS_MAX: Final = 1_000_000
"""The most producers and transactions that a server's callers may have; each is in the state."""

PRODUCERS_OF_ONE_MAX: Final = 250_000
"""The most producers and transactions of one principal: more than two jobs of `TOGETHER_MAX`."""

GROUPS_MAX: Final = 100_000
"""The most consumer groups that a server's callers may make; each is in the state."""

ADMIN_RESERVE: Final = 1_000
"""Names of markers, producers and groups, out of the most, that only administrators may use."""

MARKER_NUMBER_MAX: Final = 2**63 - 1
"""Numbers of such commits are 64-bit numbers, as Spark's batch ids are."""

MARKER_KEPT_MS_MAX: Final = 100 * 366 * 86_400_000
"""The longest time that a marker may be kept: longer than anything that repeats."""

TOGETHER_MAX: Final = 100_000
"""The most transactions of one commit: more than the tasks of any job, in an entry of 2 MiB."""

TOKENS_MAX: Final = 10_000
"""The most tokens of one log; every one is in the state, and so in memory."""

TOKEN_KEPT_US: Final = 90 * 86_400 * 1_000_000
"""How long a token that was revoked or has expired is still listed."""

RULES_MAX: Final = 10_000
"""The most access rules of one log."""

GRANTS_MAX: Final = 100_000
"""The most roles that principals of one log have, all together."""

PREDICATE_DEPTH_MAX: Final = 64
"""How deeply a predicate that a server gets may be nested; Arrow works through it by recursion."""

PREDICATE_NODES_MAX: Final = 1_000
"""The most nodes of such a predicate."""

PREDICATE_VALUES_MAX: Final = 100_000
"""The most values that such a predicate may list for `is_in`."""

READ_BYTES_MAX: Final = 64 * MIB
"""The most that a server gives in one answer to `read` or `fetch`; a client asks again."""

READ_RECORDS_MAX: Final = 1_000_000
"""The most records in such an answer."""

JSON_BYTES_MAX: Final = 16 * MIB
"""The largest JSON body: parsed it takes some twenty times its size, all of it at once."""

JSON_CALL_BYTES_MAX: Final = 1 * MIB
"""The largest JSON body that is no records: room for a schema of `SCHEMA_BYTES_MAX`."""

JSON_COMMIT_BYTES_MAX: Final = 2 * MIB
"""The largest JSON body of a commit: room for `JSON_RECORDS_MAX` offsets of the longest names."""

JSON_VALUES_MAX: Final = 500_000
"""The most values of one JSON body; as Python objects they take some 100 to 400 bytes each."""

JSON_RECORDS_MAX: Final = 10_000
"""The most records of one JSON body, and of one JSON answer."""

HTTP_REQUESTS_MAX: Final = 1_024
"""HTTP requests that are worked on at a time; those that wait for records do not count."""

HTTP_RESERVE: Final = 16
"""Requests and connections beyond their limits that are kept for health probes and administrators.
"""

HTTP_HANDSHAKES_MAX: Final = 256
"""TLS handshakes of HTTP connections at a time; each takes some 350 kB."""

HTTP_WAITS_MAX: Final = 1_000
"""HTTP requests that wait for records at a time; each holds a connection and no thread.

Administrators may have `HTTP_RESERVE` more."""
