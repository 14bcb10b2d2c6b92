"""Plans of jobs that write, kept in the log: running a job again does the same work.

A plan is a JSON document under the job's name in the topic `lakebed.jobs`. It is written once, by a
commit with that name's first number, so two runs that begin at the same time use one plan. Chunks
are numbered, and each is written exactly once, under the job's name and its number.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from lakebed import limits
from lakebed.errors import InvalidArgumentError, TopicNotFoundError
from lakebed.types import ProducerName

if TYPE_CHECKING:
    from lakebed.api.log import Log

TOPIC: Final = "lakebed.jobs"
"""The topic of the plans: keys are names of jobs."""

_CONFIG: Final = {"cleanup": "compact", "record_bytes_max": 64 * limits.MIB}
_KEEP_MS: Final = 10 * 366 * 86_400_000


class Plans:
    """Plans of jobs in one log."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def get(self, name: str) -> dict[str, Any] | None:
        """Return the plan of a job; None if there is none."""
        try:
            document = self._log.table(TOPIC).get(name)
        except TopicNotFoundError:
            return None
        if document is None:
            return None
        plan: dict[str, Any] = json.loads(document)
        return plan

    def settle(self, name: str, wanted: dict[str, Any], *, version: int = 0) -> dict[str, Any]:
        """Write a version of a plan unless it exists already; return the one in force.

        A plan may only grow: a version keeps the chunks of the one before.
        """
        log = self._log
        log.get_or_create_topic(TOPIC, 1, config=_CONFIG)
        transaction = log.transaction()
        transaction.append(TOPIC, json.dumps(wanted, sort_keys=True).encode(), key=name)
        log.commit_together(
            [transaction.prepare()], name=f"{name}.plan", number=version, keep_ms=_KEEP_MS
        )
        plan = self.get(name)
        if plan is None:
            raise InvalidArgumentError(
                "the plan of the job is missing: give the job another name", name=name, topic=TOPIC
            )
        return plan


def job_name(job: str, name: str | None, arguments: dict[str, Any]) -> str:
    """Return a job's name: `name`, or one derived from its arguments."""
    if name is not None:
        return str(ProducerName(name))
    said = json.dumps(arguments, sort_keys=True, default=str).encode()
    return f"{job}-{hashlib.sha256(said).hexdigest()[:16]}"


def check_same(name: str, plan: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Raise if the name belongs to a job with other arguments."""
    planned = plan.get("arguments", {})
    for argument in sorted({*planned, *arguments}):
        if planned.get(argument) != arguments.get(argument):
            raise InvalidArgumentError(
                "the name belongs to a job that does something else: choose another name",
                name=name,
                argument=argument,
                planned=planned.get(argument),
                got=arguments.get(argument),
            )
