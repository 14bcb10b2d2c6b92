"""The state machine: commands in, a result and a list of changes out.

Deciding and changing are two steps. `decide` reads the state and gives what is to become of it as a
list of changes, each of which puts a value into a dictionary or takes one out. It changes nothing,
so a command that is refused leaves nothing behind. Carrying changes out twice gives the same state
as once: an exception that strikes in the middle (Ctrl-C) costs nothing but doing it again.

Nothing here asks for the time, draws a number or looks at a disk: the same commands give the same
state, on any machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lakebed.state import commands
from lakebed.state.decide_access import put_token, revoke_token, set_denial, set_grant, set_rule
from lakebed.state.decide_gathered import write_many
from lakebed.state.decide_groups import (
    change_group,
    commit_offsets,
    delete_group,
)
from lakebed.state.decide_producers import expire_producers, forget_producer, register_producer
from lakebed.state.decide_segments import flush, place_segments, replace_segments
from lakebed.state.decide_topics import (
    add_partitions,
    alter_topic,
    create_topic,
    delete_topic,
    purge_topic,
    trim,
)
from lakebed.state.decide_transactions import (
    abort_transaction,
    begin_transaction,
    commit_together,
    commit_transaction,
    transaction_write,
)
from lakebed.state.decide_writes import producer_write, write
from lakebed.state.decision import (
    GONE,
    Change,
    Decision,
)
from lakebed.state.image import State


def decide(state: State, index: int, command: commands.Command) -> Decision:
    """Decide on a command, or raise `RejectedError`. The state is only read."""
    placer = _PLACERS.get(type(command))
    if placer is not None:
        return placer(state, index, command)
    return _DECIDERS[type(command)](state, command)


def carry_out(changes: list[Change]) -> None:
    """Make changes; a second time does no harm."""
    for target, key, value in changes:
        if value is GONE:
            target.pop(key, None)
        else:
            target[key] = value


_PLACERS: Final[dict[type, Callable[[State, int, Any], Decision]]] = {
    commands.Write: write,
    commands.ProducerWrite: producer_write,
    commands.WriteMany: write_many,
    commands.TransactionWrite: transaction_write,
    commands.CommitTransaction: commit_transaction,
    commands.CommitTogether: commit_together,
}
"""Those that put batches somewhere, and so must know in which entry they are."""

_DECIDERS: Final[dict[type, Callable[[State, Any], Decision]]] = {
    commands.CreateTopic: create_topic,
    commands.AlterTopic: alter_topic,
    commands.AddPartitions: add_partitions,
    commands.DeleteTopic: delete_topic,
    commands.PurgeTopic: purge_topic,
    commands.RegisterProducer: register_producer,
    commands.BeginTransaction: begin_transaction,
    commands.AbortTransaction: abort_transaction,
    commands.ExpireProducers: expire_producers,
    commands.ForgetProducer: forget_producer,
    commands.CommitOffsets: commit_offsets,
    commands.ChangeGroup: change_group,
    commands.DeleteGroup: delete_group,
    commands.Flush: flush,
    commands.ReplaceSegments: replace_segments,
    commands.Trim: trim,
    commands.PlaceSegments: place_segments,
    commands.PutToken: put_token,
    commands.RevokeToken: revoke_token,
    commands.SetRule: set_rule,
    commands.SetGrant: set_grant,
    commands.SetDenial: set_denial,
}
