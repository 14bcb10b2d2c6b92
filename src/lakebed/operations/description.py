"""What the description of an operation consists of."""

from __future__ import annotations

import enum
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import Any, Final, NamedTuple, NotRequired, TypedDict

from lakebed import limits
from lakebed.state.permissions import Action

MESSAGE_BYTES_MAX: Final = 16 * limits.MIB
"""The largest request, reply or ticket; records travel as Arrow batches and are not in it."""
_BYTES_MAX: Final = 256 * limits.KIB
_ITEMS_MAX: Final = 1_000


class Need(NamedTuple):
    """The permission an operation needs: an action, on topics, on groups, or on the log."""

    action: Action
    on: str
    """`topic`, `group` or `log`."""


class Owner(enum.Enum):
    """The object that has the operation as a method; the value begins its name on the wire."""

    LOG = "log"
    LAKE = "lake"
    DERIVED = "derived"
    ACCESS = "access"
    TABLE = "table"
    GROUPS = "groups"
    """The membership of consumers, which `Consumer` looks after."""
    CLIENT = "client"
    """No method: what the client library calls to write, to wait and to connect."""


class Pace(enum.Enum):
    """How long an operation takes."""

    QUICK = "quick"
    REMOTE = "remote"
    """It asks a catalog or a store: asyncio runs it in the threads for slow calls."""
    SLOW = "slow"
    """Minutes, for large data: asyncio as above, and a client sets no deadline."""


class Size(enum.Enum):
    """How large a request may be: bytes, and items of a list or map."""

    SMALL = (_BYTES_MAX, _ITEMS_MAX)
    SCHEMA = (4 * limits.SCHEMA_BYTES_MAX, _ITEMS_MAX)
    LONG_LISTS = (MESSAGE_BYTES_MAX, limits.TOGETHER_MAX)


class Parameter(NamedTuple):
    """A parameter of a request."""

    kind: Any
    """The type that is accepted, as msgspec reads types; one that may be None may be left out.

    For `Any`, the log itself checks the value.
    """
    send: Callable[[Any], Any] | None = None
    """Makes the value that a client sends of the argument of the method."""

    @property
    def optional(self) -> bool:
        """Whether a request may leave it out."""
        return NoneType in typing.get_args(self.kind)


class Route(NamedTuple):
    """How an operation is called over HTTP."""

    method: str
    path: str
    status: int = 200
    answer: str | None = None
    """The model of the answer in `serve/gateway_models.py`; None for an empty answer."""
    body: str | None = None
    """The model of the request's body."""
    errors: tuple[int, ...] = ()
    """Statuses beside those that every call of the log may have."""


Names = Callable[[Any], Sequence[str]]
Request = Mapping[str, Parameter]


def _no_names(_: Any) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Operation:
    """One operation: its request, its result, who may call it, and how it is called."""

    owner: Owner
    name: str
    """The name of the call on the wire."""
    need: Need
    request: Request
    result: Any
    """The type that the method returns."""
    method: str = ""
    """The method of its owner, if it has another name than the call."""
    names: Names = _no_names
    """Returns the topics or groups of a request: what the caller needs permission for."""
    safe: bool = True
    """Whether a client may repeat a call whose outcome it does not know."""
    pace: Pace = Pace.QUICK
    audited: bool | None = None
    """Whether calls are recorded; by default those that manage topics or administer the log."""
    open: bool = False
    """Whether every known caller may call it; the reply contains what the caller may see only."""
    somewhere: tuple[Action, ...] = ()
    """For a call that names nothing yet: the caller may do one of these on some name."""
    topics: Callable[[Any, Any], Sequence[str]] | None = None
    """Returns the topics that a request for a group names, given the log: they must be readable."""
    filter_reply: Callable[[Any, Callable[[str], bool]], Any] | None = None
    """Removes what is about topics that the caller may not read."""
    lists_names: bool = False
    """Whether the reply is a list of names, of which the caller gets those that it may use."""
    size: Size = Size.SMALL
    on_internal_topics: bool = False
    """Whether administrators may change a topic of the log itself with it, such as the audit."""
    composed: bool = False
    """Whether the client's method does more than this call: it is written by hand, and shared by
    the logs of this process and served ones."""
    route: Route | None = None

    def __post_init__(self) -> None:
        """Fill in the name of the method."""
        if not self.method:
            method = self.name.removeprefix(f"{self.owner.value}_")
            object.__setattr__(self, "method", method)

    @cached_property
    def request_type(self) -> Any:
        """The type of a request: a dictionary of its parameters."""
        fields = {
            name: NotRequired[parameter.kind] if parameter.optional else parameter.kind
            for name, parameter in self.request.items()
        }
        return TypedDict(self.name, fields)  # type: ignore[operator]  # not a literal

    @cached_property
    def is_audited(self) -> bool:
        """Whether calls are recorded, whether they succeed or fail."""
        if self.audited is not None:
            return self.audited
        return self.need.action in (Action.MANAGE, Action.ADMIN)

    @property
    def bytes_max(self) -> int:
        """The largest request."""
        return self.size.value[0]

    @property
    def items_max(self) -> int:
        """The most items of a list or map in a request."""
        return self.size.value[1]


@dataclass(frozen=True)
class Stream:
    """A call whose records travel as Arrow batches: a ticket, or a put stream."""

    name: str
    need: Need
    route: Route | None = None
    owner: Owner = Owner.CLIENT
    pace: Pace = Pace.QUICK

    @property
    def method(self) -> str:
        """The method of its owner."""
        return self.name


@dataclass(frozen=True)
class Endpoint:
    """An HTTP route of the server that is no operation of the log."""

    name: str
    need: Need | None
    """None: it needs no token either."""
    route: Route
