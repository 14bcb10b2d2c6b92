"""One `lakebed serve` for all tests of Kafka clients that need nothing special of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serve.support import ServerProcess


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("kafka") / "log"
    with ServerProcess(folder, kafka_port=0) as process:
        yield process


@pytest.fixture(scope="session")
def broker(server: ServerProcess) -> str:
    return f"127.0.0.1:{server.kafka_port}"
