"""Terms that the rows of operations share: permissions, parameters, and what a request is about."""

from __future__ import annotations

from typing import Any, Final

from lakebed.operations.description import Need, Parameter
from lakebed.operations.requests import about, as_list, topic_name, topic_name_or_none
from lakebed.state.permissions import Action
from lakebed.state.values import GroupOffset, NonNegative
from lakebed.types import GroupName, TableName

ANY: Final = Need(Action.READ, "log")
READ: Final = Need(Action.READ, "topic")
WRITE: Final = Need(Action.WRITE, "topic")
MANAGE: Final = Need(Action.MANAGE, "topic")
GROUP: Final = Need(Action.GROUP, "group")
ADMIN: Final = Need(Action.ADMIN, "log")

_Plain = str | int | float | None
VALUE: Final = Parameter(Any)
OPTIONAL: Final = Parameter(Any | None)
TEXT: Final = Parameter(str)
OPTIONAL_TEXT: Final = Parameter(str | None)
INT: Final = Parameter(int)
FLOAT: Final = Parameter(int | float)
LIST: Final = Parameter(tuple[Any, ...], as_list)
OFFSETS: Final = Parameter(tuple[tuple[_Plain, _Plain, _Plain], ...], as_list)
"""[topic, partition, offset] of each partition, which the log itself checks."""
GROUP_OFFSETS: Final = Parameter(tuple[GroupOffset, ...], as_list)
FLAG: Final = Parameter(bool)
TOPIC: Final = Parameter(str, topic_name)
ALL_TOPICS: Final = Parameter(str | None, topic_name_or_none)
GROUP_NAME: Final = Parameter(str, GroupName)
TABLE_NAME: Final = Parameter(str, TableName)

NEW_TOPIC: Final = {"name": TEXT, "partitions": OPTIONAL, "schema": OPTIONAL, "config": OPTIONAL}
ONE_TOPIC: Final = {"name": TOPIC}
ONE_GROUP: Final = {"name": GROUP_NAME}
ONE_TABLE: Final = {"name": TABLE_NAME}
IDENTITY: Final = {"producer": Parameter(NonNegative), "epoch": Parameter(NonNegative)}
RULE: Final = {"role": VALUE, "action": VALUE, "pattern": VALUE, "force": FLAG}
ROLE: Final = {"principal": VALUE, "role": VALUE, "force": FLAG}
SEGMENT: Final = {"topic": TOPIC, "partition": VALUE}

NAME, IN_TOPIC, IN_GROUP = about("name"), about("topic"), about("group")
ABOUT_RULE, ABOUT_ROLE = about("role", "action", "pattern"), about("principal", "role")

TOPIC_PATH: Final = "/v1/topics/{topic}"
GROUP_PATH: Final = "/v1/groups/{group}"
