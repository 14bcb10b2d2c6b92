"""InitProducerId: ids for idempotent producers."""

from __future__ import annotations

from typing import Final

from lakebed.errors import LakebedError
from lakebed.kafka import codes
from lakebed.kafka.services import Answer, Call
from lakebed.serve.calls import producer_name
from lakebed.serve.room import StateQuota
from lakebed.state.commands import RegisterProducer
from lakebed.state.permissions import Action

_NO_PRODUCER: Final = {"producer_id": -1, "producer_epoch": -1}


async def init_producer(call: Call) -> Answer:
    """Answer InitProducerId: a new producer without a name."""
    if call.body.transactional_id is not None:
        return {"error_code": codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, **_NO_PRODUCER}
    guard = call.services.guard
    try:
        guard.check_somewhere(call.principal, "register_producer", Action.WRITE)
        producer, epoch = await call.run(_register, call)
    except LakebedError as error:
        code = codes.code_of(error)
        if code == codes.TOPIC_AUTHORIZATION_FAILED:
            code = codes.CLUSTER_AUTHORIZATION_FAILED
        return {"error_code": code, **_NO_PRODUCER}
    return {"producer_id": producer, "producer_epoch": epoch}


def _register(call: Call) -> tuple[int, int]:
    administrator = call.services.guard.administers(call.principal)
    name = producer_name(call.principal.name, None)
    StateQuota(call.log, call.principal.name, administrator=administrator).check_producer(
        name, transactional=False
    )
    time_us = call.log.parts.core.clock.time_us()
    identity: tuple[int, int] = call.log._submit(RegisterProducer(name, time_us))
    return identity
