"""Checkpoints of a pipeline: what a reset leaves that is cut short is not gone on from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lakebed
from lakebed.errors import PipelineChangedError
from lakebed.host.store import ObjectStore
from lakebed.spark import Pipeline
from lakebed.spark.pipeline.checkpoint_folder import FLOW, STATUS, CheckpointFolder
from lakebed.spark.pipeline.plan import Planner
from lakebed.spark.pipeline.run import PipelineRun
from lakebed.spark.serving import url_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARKS = ["metadata", "offsets/0", "offsets/1", "commits/0", "state/0/0/1.delta"]


def checkpoint(place: CheckpointFolder) -> None:
    """Make what a flow has after two batches."""
    place.make()
    for name in SPARKS:
        path = Path(place.of("paid")) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("v1")
    place.write("paid", FLOW, {"writer": "old"})
    place.write("paid", STATUS, {"rows": 5})


@pytest.mark.parametrize("removed", range(len(SPARKS) + 2))
def test_what_an_interrupted_reset_leaves_belongs_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, removed: int
) -> None:
    place = CheckpointFolder(str(tmp_path / "state"))
    checkpoint(place)
    real = ObjectStore.remove
    left = iter(range(removed))

    def remove(store: ObjectStore, name: str) -> Any:
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(store, name)

    monkeypatch.setattr(ObjectStore, "remove", remove)
    with pytest.raises(KeyboardInterrupt):
        place.remove("paid")
    monkeypatch.undo()
    assert place.holds("paid")
    assert (place.read("paid", FLOW) is None) == (removed > 0)
    assert place.remove("paid") == len(SPARKS) + 2 - removed
    assert not place.holds("paid")
    assert not place.has_begun("paid")


def test_a_flow_has_a_new_writer_until_it_has_begun_and_is_refused_after_half_a_reset(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with lakebed.open("data") as log:
        log.create_topic("orders")
        made = Pipeline("shop", log=log, checkpoint="state").source(
            "orders", topic="orders", decode="raw"
        )
        spec = made.sink("paid", "orders", topic="paid", encode="raw").spec
        place = CheckpointFolder(spec.checkpoint_location)
        run = PipelineRun(spec, spark, log, url_of(log))
        planner = Planner(spec, spark, url_of(log))

        def writer() -> Any:
            _, _, document = run._prepare(planner, spec.flows()[0])
            place.make()
            place.write("paid", FLOW, document)
            return document["writer"]

        first = writer()
        second = writer()
        assert first != second
        batch = Path(place.of("paid")) / "offsets" / "0"
        batch.parent.mkdir()
        batch.write_text("v1")
        assert writer() == second
        (Path(place.of("paid")) / FLOW).unlink()
        batch.rename(batch.parent.parent / "metadata")
        with pytest.raises(PipelineChangedError, match="reset was cut short"):
            writer()
