"""What the server does for a call: a method of the log, or one of the functions below.

`operations/table.py` describes each call. A call without a row there does not exist; one place
checks the row's `need` before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lakebed import limits
from lakebed.api.lookup import no_topic
from lakebed.api.offsets import Offsets
from lakebed.api.together import check_transactions
from lakebed.errors import (
    FencedError,
    InvalidArgumentError,
    InvalidNameError,
    LakebedError,
    ProtocolError,
)
from lakebed.operations.description import Operation, Owner
from lakebed.operations.requests import groups_of_offsets
from lakebed.reports.derived import DerivedFile
from lakebed.serve.room import StateQuota
from lakebed.state.commands import (
    AbortTransaction,
    BeginTransaction,
    CommitTogether,
    CommitTransaction,
    ForgetProducer,
    RegisterProducer,
)
from lakebed.state.decision import Written
from lakebed.state.values import GroupOffset
from lakebed.types import ANONYMOUS, BackupName, GroupName, ProducerName
from lakebed.version import __version__
from lakebed.wire.protocol import VERSION, convert

if TYPE_CHECKING:
    from lakebed.config import ServeConfig
    from lakebed.engine.log import EmbeddedLog
    from lakebed.engine.table import EmbeddedTable as Table
    from lakebed.serve.guard import Principal


class Session:
    """What a call works on: the log, who calls, and the server it came to."""

    def __init__(
        self,
        *,
        log: EmbeddedLog,
        principal: Principal,
        server: str,
        wake: Callable[[str], None],
        config: ServeConfig,
        administrator: bool,
    ) -> None:
        self.log = log
        self.principal = principal
        self.server = server
        """Tells this run of the server from those before it, which clients have to know."""
        self.wake = wake
        """Wakes a stream that waits under a name."""
        self.backups = config.backups
        """The folder that backups go to; empty for none."""
        self.request_bytes_max = config.request_bytes_max
        self._administrator = administrator

    @property
    def room(self) -> StateQuota:
        """What the caller may still add to the state."""
        return StateQuota(self.log, self.principal.name, administrator=self._administrator)


def producer_name(principal: str, name: str | None) -> str:
    """Return the name under which the log keeps a caller's producer or transaction.

    That of a known caller bears the caller's name, so nobody else can take it over, and whose it is
    outlives the server.
    """
    chosen = "" if name is None else str(ProducerName(name))
    return chosen if principal == ANONYMOUS else f"{principal}/{chosen}"


def check_owner(log: EmbeddedLog, producer: int, principal: str) -> None:
    """Refuse a producer or transaction that belongs to somebody else."""
    producer_state = log.parts.core.state.producers.get(producer)
    if producer_state is not None and producer_state.owner != (
        "" if principal == ANONYMOUS else principal
    ):
        raise FencedError("the producer belongs to another client", producer=producer)


def _create_token(session: Session, request: Any) -> Any:
    """Make a token; its text travels to the one who asked, and nowhere else."""
    secret = session.log.access.create_token(
        request["principal"], expires_ms=request.get("expires_ms"), roles=request["roles"]
    )
    return str(secret)


def _commit_derived(session: Session, request: Any) -> Any:
    added = [DerivedFile(*file) for file in request.pop("added")]
    return session.log.derived.commit(request.pop("name"), added=added, **request)


def _describe_for_writers(session: Session, request: Any) -> Any:
    """Return a topic as the state holds it: what a client needs to encode records for it."""
    return tuple(session.log.parts.topics.find(request["name"]))


# Producers and transactions


def _register_producer(session: Session, request: Any) -> Any:
    log = session.log
    name = producer_name(session.principal.name, request.get("name"))
    session.room.check_producer(name, transactional=False)
    return log._submit(RegisterProducer(name, log.parts.core.clock.time_us()))


def _forget_producer(session: Session, request: Any) -> None:
    identity = _check_owner(session, request)
    session.log._submit(ForgetProducer(*identity))


def _begin_transaction(session: Session, request: Any) -> Any:
    log = session.log
    _check_range(request, "timeout_ms", 1, 86_400_000)
    name = producer_name(session.principal.name, request.get("name"))
    session.room.check_producer(name, transactional=True)
    time_us = log.parts.core.clock.time_us()
    return log._submit(BeginTransaction(name, request["timeout_ms"] * 1000, time_us))


def _check_range(request: Any, name: str, low: float, high: float) -> None:
    if not low <= request[name] <= high:
        raise InvalidArgumentError(f"{name} must be from {low} to {high}", got=repr(request[name]))


def _commit_transaction(session: Session, request: Any) -> Any:
    identity = _check_owner(session, request)
    log = session.log
    log.parts.admission.admit()
    session.room.check_groups(groups_of_offsets(request))
    committed = _parse_committed_offsets(request)
    command = CommitTransaction(*identity, log.parts.core.clock.time_us(), (), committed)
    written: Written = log.parts.writing.submit(command)
    return to_rows(written)


def _commit_together(session: Session, request: Any) -> Any:
    """Commit transactions of the caller's own: the state machine knows them by the name's owner."""
    log = session.log
    _check_range(request, "number", 0, limits.MARKER_NUMBER_MAX)
    _check_range(request, "keep_ms", 0, limits.MARKER_KEPT_MS_MAX)
    name = producer_name(session.principal.name, request["name"])
    session.room.check_marker(name)
    session.room.check_groups(groups_of_offsets(request))
    command = CommitTogether(
        name,
        request["number"],
        log.parts.core.clock.time_us(),
        request["keep_ms"] * 1000,
        check_transactions(request["transactions"]),
        _parse_committed_offsets(request),
    )
    return log._commit_together(command)


def _committed_number(session: Session, request: Any) -> Any:
    return session.log._committed_number(producer_name(session.principal.name, request["name"]))


def _parse_committed_offsets(request: Any) -> tuple[GroupOffset, ...]:
    return tuple((str(GroupName(group)), *position) for group, *position in request["offsets"])


def _abort_transaction(session: Session, request: Any) -> None:
    identity = _check_owner(session, request)
    session.log.parts.writing.submit(AbortTransaction(*identity, "aborted"))


def _check_owner(session: Session, request: Any) -> tuple[int, int]:
    identity = (request["producer"], request["epoch"])
    check_owner(session.log, identity[0], session.principal.name)
    return identity


def to_rows(written: Written) -> list[Any]:
    """Return where the parts of a write are, as it travels: runs of each part, or its error."""
    return [
        part
        if isinstance(part, LakebedError)
        else [(run.topic, run.partition, run.base, run.records, run.start) for run in part]
        for part in written.parts
    ]


# Groups


def _join(session: Session, request: Any) -> Any:
    _check_range(request, "session_seconds", 0.001, 86_400)
    session.room.check_groups([request["group"]])
    return session.log.parts.groups.join(
        request["group"], request["topics"], request["session_seconds"], request["strategy"]
    )


def _heartbeat(session: Session, request: Any) -> Any:
    groups = session.log.parts.groups
    return sorted(groups.heartbeat(request["group"], request["member"], request["held"]))


def _leave(session: Session, request: Any) -> None:
    session.log.parts.groups.leave(request["group"], request["member"])


def _commit(session: Session, request: Any) -> None:
    session.room.check_groups([request["group"]])
    session.log.parts.groups.commit(request["group"], request["member"], _offsets(request))


def _commit_offsets(session: Session, request: Any) -> None:
    session.room.check_groups([request["group"]])
    session.log.commit_offsets(request["group"], _offsets(request))


def _reset_group(session: Session, request: Any) -> None:
    session.room.check_groups([request["name"]])
    session.log.reset_group(request["name"], _offsets(request))


def _list_committed(session: Session, request: Any) -> Any:
    offsets = session.log.committed(request["group"])
    return [(*partition, offset) for partition, offset in offsets.items()]


def _offsets(request: Any) -> Offsets:
    return {(topic, partition): offset for topic, partition, offset in request["offsets"]}


# The rest


def _hello(session: Session, _: Any) -> Any:
    """Return who answers, and whom it sees."""
    wal = session.log.parts.wal
    return {
        "protocol": VERSION,
        "version": __version__,
        "log": str(wal.log_id),
        "principal": session.principal.name,
        "server": session.server,
        "role": "owner" if session.log.parts.replica is None else "replica",
        "entry_bytes_max": wal.config.entry_bytes_max,
        "request_bytes_max": session.request_bytes_max,
    }


def _wake(session: Session, request: Any) -> None:
    session.wake(request["waiter"])


def _plan(session: Session, request: Any) -> Any:
    table = session.log.table(request["topic"])
    check_same(table, request.get("id"))
    return table.plan(
        partitions=request.get("partitions"), start=request.get("start"), until=request.get("until")
    )


def check_same(table: Table, topic_id: Any) -> None:
    """Refuse a table whose topic was made again since its client looked at it."""
    if topic_id is not None and topic_id != table._id:
        raise no_topic(table.name)


def _backup(session: Session, request: Any) -> Any:
    """Back the log up into the folder that is set for it: a client names no other path."""
    if not session.backups:
        raise InvalidArgumentError(
            "the server takes no backups for clients: start the server with `--set backups=DIR`,"
            " or set it below [serve] in its lakebed.toml"
        )
    name = request["name"]
    if isinstance(name, str) and "/" in name:
        raise InvalidNameError(
            "the target must be a plain name within the server's backup folder",
            got=repr(name[:200]),
        )
    return session.log.backup(Path(session.backups) / BackupName(name))


def _sync(session: Session, request: Any) -> Any:
    return session.log.lake.sync(
        request.get("topic"), take_over=bool(request.get("take_over", False))
    )


_FUNCTIONS: Final[dict[str, Callable[[Session, Any], Any]]] = {
    "hello": _hello,
    "wake": _wake,
    "topic": _describe_for_writers,
    "plan": _plan,
    "register_producer": _register_producer,
    "forget_producer": _forget_producer,
    "begin_transaction": _begin_transaction,
    "commit_transaction": _commit_transaction,
    "commit_together": _commit_together,
    "committed_number": _committed_number,
    "abort_transaction": _abort_transaction,
    "join": _join,
    "heartbeat": _heartbeat,
    "leave": _leave,
    "commit": _commit,
    "commit_offsets": _commit_offsets,
    "committed": _list_committed,
    "reset_group": _reset_group,
    "backup": _backup,
    "lake_sync": _sync,
    "derived_commit": _commit_derived,
    "create_token": _create_token,
}
"""Calls that are more than a method of the log with the request as its arguments."""


def run(session: Session, operation: Operation, request: dict[str, Any]) -> Any:
    """Make a call whose request was checked; return the reply."""
    function = _FUNCTIONS.get(operation.name)
    if function is not None:
        return function(session, request)
    log = session.log
    owner = log if operation.owner is Owner.LOG else getattr(log, operation.owner.value)
    return getattr(owner, operation.method)(**request)


def check_parameters(call: Operation, request: Any) -> dict[str, Any]:
    """Return a request whose parameters are those of its call, or raise `ProtocolError`."""
    fault = "a request does not fit its call"
    parameters: dict[str, Any] = convert(request, call.request_type, fault, call=call.name)
    unknown = sorted(request.keys() - parameters.keys())
    if unknown:
        raise ProtocolError("unknown parameter", call=call.name, parameter=unknown[0])
    return parameters
