"""One run of a pipeline at a time: a second one is refused, and a dead one holds nothing."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lakebed.errors import NotALogError, PipelineRunningError
from lakebed.spark import Pipeline
from lakebed.spark.pipeline.checkpoint_folder import STATUS, CheckpointFolder
from lakebed.spark.pipeline.hold import LOCK, hold
from lakebed.spark.pipeline.spec import PipelineSpec

HOLD = """
import sys
from lakebed.spark import Pipeline
from lakebed.spark.pipeline.hold import hold
made = Pipeline("shop", log="data", checkpoint=sys.argv[1]).source("o", topic="o", decode="raw")
with hold(made.sink("copy", "o", topic="copy", encode="raw").spec):
    print("held", flush=True)
    sys.stdin.read()
"""


def spec_of(checkpoint: str) -> PipelineSpec:
    made = Pipeline("shop", log="data", checkpoint=checkpoint)
    made.source("o", topic="o", decode="raw").sink("copy", "o", topic="copy", encode="raw")
    return made.spec


@pytest.mark.parametrize("remote", [False, True], ids=["a folder", "an object store"])
def test_the_hold_of_a_killed_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, remote: bool
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr("lakebed.spark.pipeline.hold._warn_of_others", lambda *_: None)
    checkpoint = "s3://bucket/state" if remote else str(tmp_path / "state")
    spec = spec_of(checkpoint)
    code = HOLD
    if remote:  # there is no such store to ask, in that process as in this one
        code = code.replace("with", "sys.modules[hold.__module__]._warn_of_others = print\nwith")
    with subprocess.Popen(
        [sys.executable, "-c", code, checkpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        while b"held" not in other.stdout.readline():
            assert other.poll() is None
        with pytest.raises(PipelineRunningError) as caught, hold(spec):
            pass
        other.send_signal(signal.SIGKILL)
    facts = caught.value.facts
    assert (facts["pipeline"], facts["pid"]) == ("shop", other.pid)
    assert (facts["host"], facts["checkpoint"]) == (socket.gethostname(), checkpoint)
    assert caught.value.retriable
    with hold(spec):
        pass


def test_two_threads_or_names_of_one_process_are_two_runs(tmp_path: Path) -> None:
    spec = spec_of(str(tmp_path / "state"))
    with hold(spec), pytest.raises(PipelineRunningError, match=f"pid={os.getpid()}"), hold(spec):
        pass
    with hold(spec), hold(spec_of(str(tmp_path / "elsewhere"))):
        assert (tmp_path / "state" / LOCK).exists()


def test_a_holder_that_has_not_said_who_it_is_holds_all_the_same(tmp_path: Path) -> None:
    spec = spec_of(str(tmp_path / "state"))
    with hold(spec):
        (tmp_path / "state" / LOCK).write_text("")
        with pytest.raises(PipelineRunningError, match="owner=unknown"), hold(spec):
            pass


def test_a_place_that_cannot_be_locked_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / LOCK).mkdir()
    spec = spec_of(str(tmp_path / "state"))
    with pytest.raises(NotALogError, match="locking the checkpoints"), hold(spec):
        pass


def test_of_a_run_on_another_machine_there_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where locks are not seen: the last word of the other run is all there is."""
    from lakebed.spark.pipeline.hold import _warn_of_others

    spec = spec_of(str(tmp_path / "state"))
    place = CheckpointFolder(spec.checkpoint_location)
    place.make()
    with caplog.at_level(logging.WARNING, "lakebed.spark"):
        place.write("copy", STATUS, {"flow": "copy", "state": "stopped", "owner": "far:1"})
        _warn_of_others(spec, place)
        place.write("copy", STATUS, {"flow": "copy", "state": "running", "owner": "far:1"})
        _warn_of_others(spec, place)
    assert [each.args for each in caplog.records] == [("copy", "far:1")]
