"""The README's pipeline on a cluster of real processes, with its lake in an object store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakebed.config import LakeConfig
from tests.foreign.readers import duckdb_connection
from tests.proof.test_pipeline_kills import PIPELINE, _check, _order, spark_environment
from tests.s3 import KEY, REGION, SECRET, Server, options
from tests.serve.support import ServerProcess
from tests.spark.cluster import cluster

ORDERS = 2_000


@pytest.mark.prove
@pytest.mark.timeout(2400)
def test_a_pipeline_runs_on_a_cluster_with_nothing_changed_but_the_master(
    tmp_path: Path, s3: Server
) -> None:
    """Sealed files come from the store, the hot tail from the server; a worker dies under way."""
    store = f"s3://{s3.bucket()}/lake"
    inline = ", ".join(f"'{name}' = '{value}'" for name, value in options(s3.url).items())
    environment = {
        "LAKEBED_LAKE_STORE": store,
        "LAKEBED_LAKE_STORE_OPTIONS": f"{{ {inline} }}",
    }
    LakeConfig(store=store, store_options=options(s3.url))  # which says what is wrong with it
    (tmp_path / "orders.toml").write_text(PIPELINE)
    lake = "\n".join(f'"{name}" = "{value}"' for name, value in options(s3.url).items())
    toml = f'[lake]\nstore = "{store}"\n[lake.store_options]\n{lake}\n'
    with (
        ServerProcess(tmp_path / "data", toml=toml) as server,
        server.open() as log,
        cluster(tmp_path, environment=environment) as spark,
    ):
        log.create_topic("orders", partitions=2)
        written = list(range(ORDERS))
        half = ORDERS // 2
        log.append_batch("orders", [{"value": _order(each)} for each in written[:half]])
        log.checkpoint()
        log.lake.sync("orders")
        log.append_batch("orders", [{"value": _order(each)} for each in written[half:]])
        _run(tmp_path, spark.master, environment)
        spark.kill_worker()
        more = list(range(ORDERS, ORDERS + 100))
        log.append_batch("orders", [{"value": _order(each)} for each in more])
        _run(tmp_path, spark.master, environment)
        secret = {
            "KEY_ID": KEY,
            "SECRET": SECRET,
            "REGION": REGION,
            "ENDPOINT": s3.url.removeprefix("http://"),
            "URL_STYLE": "path",
            "USE_SSL": "false",
        }
        _check(log, written + more, connect=lambda: duckdb_connection(s3=secret))
        assert any("orders_by_customer" in key for key in s3.keys(store.split("/")[2]))


def _run(folder: Path, master: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "lakebed.cli", "pipeline", "run", "orders.toml"),
            *("--available-now", "--master", master),
        ],
        cwd=folder,
        env={**spark_environment(folder), **environment, "SPARK_LOCAL_IP": "127.0.0.1"},
        timeout=900,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:] + os.linesep + done.stdout[-1000:]
