"""What a job that writes has set out to do, kept in the log: running it again does the same.

A plan is a JSON document under the job's name in the topic `lakebed.jobs`. It is written once, by a
commit of that name's first number, so of two that begin at a time one plan holds for both. Its
chunks are numbered, and each is written under the job's name and its number, once.
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
            found = self._log.table(TOPIC).get(name)
        except TopicNotFoundError:
            return None
        if found is None:
            return None
        plan: dict[str, Any] = json.loads(found)
        return plan

    def settle(self, name: str, wanted: dict[str, Any], *, version: int = 0) -> dict[str, Any]:
        """Write a plan's version, unless somebody has written it before; return the one that holds.

        Versions follow each other: a plan may grow, and what it had stays.
        """
        log = self._log
        log.get_or_create_topic(TOPIC, 1, config=_CONFIG)
        transaction = log.transaction()
        transaction.append(TOPIC, json.dumps(wanted, sort_keys=True).encode(), key=name)
        log.commit_together(
            [transaction.prepare()], name=f"{name}.plan", number=version, keep_ms=_KEEP_MS
        )
        found = self.get(name)
        if found is None:
            raise InvalidArgumentError(
                "the plan of the job is missing: give the job another name", name=name, topic=TOPIC
            )
        return found


def job_name(job: str, name: str | None, arguments: dict[str, Any]) -> str:
    """Return a job's name: the one given, or one that follows from what it is to do."""
    if name is not None:
        return str(ProducerName(name))
    said = json.dumps(arguments, sort_keys=True, default=str).encode()
    return f"{job}-{hashlib.sha256(said).hexdigest()[:16]}"


def check_same(name: str, plan: dict[str, Any], arguments: dict[str, Any]) -> None:
    """Refuse a name that belongs to a job which does something else."""
    planned = plan.get("arguments", {})
    for each in sorted({*planned, *arguments}):
        if planned.get(each) != arguments.get(each):
            raise InvalidArgumentError(
                "the name belongs to a job that does something else: choose another name",
                name=name,
                argument=each,
                planned=planned.get(each),
                got=arguments.get(each),
            )
