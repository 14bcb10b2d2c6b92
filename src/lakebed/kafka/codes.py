"""Error codes of the Kafka protocol, and the code for each error of the log."""

from __future__ import annotations

from typing import Final

from lakebed import errors

UNKNOWN_SERVER_ERROR: Final = -1
NONE: Final = 0
OFFSET_OUT_OF_RANGE: Final = 1
CORRUPT_MESSAGE: Final = 2
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
NOT_LEADER: Final = 6
REQUEST_TIMED_OUT: Final = 7
MESSAGE_TOO_LARGE: Final = 10
OFFSET_METADATA_TOO_LARGE: Final = 12
COORDINATOR_NOT_AVAILABLE: Final = 15
INVALID_TOPIC: Final = 17
RECORD_LIST_TOO_LARGE: Final = 18
INVALID_REQUIRED_ACKS: Final = 21
ILLEGAL_GENERATION: Final = 22
INCONSISTENT_GROUP_PROTOCOL: Final = 23
INVALID_GROUP_ID: Final = 24
UNKNOWN_MEMBER_ID: Final = 25
INVALID_SESSION_TIMEOUT: Final = 26
REBALANCE_IN_PROGRESS: Final = 27
TOPIC_AUTHORIZATION_FAILED: Final = 29
GROUP_AUTHORIZATION_FAILED: Final = 30
CLUSTER_AUTHORIZATION_FAILED: Final = 31
INVALID_TIMESTAMP: Final = 32
UNSUPPORTED_SASL_MECHANISM: Final = 33
ILLEGAL_SASL_STATE: Final = 34
UNSUPPORTED_VERSION: Final = 35
TOPIC_ALREADY_EXISTS: Final = 36
INVALID_PARTITIONS: Final = 37
INVALID_REPLICA_ASSIGNMENT: Final = 39
INVALID_CONFIG: Final = 40
INVALID_REQUEST: Final = 42
UNSUPPORTED_FOR_MESSAGE_FORMAT: Final = 43
POLICY_VIOLATION: Final = 44
OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
INVALID_PRODUCER_EPOCH: Final = 47
INVALID_PRODUCER_ID_MAPPING: Final = 49
INVALID_TRANSACTION_TIMEOUT: Final = 50
TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Final = 53
SECURITY_DISABLED: Final = 54
KAFKA_STORAGE_ERROR: Final = 56
SASL_AUTHENTICATION_FAILED: Final = 58
UNKNOWN_PRODUCER_ID: Final = 59
NON_EMPTY_GROUP: Final = 68
GROUP_ID_NOT_FOUND: Final = 69
FETCH_SESSION_ID_NOT_FOUND: Final = 70
UNSUPPORTED_COMPRESSION_TYPE: Final = 76
MEMBER_ID_REQUIRED: Final = 79
GROUP_MAX_SIZE_REACHED: Final = 81
FENCED_INSTANCE_ID: Final = 82
GROUP_SUBSCRIBED_TO_TOPIC: Final = 86
INVALID_RECORD: Final = 87
THROTTLING_QUOTA_EXCEEDED: Final = 89
UNKNOWN_TOPIC_ID: Final = 100


class Refusal(Exception):  # noqa: N818  # it is an answer, and no error of the log
    """What a request is answered with: a code of the protocol, and why."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message


_CODES: Final[dict[type[errors.LakebedError], int]] = {
    errors.TopicNotFoundError: UNKNOWN_TOPIC_OR_PARTITION,
    errors.PartitionNotFoundError: UNKNOWN_TOPIC_OR_PARTITION,
    errors.OffsetOutOfRangeError: OFFSET_OUT_OF_RANGE,
    errors.RecordTooLargeError: MESSAGE_TOO_LARGE,
    errors.EntryTooLargeError: RECORD_LIST_TOO_LARGE,
    errors.SchemaMismatchError: INVALID_RECORD,
    errors.FencedError: INVALID_PRODUCER_EPOCH,
    errors.SequenceGapError: OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.TopicExistsError: TOPIC_ALREADY_EXISTS,
    errors.InvalidNameError: INVALID_TOPIC,
    errors.GroupNotFoundError: GROUP_ID_NOT_FOUND,
    errors.GroupNotEmptyError: NON_EMPTY_GROUP,
    errors.AccessDeniedError: TOPIC_AUTHORIZATION_FAILED,
    errors.UnauthenticatedError: SASL_AUTHENTICATION_FAILED,
    errors.QuotaExceededError: THROTTLING_QUOTA_EXCEEDED,
    # Retriable for every client: it asks for the leader again and repeats the request.
    errors.ClosedError: NOT_LEADER,
    errors.NotOwnerError: NOT_LEADER,
    errors.ServerUnavailableError: NOT_LEADER,
    errors.OverloadedError: REQUEST_TIMED_OUT,
    errors.DiskFullError: KAFKA_STORAGE_ERROR,
    errors.TooManyFilesError: KAFKA_STORAGE_ERROR,
    errors.StopError: KAFKA_STORAGE_ERROR,
    errors.InvalidArgumentError: INVALID_REQUEST,
    errors.StoreUnavailableError: KAFKA_STORAGE_ERROR,
}


def code_of(error: BaseException) -> int:
    """Return the code for an error."""
    if isinstance(error, Refusal):
        return error.code
    for kind in type(error).__mro__:
        code = _CODES.get(kind)
        if code is not None:
            return code
    return UNKNOWN_SERVER_ERROR


def message_of(error: BaseException) -> str:
    """Return what an answer says about an error besides its code."""
    if isinstance(error, Refusal):
        return error.message
    return str(error) if isinstance(error, errors.LakebedError) else "the server failed"
