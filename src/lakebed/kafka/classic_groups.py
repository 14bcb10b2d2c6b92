"""The classic consumer groups of a server: requests of clients, timers, and what is committed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from lakebed.errors import LakebedError
from lakebed.kafka import codes
from lakebed.kafka.classic import Answers, ClassicGroup, GroupState, Join
from lakebed.kafka.names import internal_name, kafka_name
from lakebed.kafka.services import Answer, Call
from lakebed.operations.terms import GROUP

if TYPE_CHECKING:
    from lakebed.kafka.services import Services

_SESSION_MS: Final = (100, 1_800_000)
_GROUPS_MAX: Final = 10_000


class ClassicGroups:
    """The groups that have members, or had some lately. To be used in the event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._loop = services.loop
        self._groups: dict[str, ClassicGroup] = {}
        self._timer: asyncio.TimerHandle | None = None

    def find(self, name: str) -> ClassicGroup | None:
        """Return a group that has members; None if it has none."""
        return self._groups.get(name)

    def names(self) -> list[str]:
        """Return the names of all groups that have members."""
        return list(self._groups)

    def close(self) -> None:
        """Stop: waiting members are answered that they must find the coordinator again."""
        if self._timer is not None:
            self._timer.cancel()
        answer = {"error_code": codes.COORDINATOR_NOT_AVAILABLE}
        for group in self._groups.values():
            for member in group.members.values():
                _settle([(token, answer) for token in (member.joining, member.syncing) if token])
        self._groups.clear()

    async def join(self, name: str, request: Join) -> Answer:
        """Handle JoinGroup of a client; return the answer."""
        group = self._groups.get(name)
        if group is None:
            if len(self._groups) >= _GROUPS_MAX:
                return {"error_code": codes.GROUP_MAX_SIZE_REACHED, "member_id": request.member}
            group = self._groups[name] = ClassicGroup(_new_id)
        return await self._wait(group, lambda now, token: group.join(now, token, request))

    async def sync(self, name: str, *arguments: Any) -> Answer:
        """Handle SyncGroup of a member; return the answer."""
        group = self._groups.get(name)
        if group is None:
            return {"error_code": codes.UNKNOWN_MEMBER_ID}
        return await self._wait(group, lambda now, token: group.sync(now, token, *arguments))

    def heartbeat(self, name: str, member: str, instance: str | None, generation: int) -> int:
        """Handle a heartbeat of a member; return the error code."""
        group = self._groups.get(name)
        if group is None:
            return codes.UNKNOWN_MEMBER_ID
        code = group.heartbeat(self._loop.time(), member, instance, generation)
        self._schedule()
        return code

    def leave(self, name: str, member: str, instance: str | None) -> int:
        """Remove a member."""
        group = self._groups.get(name)
        if group is None:
            return codes.UNKNOWN_MEMBER_ID
        code, answers = group.leave(self._loop.time(), member, instance)
        _settle(answers)
        self._schedule()
        return code

    def check_commit(self, name: str, member: str, instance: str | None, generation: int) -> int:
        """Return why a commit of offsets is refused; 0 if it is not."""
        group = self._groups.get(name)
        if group is None:
            return codes.NONE if generation < 0 else codes.UNKNOWN_MEMBER_ID
        code = group.check_commit(member, instance, generation)
        if not code and member in group.members:  # a commit is a sign of life
            group.heartbeat(self._loop.time(), member, instance, generation)
        return code

    async def _wait(
        self,
        group: ClassicGroup,
        act: Callable[[float, asyncio.Future[Answer]], Answers],
    ) -> Answer:
        future: asyncio.Future[Answer] = self._loop.create_future()
        _settle(act(self._loop.time(), future))
        self._schedule()
        try:
            return await future
        except asyncio.CancelledError:
            group.abandon(future)
            self._schedule()
            raise

    def _schedule(self) -> None:
        """Set the timer for what is due next, and forget groups without members."""
        unused = [name for name, group in self._groups.items() if group.is_unused]
        for name in unused:
            del self._groups[name]
        times = [due for group in self._groups.values() if (due := group.next_event()) is not None]
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if times:
            self._timer = self._loop.call_at(min(times), self._tick)

    def _tick(self) -> None:
        now = self._loop.time()
        for group in list(self._groups.values()):
            _settle(group.tick(now))
        self._schedule()


def _new_id(request: Join) -> str:
    return f"{request.instance or request.client or 'member'}-{uuid.uuid4()}"


def _settle(answers: Answers) -> None:
    for token, answer in answers:
        if isinstance(token, asyncio.Future) and not token.done():
            token.set_result(answer)


# Requests


def _may_use(call: Call, group: str) -> int:
    """Return why the caller may not use a group; 0 if it may."""
    if not group:
        return codes.INVALID_GROUP_ID
    try:
        call.check("groups_join", GROUP, [internal_name(group)])
    except LakebedError:
        return codes.GROUP_AUTHORIZATION_FAILED
    return codes.NONE


async def join_group(call: Call) -> Answer:
    """Answer JoinGroup."""
    body = call.body
    refused = _may_use(call, body.group_id)
    if not refused and not _SESSION_MS[0] <= body.session_timeout <= _SESSION_MS[1]:
        refused = codes.INVALID_SESSION_TIMEOUT
    if not refused and _has_native_members(call, body.group_id):
        refused = codes.INCONSISTENT_GROUP_PROTOCOL
    if refused:
        return {"error_code": refused, "member_id": body.member_id, "protocol_name": ""}
    rebalance_ms = getattr(body, "rebalance_timeout", -1)
    if rebalance_ms < 0:
        rebalance_ms = body.session_timeout
    request = Join(
        member=body.member_id,
        instance=getattr(body, "group_instance_id", None),
        client=call.request.client,
        host=f"/{call.peer}",
        session_seconds=body.session_timeout / 1000,
        rebalance_seconds=min(rebalance_ms, _SESSION_MS[1]) / 1000,
        protocol_type=body.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in body.protocols),
        needs_known_id=call.version >= 4,
    )
    answer = await call.services.groups.join(body.group_id, request)
    return answer if call.version >= 7 else _without_null_protocol(answer)


def _without_null_protocol(answer: Answer) -> Answer:
    """Return an answer for versions in which the name of the protocol must not be null."""
    return answer if answer.get("protocol_name") is not None else {**answer, "protocol_name": ""}


def _has_native_members(call: Call, group: str) -> bool:
    native = call.log.parts.core.state.groups.get(internal_name(group))
    return native is not None and bool(native.owners)


async def sync_group(call: Call) -> Answer:
    """Answer SyncGroup."""
    body = call.body
    refused = _may_use(call, body.group_id)
    if refused:
        return {"error_code": refused}
    return await call.services.groups.sync(
        body.group_id,
        body.member_id,
        getattr(body, "group_instance_id", None),
        body.generation_id,
        [(assignment.member_id, assignment.assignment) for assignment in body.assignments],
    )


def heartbeat(call: Call) -> Answer:
    """Answer Heartbeat."""
    body = call.body
    code = _may_use(call, body.group_id) or call.services.groups.heartbeat(
        body.group_id,
        body.member_id,
        getattr(body, "group_instance_id", None),
        body.generation_id,
    )
    return {"error_code": code}


def leave_group(call: Call) -> Answer:
    """Answer LeaveGroup."""
    body, groups = call.body, call.services.groups
    refused = _may_use(call, body.group_id)
    if refused:
        return {"error_code": refused}
    if call.version < 3:
        return {"error_code": groups.leave(body.group_id, body.member_id, None)}
    left = [
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "error_code": groups.leave(body.group_id, member.member_id, member.group_instance_id),
        }
        for member in body.members
    ]
    return {"members": left}


def describe_groups(call: Call) -> Answer:
    """Answer DescribeGroups."""
    return {"groups": [_describe(call, name) for name in call.body.groups]}


def _describe(call: Call, name: str) -> Mapping[str, Any]:
    refused = _may_use(call, name)
    if refused:
        return {"error_code": refused, "group_id": name}
    group = call.services.groups.find(name)
    if group is None:
        is_known = internal_name(name) in call.log.parts.core.state.groups
        if not is_known and call.version >= 6:
            return {
                "error_code": codes.GROUP_ID_NOT_FOUND,
                "group_id": name,
                "group_state": "Dead",
                "error_message": f"group {name} does not exist",
            }
        return {
            "group_id": name,
            "group_state": GroupState.EMPTY.value if is_known else "Dead",
            "protocol_type": "consumer" if is_known else "",
        }
    return {
        "group_id": name,
        "group_state": group.state.value,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol if group.state is GroupState.STABLE else "",
        "members": [
            {
                "member_id": member.id,
                "group_instance_id": member.instance,
                "client_id": member.client,
                "client_host": member.host,
                "member_metadata": member.metadata(group.protocol),
                "member_assignment": member.assignment,
            }
            for member in group.members.values()
        ],
    }


def list_groups(call: Call) -> Answer:
    """Answer ListGroups."""
    states = {name.lower() for name in getattr(call.body, "states_filter", ())}
    types = {name.lower() for name in getattr(call.body, "types_filter", ())}
    listed = []
    stored = {kafka_name(name) for name in list(call.log.parts.core.state.groups)}
    for name in sorted(stored | set(call.services.groups.names())):
        if not call.permits(GROUP, internal_name(name)):
            continue
        group = call.services.groups.find(name)
        state = GroupState.EMPTY.value if group is None else group.state.value
        if (states and state.lower() not in states) or (types and "classic" not in types):
            continue
        listed.append(
            {
                "group_id": name,
                "protocol_type": "consumer" if group is None else group.protocol_type,
                "group_state": state,
                "group_type": "classic",
            }
        )
    return {"groups": listed}
