"""Every call of a served log: what it is named, what it needs, who may make it, what it does.

A request is a map of the parameters in its call's table, all by name; those with a `?` may be left
out. The reply is one value. `docs/protocol.md` lists them, and a test compares the two. A call
without a line here does not exist; one choke point checks the line's `need` before anything runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from lakebed import limits
from lakebed.api.lookup import no_topic
from lakebed.api.offsets import Offsets
from lakebed.api.together import checked_transactions
from lakebed.errors import (
    FencedError,
    InvalidArgumentError,
    InvalidNameError,
    LakebedError,
    ProtocolError,
)
from lakebed.reports.derived import DerivedFile
from lakebed.reports.groups import GroupInfo
from lakebed.serve.guard import Action, Need
from lakebed.serve.protocol import MESSAGE_BYTES_MAX, VERSION
from lakebed.serve.room import Room
from lakebed.state.commands import (
    AbortTransaction,
    BeginTransaction,
    CommitTogether,
    CommitTransaction,
    ForgetProducer,
    RegisterProducer,
)
from lakebed.state.machine import Written
from lakebed.types import ANONYMOUS, BackupName, GroupName, ProducerName, TopicPartition
from lakebed.version import __version__

if TYPE_CHECKING:
    from lakebed.config import ServeConfig
    from lakebed.engine.log import EmbeddedLog as Log
    from lakebed.engine.table import EmbeddedTable as Table
    from lakebed.serve.guard import Principal

_ANY: Final = Need(Action.READ, "log")
_READ: Final = Need(Action.READ, "topic")
_WRITE: Final = Need(Action.WRITE, "topic")
_MANAGE: Final = Need(Action.MANAGE, "topic")
_GROUP: Final = Need(Action.GROUP, "group")
_ADMIN: Final = Need(Action.ADMIN, "log")


class Session:
    """What a call works on: the log, who calls, and the server it came to."""

    def __init__(
        self,
        log: Log,
        principal: Principal,
        server: str,
        wake: Callable[[str], None],
        config: ServeConfig,
        *,
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
        self.room = Room(log, principal.name, administrator=administrator)
        """What the caller may still add to the state."""


def producer_name(principal: str, name: str | None) -> str:
    """Return the name under which the log keeps a caller's producer or transaction.

    That of a known caller bears the caller's name, so nobody else can take it over, and whose it is
    outlives the server.
    """
    chosen = "" if name is None else str(ProducerName(name))
    return chosen if principal == ANONYMOUS else f"{principal}/{chosen}"


def check_owner(log: Log, producer: int, principal: str) -> None:
    """Refuse a producer or transaction that belongs to somebody else."""
    found = log._core.state.producers.get(producer)
    if found is not None and found.owner != ("" if principal == ANONYMOUS else principal):
        raise FencedError("the producer belongs to somebody else", producer=producer)


Run = Callable[[Session, Any], Any]


class Call(NamedTuple):
    """One call."""

    name: str
    need: Need
    parameters: Mapping[str, tuple[type, ...]]
    """The types that each may have; one that may be None may be left out.

    Of what may be an `object`, the log itself says what it has to be.
    """
    run: Run
    names: Callable[[Any], Sequence[str]] = lambda _: ()
    """Gives the topics or groups that a request is about."""
    safe: bool = True
    """Whether it can be repeated when nobody knows if it happened."""
    somewhere: tuple[Action, ...] = ()
    """For a call that names nothing yet: its caller may do one of these on some name."""
    open: bool = False
    """Whether everybody who is known may make it; it shows nothing but what its caller may see."""
    topics: Callable[[Log, Any], Sequence[str]] | None = None
    """Gives the topics that a request for a group names: its caller needs to read them too."""
    shown: Callable[[Any, Callable[[str], bool]], Any] | None = None
    """Leaves out of a reply what is about topics that its caller may not read."""
    bytes_max: int = 256 * limits.KIB
    """The largest request."""
    items_max: int = 1_000
    """The most items of a list or map in a request."""


_ADMINISTRATIVE: Final = (Action.MANAGE, Action.ADMIN)
_LOOKS: Final = frozenset(
    [
        "stats",
        "verify",
        "segments",
        "verify_segment",
        "plan_compaction",
        "tick",
        "tokens",
        "rules",
        "denials",
        "grants",
        "lake_tables",
        "lake_stats",
    ]
)
"""Calls of administrators that change nothing, and are not put on record."""


def is_administrative(call: Call) -> bool:
    """Return whether a call is put on record, whether it succeeds or fails."""
    return call.need.action in _ADMINISTRATIVE and call.name not in _LOOKS


_GIVEN: Final = (object,)
_MAYBE: Final = (object, type(None))
_TEXT: Final = (str,)
_WHOLE: Final = (int,)
_NUMBER: Final = (int, float)
_MAYBE_TEXT: Final = (str, type(None))
_MAYBE_WHOLE: Final = (int, type(None))
_LIST: Final = (tuple,)
_FLAG: Final = (bool,)
_MAYBE_FLAG: Final = (bool, type(None))
_TOPIC: Final = {
    "name": _TEXT,
    "partitions": _MAYBE,
    "schema": _MAYBE,
    "config": _MAYBE,
}


def _named(request: Any) -> Sequence[str]:
    return [request["name"]]


def _of_topic(request: Any) -> Sequence[str]:
    return [request["topic"]]


def _of_group(request: Any) -> Sequence[str]:
    return [request["group"]]


def _topic_or_all(request: Any) -> Sequence[str]:
    return [] if request.get("topic") is None else [request["topic"]]


def _joined(_log: Log, request: Any) -> Sequence[str]:
    return sorted({topic for topic in request["topics"] if isinstance(topic, str)})


def _with_offsets(_log: Log, request: Any) -> Sequence[str]:
    named = {topic for topic, _ in offsets(request["offsets"])}
    return sorted(topic for topic in named if isinstance(topic, str))


def _with_numbered_offsets(log: Log, request: Any) -> Sequence[str]:
    """Return the topics of a transaction's offsets; of those that do not exist the log tells."""
    known = log._core.state.topics
    numbers = {_committed_offset(each)[2] for each in request["offsets"]}
    return sorted(known[number].name for number in numbers if number in known)


def shown_group(info: GroupInfo, may_read: Callable[[str], bool]) -> GroupInfo:
    """Leave out of a group what is about topics that its caller may not read."""
    seen = tuple(each for each in info.partitions if may_read(each.topic))
    return dataclasses.replace(info, partitions=seen)


def _shown_offsets(found: Any, may_read: Callable[[str], bool]) -> Any:
    return [each for each in found if may_read(each[0])]


def _about(*names: str) -> Callable[[Any], Sequence[str]]:
    """Make what names those that a call on the whole log is about, for the audit."""
    return lambda request: [str(request[name]) for name in names]


def _method(name: str) -> Run:
    """Make a call of a method of the log, with the request as its parameters."""
    return lambda session, request: getattr(session.log, name)(**request)


def _access(name: str) -> Run:
    return lambda session, request: getattr(session.log.access, name)(**request)


def _create_token(session: Session, request: Any) -> Any:
    """Make a token; its text travels to the one who asked, and nowhere else."""
    secret = session.log.access.create_token(
        request["principal"], expires_ms=request.get("expires_ms"), roles=request["roles"]
    )
    return str(secret)


def _lake(name: str) -> Run:
    return lambda session, request: getattr(session.log.lake, name)(**request)


# Derived tables


def _derived(name: str) -> Run:
    return lambda session, request: getattr(session.log.derived, name)(**request)


def _derived_create(session: Session, request: Any) -> Any:
    return session.log.derived.create(request.pop("name"), request.pop("schema"), **request)


def _derived_commit(session: Session, request: Any) -> Any:
    added = [_derived_file(each) for each in request.pop("added")]
    if not all(isinstance(each, str) for each in request["removed"]):
        raise ProtocolError("a removed file is its location")
    return session.log.derived.commit(request.pop("name"), added=added, **request)


def _derived_file(given: Any) -> DerivedFile:
    shape = (str, int, str, int, int)
    if not isinstance(given, tuple) or tuple(map(type, given)) != shape:
        raise ProtocolError("a file is [location, bucket, content, rows, bytes]")
    return DerivedFile(*given)


def _shown_names(found: Any, may_read: Callable[[str], bool]) -> Any:
    return [name for name in found if may_read(name)]


def _describe_for_writers(session: Session, request: Any) -> Any:
    """Return a topic as the state holds it: what a client needs to encode records for it."""
    return tuple(session.log._topics.find(request["name"]))


# Producers and transactions


def _register_producer(session: Session, request: Any) -> Any:
    log = session.log
    name = producer_name(session.principal.name, request.get("name"))
    session.room.check_producer(name, transactional=False)
    return log._submit(RegisterProducer(name, log._core.clock.time_us()))


def _forget_producer(session: Session, request: Any) -> None:
    identity = _owned(session, request)
    session.log._submit(ForgetProducer(*identity))


def _begin_transaction(session: Session, request: Any) -> Any:
    log = session.log
    _check_range(request, "timeout_ms", 1, 86_400_000)
    name = producer_name(session.principal.name, request.get("name"))
    session.room.check_producer(name, transactional=True)
    time_us = log._core.clock.time_us()
    return log._submit(BeginTransaction(name, request["timeout_ms"] * 1000, time_us))


def _check_range(request: Any, name: str, low: float, high: float) -> None:
    if not low <= request[name] <= high:
        raise InvalidArgumentError(f"{name} must be from {low} to {high}", got=repr(request[name]))


def _commit_transaction(session: Session, request: Any) -> Any:
    identity = _owned(session, request)
    log = session.log
    log._admit()
    session.room.check_groups(_offset_groups(request))
    committed = _committed_offsets(request)
    command = CommitTransaction(*identity, log._core.clock.time_us(), (), committed)
    written: Written = log._writing.submit(command)
    return placed(written)


def _commit_together(session: Session, request: Any) -> Any:
    """Commit transactions of the caller's own: the state machine knows them by the name's owner."""
    log = session.log
    _check_range(request, "number", 0, limits.MARKER_NUMBER_MAX)
    _check_range(request, "keep_ms", 0, limits.MARKER_KEPT_MS_MAX)
    name = producer_name(session.principal.name, request["name"])
    session.room.check_marker(name)
    session.room.check_groups(_offset_groups(request))
    command = CommitTogether(
        name,
        request["number"],
        log._core.clock.time_us(),
        request["keep_ms"] * 1000,
        checked_transactions(request["transactions"]),
        _committed_offsets(request),
    )
    return log._commit_together(command)


def _committed_number(session: Session, request: Any) -> Any:
    return session.log._committed_number(producer_name(session.principal.name, request["name"]))


def _committed_offsets(request: Any) -> tuple[tuple[str, str, int, int, int], ...]:
    return tuple(
        (str(GroupName(group)), member, topic, partition, offset)
        for group, member, topic, partition, offset in map(_committed_offset, request["offsets"])
    )


def _offset_groups(request: Any) -> Sequence[str]:
    return sorted({_committed_offset(each)[0] for each in request["offsets"]})


def _committed_offset(given: Any) -> tuple[str, str, int, int, int]:
    shape = (str, str, int, int, int)
    if not isinstance(given, tuple) or tuple(map(type, given)) != shape or min(given[2:]) < 0:
        raise ProtocolError("an offset is [group, member, topic, partition, offset]")
    return given


def _abort_transaction(session: Session, request: Any) -> None:
    identity = _owned(session, request)
    session.log._writing.submit(AbortTransaction(*identity, "aborted"))


def _owned(session: Session, request: Any) -> tuple[int, int]:
    identity = (request["producer"], request["epoch"])
    if min(identity) < 0:  # an entry with it could not be read again
        raise ProtocolError("a producer's id and epoch are whole numbers from 0")
    check_owner(session.log, identity[0], session.principal.name)
    return identity


def placed(written: Written) -> list[Any]:
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
    return session.log._groups.join(
        request["group"], request["topics"], request["session_seconds"], request["strategy"]
    )


def _heartbeat(session: Session, request: Any) -> Any:
    held = places(request["held"])
    allowed = session.log._groups.heartbeat(request["group"], request["member"], held)
    return sorted(allowed)


def _leave(session: Session, request: Any) -> None:
    session.log._groups.leave(request["group"], request["member"])


def _commit(session: Session, request: Any) -> None:
    session.room.check_groups([request["group"]])
    session.log._groups.commit(request["group"], request["member"], offsets(request["offsets"]))


def _commit_offsets(session: Session, request: Any) -> None:
    session.room.check_groups([request["group"]])
    session.log.commit_offsets(request["group"], offsets(request["offsets"]))


def _reset_group(session: Session, request: Any) -> None:
    session.room.check_groups([request["name"]])
    session.log.reset_group(request["name"], offsets(request["offsets"]))


def _committed(session: Session, request: Any) -> Any:
    found = session.log.committed(request["group"])
    return [(*place, offset) for place, offset in found.items()]


def places(given: Any) -> list[TopicPartition]:
    """Check partitions that were sent as [topic, partition]."""
    try:
        found = [TopicPartition(topic, partition) for topic, partition in given]
    except (TypeError, ValueError) as error:
        raise ProtocolError("a partition is [topic, partition]") from error
    if any(type(topic) is not str or type(partition) is not int for topic, partition in found):
        raise ProtocolError("a partition is [topic, partition]")
    return found


def offsets(given: Any) -> Offsets:
    """Check offsets that were sent as [topic, partition, offset]."""
    try:
        return {(topic, partition): offset for topic, partition, offset in given}
    except (TypeError, ValueError) as error:
        raise ProtocolError("an offset is [topic, partition, offset]") from error


# The rest


def _topics(session: Session, _: Any) -> Any:
    return session.log.topics()


def _groups(session: Session, _: Any) -> Any:
    return session.log.groups()


def _hello(session: Session, _: Any) -> Any:
    """Return who answers, and whom it sees."""
    wal = session.log._wal
    return {
        "protocol": VERSION,
        "version": __version__,
        "log": str(wal.log_id),
        "principal": session.principal.name,
        "server": session.server,
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


def check_same(table: Table, number: Any) -> None:
    """Refuse a table whose topic was made again since its client looked at it."""
    if number is not None and number != table._id:
        raise no_topic(table.name)


def _offset_for_time(session: Session, request: Any) -> Any:
    return session.log.offset_for_time(
        request["topic"], request["partition"], timestamp=request["timestamp"]
    )


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
            "give a name only; it goes to the server's folder for backups", got=repr(name[:200])
        )
    return session.log.backup(Path(session.backups) / BackupName(name))


def _sync(session: Session, request: Any) -> Any:
    return session.log.lake.sync(
        request.get("topic"), take_over=bool(request.get("take_over", False))
    )


_RULE: Final = {"role": _GIVEN, "action": _GIVEN, "pattern": _GIVEN, "force": _FLAG}

_CALLS: Final = (
    Call("hello", _ANY, {}, _hello, open=True),
    Call("wake", _ANY, {"waiter": _TEXT}, _wake, open=True),
    Call("topics", _READ, {}, _topics, open=True),
    Call("create_topic", _MANAGE, _TOPIC, _method("create_topic"), _named, safe=False),
    Call("get_or_create_topic", _MANAGE, _TOPIC, _method("get_or_create_topic"), _named),
    Call("describe_topic", _READ, {"name": _TEXT}, _method("describe_topic"), _named),
    Call("topic", _WRITE, {"name": _TEXT}, _describe_for_writers, _named),
    Call("alter_topic", _MANAGE, _TOPIC, _method("alter_topic"), _named),
    Call(
        "add_partitions",
        _MANAGE,
        {"name": _TEXT, "partitions": _GIVEN},
        _method("add_partitions"),
        _named,
    ),
    Call("purge_topic", _MANAGE, {"name": _TEXT}, _method("purge_topic"), _named, safe=False),
    Call("delete_topic", _MANAGE, {"name": _TEXT}, _method("delete_topic"), _named, safe=False),
    Call("offsets", _READ, {"topic": _TEXT}, _method("offsets"), _of_topic),
    Call(
        "offset_for_time",
        _READ,
        {"topic": _TEXT, "partition": _GIVEN, "timestamp": _WHOLE},
        _offset_for_time,
        _of_topic,
    ),
    Call(
        "plan",
        _READ,
        {
            "topic": _TEXT,
            "id": _MAYBE_WHOLE,
            "partitions": _MAYBE,
            "start": _MAYBE,
            "until": _MAYBE,
        },
        _plan,
        _of_topic,
    ),
    Call(
        "register_producer",
        _ANY,
        {"name": _MAYBE_TEXT},
        _register_producer,
        somewhere=(Action.WRITE,),
        open=True,
    ),
    Call(
        "forget_producer", _ANY, {"producer": _WHOLE, "epoch": _WHOLE}, _forget_producer, open=True
    ),
    Call(
        "begin_transaction",
        _ANY,
        {"name": _MAYBE_TEXT, "timeout_ms": _WHOLE},
        _begin_transaction,
        somewhere=(Action.WRITE, Action.GROUP),
        open=True,
    ),
    Call(
        "commit_transaction",
        _GROUP,
        {"producer": _WHOLE, "epoch": _WHOLE, "offsets": _LIST},
        _commit_transaction,
        _offset_groups,
        safe=False,
        open=True,
        topics=_with_numbered_offsets,
    ),
    Call(
        "commit_together",
        _GROUP,
        {
            "name": _TEXT,
            "number": _WHOLE,
            "keep_ms": _WHOLE,
            "transactions": _LIST,
            "offsets": _LIST,
        },
        _commit_together,
        _offset_groups,
        somewhere=(Action.WRITE, Action.GROUP),
        open=True,
        topics=_with_numbered_offsets,
    ),
    Call("committed_number", _ANY, {"name": _TEXT}, _committed_number, open=True),
    Call(
        "abort_transaction",
        _ANY,
        {"producer": _WHOLE, "epoch": _WHOLE},
        _abort_transaction,
        open=True,
    ),
    Call(
        "join",
        _GROUP,
        {"group": _TEXT, "topics": _LIST, "session_seconds": _NUMBER, "strategy": _TEXT},
        _join,
        _of_group,
        safe=False,
        topics=_joined,
    ),
    Call(
        "heartbeat",
        _GROUP,
        {"group": _TEXT, "member": _TEXT, "held": _LIST},
        _heartbeat,
        _of_group,
    ),
    Call("leave", _GROUP, {"group": _TEXT, "member": _TEXT}, _leave, _of_group),
    Call(
        "commit",
        _GROUP,
        {"group": _TEXT, "member": _TEXT, "offsets": _LIST},
        _commit,
        _of_group,
        topics=_with_offsets,
    ),
    Call(
        "commit_offsets",
        _GROUP,
        {"group": _TEXT, "offsets": _LIST},
        _commit_offsets,
        _of_group,
        topics=_with_offsets,
    ),
    Call("committed", _GROUP, {"group": _TEXT}, _committed, _of_group, shown=_shown_offsets),
    Call("groups", _GROUP, {}, _groups, open=True),
    Call(
        "describe_group",
        _GROUP,
        {"name": _TEXT},
        _method("describe_group"),
        _named,
        shown=shown_group,
    ),
    Call(
        "reset_group",
        _GROUP,
        {"name": _TEXT, "offsets": _LIST},
        _reset_group,
        _named,
        topics=_with_offsets,
    ),
    Call("delete_group", _GROUP, {"name": _TEXT}, _method("delete_group"), _named, safe=False),
    Call("checkpoint", _ADMIN, {}, _method("checkpoint")),
    Call("retain", _ADMIN, {"topic": _MAYBE_TEXT}, _method("retain"), _topic_or_all),
    Call(
        "plan_compaction",
        _ADMIN,
        {"topic": _TEXT, "force": _FLAG},
        _method("plan_compaction"),
        _of_topic,
    ),
    Call(
        "rewrite_segments",
        _ADMIN,
        {"topic": _TEXT, "partition": _GIVEN, "segments": _LIST, "survivors": (bytes,)},
        _method("rewrite_segments"),
        _of_topic,
    ),
    Call("verify", _ADMIN, {"topic": _MAYBE_TEXT}, _method("verify"), _topic_or_all),
    Call(
        "segments",
        _ADMIN,
        {"topic": _TEXT, "partition": _GIVEN},
        _method("segments"),
        _of_topic,
    ),
    Call(
        "verify_segment",
        _ADMIN,
        {"topic": _TEXT, "partition": _GIVEN, "segment": _WHOLE},
        _method("verify_segment"),
        _of_topic,
    ),
    Call("backup", _ADMIN, {"name": _GIVEN}, _backup, _named, safe=False),
    Call("stats", _ADMIN, {}, _method("stats")),
    Call("tick", _ADMIN, {}, _method("tick")),
    Call(
        "lake_sync",
        _ADMIN,
        {"topic": _MAYBE_TEXT, "take_over": _MAYBE_FLAG},
        _sync,
        _topic_or_all,
    ),
    Call("lake_gc", _ADMIN, {"now": _FLAG}, _lake("gc")),
    Call("lake_tables", _ADMIN, {}, _lake("tables")),
    Call("lake_describe", _READ, {"topic": _TEXT}, _lake("describe"), _of_topic),
    Call("lake_history", _READ, {"topic": _TEXT}, _lake("history"), _of_topic),
    Call("lake_stats", _ADMIN, {}, _lake("stats")),
    Call("derived_tables", _READ, {}, _derived("tables"), open=True, shown=_shown_names),
    Call("derived_describe", _READ, {"name": _TEXT}, _derived("describe"), _named),
    Call("derived_files", _READ, {"name": _TEXT, "buckets": _MAYBE}, _derived("files"), _named),
    Call(
        "derived_create",
        _MANAGE,
        {"name": _TEXT, "schema": _GIVEN, "kind": _TEXT, "key": _GIVEN, "buckets": _GIVEN},
        _derived_create,
        _named,
    ),
    Call("derived_evolve", _MANAGE, {"name": _TEXT, "schema": _GIVEN}, _derived("evolve"), _named),
    Call("derived_restore", _MANAGE, {"name": _TEXT}, _derived("restore"), _named),
    Call("derived_drop", _MANAGE, {"name": _TEXT}, _derived("drop"), _named, safe=False),
    Call(
        "derived_commit",
        _WRITE,
        {
            "name": _TEXT,
            "writer": _TEXT,
            "number": _WHOLE,
            "added": _LIST,
            "removed": _LIST,
            "positions": _MAYBE,
            "expected": _WHOLE,
        },
        _derived_commit,
        _named,
    ),
    Call("tokens", _ADMIN, {}, _access("tokens")),
    Call(
        "create_token",
        _ADMIN,
        {"principal": _GIVEN, "expires_ms": _MAYBE, "roles": (tuple, str)},
        _create_token,
        _about("principal"),
        safe=False,
    ),
    Call(
        "revoke_token",
        _ADMIN,
        {"token_id": _GIVEN, "force": _FLAG},
        _access("revoke_token"),
        _about("token_id"),
    ),
    Call("rules", _ADMIN, {}, _access("rules")),
    Call("allow", _ADMIN, _RULE, _access("allow"), _about("role", "action", "pattern")),
    Call(
        "forbid",
        _ADMIN,
        _RULE,
        _access("forbid"),
        _about("role", "action", "pattern"),
        safe=False,
    ),
    Call("denials", _ADMIN, {}, _access("denials")),
    Call("deny", _ADMIN, _RULE, _access("deny"), _about("role", "action", "pattern")),
    Call(
        "lift",
        _ADMIN,
        _RULE,
        _access("lift"),
        _about("role", "action", "pattern"),
        safe=False,
    ),
    Call("grants", _ADMIN, {}, _access("grants")),
    Call(
        "grant",
        _ADMIN,
        {"principal": _GIVEN, "role": _GIVEN, "force": _FLAG},
        _access("grant"),
        _about("principal", "role"),
    ),
    Call(
        "revoke",
        _ADMIN,
        {"principal": _GIVEN, "role": _GIVEN, "force": _FLAG},
        _access("revoke"),
        _about("principal", "role"),
        safe=False,
    ),
)
_LARGE: Final = frozenset(
    [
        "commit",
        "commit_offsets",
        "commit_together",
        "commit_transaction",
        "derived_commit",
        "derived_files",
        "heartbeat",
        "join",
        "plan",
        "reset_group",
        "rewrite_segments",
    ]
)
_SCHEMAS: Final = frozenset(
    ["alter_topic", "create_topic", "derived_create", "derived_evolve", "get_or_create_topic"]
)


def _sized(call: Call) -> Call:
    """Let a call have a request as large as what it carries: a long list, or a schema."""
    if call.name in _LARGE:
        return call._replace(bytes_max=MESSAGE_BYTES_MAX, items_max=limits.TOGETHER_MAX)
    if call.name in _SCHEMAS:
        return call._replace(bytes_max=4 * limits.SCHEMA_BYTES_MAX)
    return call


CALLS: Final[dict[str, Call]] = {call.name: _sized(call) for call in _CALLS}

STREAMS: Final[dict[str, Need]] = {
    "put": _WRITE,
    "read": _READ,
    "range": _READ,
    "follow": _READ,
    "fetch": _READ,
    "scan": _READ,
    "record": _READ,
    "latest": _READ,
    "as_of": _READ,
}
"""What streams need, by the name of their ticket; `put` is the writing one."""


def checked(call: Call, request: Any) -> dict[str, Any]:
    """Return a request whose parameters are those of its call, or raise `ProtocolError`."""
    if not isinstance(request, dict):
        raise ProtocolError("a request is a map of parameters", call=call.name)
    unknown = sorted(map(str, request.keys() - call.parameters.keys()))
    if unknown:
        raise ProtocolError("there is no such parameter", call=call.name, parameter=unknown[0])
    for name, kinds in call.parameters.items():
        value = request.get(name)
        missing = name not in request and type(None) not in kinds
        if missing or not _fits(value, kinds):
            raise ProtocolError(
                "a parameter is missing or of another type",
                call=call.name,
                parameter=name,
                expected=" or ".join(kind.__name__ for kind in kinds),
                got=type(value).__name__,
            )
    return request


def _fits(value: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in kinds or object in kinds
    return isinstance(value, kinds)
