"""Every error Lakebed raises, in one tree.

    LakebedError
    ├── RejectedError              it did not happen; nothing was written
    │   ├── InvalidArgumentError   a value is not allowed (also: configuration)
    │   │   ├── InvalidNameError   a name of a topic, group or producer is not allowed
    │   │   ├── SettingsFileError  a file of settings has a mistake in it
    │   │   └── PipelineFileError  the file of a pipeline has mistakes in it
    │   ├── TopicNotFoundError     the topic does not exist
    │   ├── TopicExistsError       the topic exists
    │   ├── PartitionNotFoundError the topic has no such partition
    │   ├── OffsetOutOfRangeError  the offset is below the low watermark or above the end
    │   ├── RecordTooLargeError    a record is over the topic's limit
    │   ├── SchemaMismatchError    a batch does not have the topic's columns
    │   ├── SchemaChangeError      a change of a schema is not allowed
    │   ├── FencedError            another client has taken over this name or partition
    │   ├── SequenceGapError       a producer's batch does not follow its last one
    │   ├── TransactionTimedOutError  it was open for too long, and is aborted
    │   ├── TransactionClosedError    it was committed or aborted before
    │   ├── OverloadedError        memory is short, and flushing did not keep up (retriable)
    │   ├── CatalogUnavailableError  the Iceberg catalog does not answer (retriable)
    │   ├── ForeignTableError      another program has created or changed an Iceberg table
    │   ├── TableNotFoundError     the derived table does not exist
    │   ├── TableExistsError       a different derived table of this name exists
    │   ├── TableChangedError      a derived table has changed since it was read (retriable)
    │   ├── GroupNotFoundError     the consumer group does not exist
    │   ├── GroupNotEmptyError     the group has members
    │   ├── StalePlanError         what a compaction was planned for has changed (retriable)
    │   ├── SurvivorsError         what is to survive a compaction cannot be right
    │   ├── EntryTooLargeError     an entry is over the limit
    │   ├── ClosedError            the log was closed
    │   ├── NotALogError           the folder holds something else
    │   ├── NotABackupError        the folder holds no backup, or an unfinished one
    │   ├── FormatTooNewError      the files were written by a newer version
    │   ├── LockedError            another process owns the folder
    │   ├── DiskFullError          no space for the next file (retriable)
    │   ├── TooManyFilesError      the process or the system has no file descriptor left (retriable)
    │   ├── ReadOnlyError          the folder cannot be written
    │   ├── StoreUnavailableError  the object store does not answer (retriable)
    │   ├── StoreDeniedError       the object store refuses these credentials
    │   ├── StoreNotFoundError     the object store has no such bucket or object
    │   ├── StoreUnfitError        the object store ignores the conditions of a write
    │   ├── NotOwnerError          another server owns the log (retriable)
    │   ├── UnauthenticatedError   a server cannot identify the caller
    │   ├── AccessDeniedError      the caller may not do this
    │   ├── QuotaExceededError     the caller exceeds a limit (retriable)
    │   ├── ServerUnavailableError a server does not answer, or is stopping (retriable)
    │   ├── TlsError               server and client do not agree on TLS or its certificates
    │   ├── ProtocolError          a request or an answer does not follow the protocol
    │   ├── JavaMissingError       Spark has no Java that it can run on
    │   ├── DemoFailedError        a process of the demonstration ended unexpectedly
    │   ├── PackageMissingError    a required Python package is not installed
    │   ├── DataLossError          records were removed before a query read them
    │   ├── PipelineChangedError   a flow does not match its checkpoint
    │   ├── PipelineRunningError   the pipeline is already running
    │   ├── BadRecordError         a record stops its pipeline or import
    │   ├── FlowFailedError        a flow of a pipeline failed in Spark
    │   ├── JobFailedError         a job failed in Spark
    │   ├── EntryNotFoundError     the index is beyond the end of the log
    │   └── EntryReleasedError     the index is before the start of the log
    ├── UnknownOutcomeError        it may have happened; reopen and look
    └── StopError                  stop and look at the disk
        ├── PoisonedError          an earlier write or sync failed; reopen
        ├── DeviceError            the device failed to read or write
        └── CorruptionError        bytes on disk are not what was written
            ├── ForeignFileError   a file belongs to another log
            ├── MissingFileError   a file that the log needs is missing
            ├── BackupDamagedError a backup is not what was written
            └── EntryLostError     a salvaged log has a hole at this index

The three branches are the three things a caller can do: correct and repeat, look before repeating,
stop. Each class has a stable `code`, says whether the same call may succeed later (`retriable`) and
what to do (`advice`). Messages are lower case, with the facts last as `key=value`, but for those
that the message quotes.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import ClassVar


class LakebedError(Exception):
    """The root: a message, its facts, a stable code, and what to do about it."""

    code: ClassVar[str] = "lakebed"
    retriable: ClassVar[bool] = False
    advice: ClassVar[str] = "see the message"

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts
        self.add_note(f"advice: {self.advice}")

    def __str__(self) -> str:
        shown = [
            f"{name}={value}"
            for name, value in self.facts.items()
            if not (isinstance(value, str) and repr(value) in self.message)
        ]
        return " ".join([self.message, *shown])

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.facts))


def _rebuild(kind: type[LakebedError], message: str, facts: dict[str, object]) -> LakebedError:
    return kind(message, **facts)


class RejectedError(LakebedError):
    """It did not happen and nothing was written."""

    code = "rejected"
    advice = "correct the call and repeat it"


class InvalidArgumentError(RejectedError):
    """A value is outside what is allowed."""

    code = "invalid_argument"


class InvalidNameError(InvalidArgumentError):
    """A name of a topic, group or producer is not allowed."""

    code = "invalid_name"
    advice = (
        "use 1 to 128 letters, digits, '.', '_' or '-', beginning with a letter or digit; a topic "
        "may begin with one '_' and have 249"
    )


class SettingsFileError(InvalidArgumentError):
    """A file of settings has a mistake in it."""

    code = "settings_file"
    advice = "correct the named file; `lakebed config` lists every setting with its bounds"


class PipelineFileError(InvalidArgumentError):
    """The file of a pipeline has mistakes in it; the message names each with its line."""

    code = "pipeline_file"
    advice = "correct the named lines; the page `pipelines` of the documentation explains every key"


class TopicNotFoundError(RejectedError):
    """The topic does not exist."""

    code = "topic_not_found"
    advice = "create it first, or check the name with `lakebed topic list`"


class TopicExistsError(RejectedError):
    """A topic of this name exists."""

    code = "topic_exists"
    advice = "choose another name, or use get_or_create_topic"


class PartitionNotFoundError(RejectedError):
    """The topic has no partition of this number."""

    code = "partition_not_found"
    advice = "use a partition from 0 to partitions - 1, or add partitions"


class OffsetOutOfRangeError(RejectedError):
    """The offset is below the low watermark (its record is gone) or above the end."""

    code = "offset_out_of_range"
    advice = "start at 'earliest', 'latest', or an offset between low and end"


class RecordTooLargeError(RejectedError):
    """A record is larger than its topic accepts."""

    code = "record_too_large"
    advice = "make the record smaller, or raise the topic's record_bytes_max"


class SchemaMismatchError(RejectedError):
    """A batch does not have the columns or types of its topic."""

    code = "schema_mismatch"
    advice = "use the expected type for the named column, or a topic with this schema"


class SchemaChangeError(RejectedError):
    """A change of a topic's schema is not allowed."""

    code = "schema_change"
    advice = "add only nullable fields at the end; for other changes create a new topic"


class FencedError(RejectedError):
    """Another client has taken over the name or the partition."""

    code = "fenced"
    advice = "open a new one: another has taken over, or this one exceeded its session timeout"


class SequenceGapError(RejectedError):
    """A producer's batch does not follow the last one that the log holds."""

    code = "sequence_gap"
    advice = "close the producer and open it again; an earlier batch of it was not accepted"


class TransactionTimedOutError(RejectedError):
    """The transaction was open for longer than its timeout, and is aborted."""

    code = "transaction_timed_out"
    advice = "begin it again, with a larger timeout_ms if the work takes that long"


class TransactionClosedError(RejectedError):
    """The transaction was committed or aborted before."""

    code = "transaction_closed"
    advice = "begin a new transaction"


class OverloadedError(RejectedError):
    """Memory is short, and flushing did not make room in time."""

    code = "overloaded"
    retriable = True
    advice = "write more slowly or repeat later; see throttled_ms in stats(), raise memtable_bytes"


class CatalogUnavailableError(RejectedError):
    """The Iceberg catalog does not answer, or refuses to."""

    code = "catalog_unavailable"
    retriable = True
    advice = (
        "check the catalog and its settings; the log continues without it, and its tables catch "
        "up later"
    )


class ForeignTableError(RejectedError):
    """An Iceberg table is not as this log left it."""

    code = "foreign_table"
    advice = (
        "undo the change, or restore exactly the log's records: `lakebed lake sync --take-over "
        "TOPIC`"
    )


class TableNotFoundError(RejectedError):
    """The derived table does not exist."""

    code = "table_not_found"
    advice = "create it first; `log.derived.restore` restores one that another program has dropped"


class TableExistsError(RejectedError):
    """A derived table of this name exists with another kind, key or columns."""

    code = "table_exists"
    advice = "choose another name, or drop the table first"


class TableChangedError(RejectedError):
    """A derived table has changed since it was read, so nothing was committed."""

    code = "table_changed"
    retriable = True
    advice = "read the table again and repeat the work; one job at a time writes to a table"


class GroupNotFoundError(RejectedError):
    """The consumer group does not exist."""

    code = "group_not_found"
    advice = "check the name with `lakebed group list`"


class GroupNotEmptyError(RejectedError):
    """The consumer group has members."""

    code = "group_not_empty"
    retriable = True
    advice = "close its consumers first"


class StalePlanError(RejectedError):
    """What a compaction was planned for is not as it was: replaced, removed, or held by a group."""

    code = "stale_plan"
    retriable = True
    advice = "nothing was changed; plan the compaction again"


class SurvivorsError(RejectedError):
    """The records that are to survive a compaction cannot be the right ones."""

    code = "survivors"
    advice = (
        "nothing was changed; let every record without a key survive, and the last of each key, "
        "and nothing that the planned files do not hold"
    )


class EntryTooLargeError(RejectedError):
    """An entry is larger than the log accepts."""

    code = "entry_too_large"
    advice = "split the batch, or raise entry_bytes_max"


class ClosedError(RejectedError):
    """The log, producer or consumer was closed."""

    code = "closed"
    advice = "open it again"


class NotALogError(RejectedError):
    """The folder exists, is not empty, and is not a log."""

    code = "not_a_log"
    advice = "check the path; a new log needs an empty or new folder"


class NotABackupError(RejectedError):
    """The folder holds no backup, or one that was not finished."""

    code = "not_a_backup"
    advice = "check the path; remove an unfinished backup, and take it again"


class FormatTooNewError(RejectedError):
    """The files were written by a newer version of Lakebed."""

    code = "format_too_new"
    advice = "upgrade lakebed; nothing was changed"


class LockedError(RejectedError):
    """Another running process owns the folder."""

    code = "locked"
    retriable = True
    advice = "close the log in that process, do the work there, or serve it with `lakebed serve`"


class DiskFullError(RejectedError):
    """The disk has no space for the next file; the log is intact."""

    code = "disk_full"
    retriable = True
    advice = "free space on the log's disk, then repeat the call; the log need not be reopened"


class TooManyFilesError(RejectedError):
    """The process, or the system, has no file descriptor left; the log is intact."""

    code = "too_many_files"
    retriable = True
    advice = (
        "close connections or files, or raise the limit (`ulimit -n`, LimitNOFILE= of a service), "
        "then repeat the call; the log need not be reopened"
    )


class ReadOnlyError(RejectedError):
    """The folder or its file system does not allow writing."""

    code = "read_only"
    advice = "grant this user write access to the folder, or mount the file system read-write"


class StoreUnavailableError(RejectedError):
    """The object store did not answer in time, or is temporarily unavailable."""

    code = "store_unavailable"
    retriable = True
    advice = "nothing is lost; check the endpoint and the network, then repeat the call"


class StoreDeniedError(RejectedError):
    """The object store refused the credentials, or what they were used for."""

    code = "store_denied"
    advice = "check the store's keys, their permissions on the bucket, its region and the clock"


class StoreNotFoundError(RejectedError):
    """The object store has no such bucket, folder or object."""

    code = "store_not_found"
    advice = "check the store's location; a bucket or folder is not created here"


class StoreUnfitError(RejectedError):
    """The object store ignores the conditions of a write, so that it cannot hold a log."""

    code = "store_unfit"
    advice = "use a store, or a version of it, with conditional writes; see the page `durability`"


class NotOwnerError(RejectedError):
    """Another process owns the log, or may own it; `address` in the facts says where, if known."""

    code = "not_owner"
    retriable = True
    advice = "call the owner that the message names; a client whose URL names all servers does"


class UnauthenticatedError(RejectedError):
    """The server cannot identify the caller."""

    code = "unauthenticated"
    advice = "set a valid token (LAKEBED_TOKEN); `lakebed token create` creates one"


class AccessDeniedError(RejectedError):
    """The caller is known, but not allowed to do this."""

    code = "access_denied"
    advice = "ask an administrator of the log; `lakebed access list` shows roles and rules"


class QuotaExceededError(RejectedError):
    """The caller exceeds a limit; retry later."""

    code = "quota_exceeded"
    retriable = True
    advice = "repeat later, or more slowly; the limits are settings of the server"


class ServerUnavailableError(RejectedError):
    """The server does not answer, or is stopping; nothing was written."""

    code = "server_unavailable"
    retriable = True
    advice = "check the address, and that `lakebed serve` runs there; then repeat the call"


class TlsError(RejectedError):
    """Server and client do not agree on TLS, or one does not trust the other's certificate."""

    code = "tls"
    advice = (
        "check the URL's scheme and port, LAKEBED_CA, LAKEBED_CERT and LAKEBED_KEY; the page "
        "`server` of the documentation shows how certificates are made"
    )


class ProtocolError(RejectedError):
    """A request or an answer does not follow the protocol."""

    code = "protocol"
    advice = (
        "use the same version of lakebed on both sides; the page `protocol` of the documentation "
        "describes messages"
    )


class JavaMissingError(RejectedError):
    """Spark has no Java that it can run on."""

    code = "java_missing"
    advice = (
        "install a Java 17 or newer runtime (Debian, Ubuntu: `apt-get install "
        "default-jre-headless`), or set JAVA_HOME"
    )


class PackageMissingError(RejectedError):
    """An optional Python package that this needs is not installed."""

    code = "package_missing"
    advice = "install it into the environment that runs this, then try again"


class DataLossError(RejectedError):
    """Records were removed (retention, purge, deletion) before a query read them."""

    code = "data_loss"
    advice = (
        "make retention longer than the query may be down; to continue without the records, set "
        "the option failOnDataLoss to false"
    )


class PipelineChangedError(RejectedError):
    """A flow of a pipeline does not match its checkpoint, and cannot continue."""

    code = "pipeline_changed"
    advice = (
        "undo the change; or rename the sink, which begins a new flow; or restart this one from "
        "the beginning: `lakebed pipeline run FILE --reset FLOW`"
    )


class PipelineRunningError(RejectedError):
    """Another running process uses the checkpoints of the pipeline."""

    code = "pipeline_running"
    retriable = True
    advice = "wait for that run, or stop it; different pipelines need different checkpoints"


class BadRecordError(RejectedError):
    """A record cannot be decoded or fails an expectation that stops the pipeline."""

    code = "bad_record"
    advice = (
        "correct the writer of such records; or skip them: in a pipeline with otherwise = "
        "'drop' or 'dead-letter', in an import with --dead-letters TOPIC"
    )


class FlowFailedError(RejectedError):
    """A flow of a pipeline failed in Spark; its batch is repeated at the next start."""

    code = "flow_failed"
    advice = "see the cause; --verbose shows the output of Spark"


class JobFailedError(RejectedError):
    """A job failed in Spark; completed work stays, and running it again continues."""

    code = "job_failed"
    advice = "see the cause, then run the same command again: it continues where it stopped"


class DemoFailedError(RejectedError):
    """A process of the demonstration ended unexpectedly; its output is removed."""

    code = "demo_failed"
    advice = "see the last output of the process, then run the demo again"


class EntryNotFoundError(RejectedError):
    """The index is beyond the end of the log."""

    code = "entry_not_found"
    retriable = True
    advice = "read at or below the last index, or wait for it"


class EntryReleasedError(RejectedError):
    """The index is before the start of the log: a snapshot has replaced it."""

    code = "entry_released"
    advice = "start from the first index of the log, or from the snapshot"


class UnknownOutcomeError(LakebedError):
    """It may have happened: the disk failed between writing and confirming."""

    code = "unknown_outcome"
    advice = "reopen the log and read its end before repeating, or repeat under a producer"


class StopError(LakebedError):
    """Continuing could lose or invent data."""

    code = "stop"
    advice = "stop and examine the disk"


class PoisonedError(StopError):
    """An earlier write or sync failed, so nothing more is accepted."""

    code = "poisoned"
    advice = "check the disk (the cause is named), then close and reopen the log"


class DeviceError(StopError):
    """The device reported an error; nothing was repaired or truncated."""

    code = "device_error"
    advice = "copy the folder to another disk first; then check the disk and its cables"


class CorruptionError(StopError):
    """Bytes on disk are not what was written."""

    code = "corruption"
    advice = (
        "`lakebed doctor --data DIR` shows all damage; restore a backup, or copy what is left of a "
        "WAL with `lakebed wal salvage DIR --to NEW`"
    )


class ForeignFileError(CorruptionError):
    """A file of another log is in the folder."""

    code = "foreign_file"
    advice = "move the named file out of the folder; it belongs to another log"


class MissingFileError(CorruptionError):
    """A file that the log needs is missing."""

    code = "missing_file"
    advice = (
        "restore the named files from a copy; for files of the WAL, `lakebed wal salvage` copies "
        "what is left"
    )


class BackupDamagedError(CorruptionError):
    """A file of a backup is missing, or not what was written."""

    code = "backup_damaged"
    advice = "use another backup, or restore the named file from a copy of this one"


class EntryLostError(CorruptionError):
    """The log was salvaged, and the entry of this index could not be copied."""

    code = "entry_lost"
    advice = (
        "the entries between are lost: continue at next_index; a log with topics needs "
        "`Wal.truncate` before the hole, as the page `operations` of the documentation shows"
    )


_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NO_DESCRIPTOR = {errno.EMFILE, errno.ENFILE}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}


def from_os_error(error: OSError, doing: str, path: object) -> LakebedError:
    """Translate an operating system error: disk full, read-only, or a failing device."""
    facts = {"path": path, "errno": errno.errorcode.get(error.errno or 0, error.errno)}
    if error.errno in _FULL:
        return DiskFullError(f"no space left while {doing}", **facts)
    if error.errno in _NO_DESCRIPTOR:
        return TooManyFilesError(f"no file descriptor left while {doing}", **facts)
    if error.errno in _READ_ONLY:
        return ReadOnlyError(f"not allowed while {doing}", **facts)
    if error.errno in {errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}:
        return NotALogError(f"not a folder while {doing}", **facts)
    return DeviceError(f"device error while {doing}: {error.strerror or error}", **facts)


@contextlib.contextmanager
def translate_os_errors(doing: str, path: object) -> Iterator[None]:
    """Translate operating system errors raised within the block."""
    try:
        yield
    except OSError as error:
        raise from_os_error(error, doing, path) from error
