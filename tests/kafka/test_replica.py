"""Kafka clients fetch from a read replica, and are refused what only the owner does."""

from __future__ import annotations

from pathlib import Path

import lakebed
from lakebed import ServeConfig
from lakebed.engine.log import EmbeddedLog
from lakebed.errors import NotOwnerError
from lakebed.kafka.codes import NOT_LEADER, code_of
from lakebed.kafka.server import start_kafka
from lakebed.serve.server import Server
from tests.engine.shipped import Machines
from tests.kafka.clients import Confluent, Sent


def test_a_consumer_fetches_from_a_replica(tmp_path: Path) -> None:
    machines = Machines(tmp_path)
    with machines.open("a") as owner:
        owner.create_topic("orders", 1)
        owner.append_batch("orders", [b"%d" % number for number in range(10)])
        replica = lakebed.open(f"file://{machines.store}", machines.config(), replica=True)
        assert isinstance(replica, EmbeddedLog)
        config = ServeConfig(port=0, http_port=-1, kafka_port=0)
        with Server(replica, config, protocols=[start_kafka]) as server:
            broker = f"127.0.0.1:{server.ports[0].port}"
            found = Confluent().consume(broker, "orders", 10)
            assert found == [Sent(b"%d" % number) for number in range(10)]
    assert code_of(NotOwnerError("another process owns the log")) == NOT_LEADER
