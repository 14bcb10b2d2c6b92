"""The Java that Spark needs: found and new enough, or an error that says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lakebed.spark
from lakebed.errors import JavaMissingError
from lakebed.spark.java import check_java


def java(folder: Path, says: str, code: int = 0) -> Path:
    """Make a program that says which version of Java it is."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit(print({says!r}) or {code})\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose programs are the only ones there are."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path


def test_no_java_is_told_before_spark_is_started(path: Path) -> None:
    with pytest.raises(JavaMissingError, match="was not found") as caught:
        check_java()
    assert "install" in caught.value.advice


@pytest.mark.parametrize(
    ("says", "version"),
    [('openjdk version "17.0.15" 2025-04-15', 17), ('java version "21" 2023-09-19', 21)],
)
def test_a_java_that_is_new_enough_is_taken(path: Path, says: str, version: int) -> None:
    java(path, says)
    assert check_java() == version


@pytest.mark.parametrize(
    ("says", "said"),
    [
        ('java version "1.8.0_402"', "too old for Spark .*version=8"),
        ('openjdk version "11.0.2" 2019-01-15', "version=11 needed=17"),
        ("what?", "does not say which version"),
    ],
)
def test_a_java_that_will_not_do_is_refused(path: Path, says: str, said: str) -> None:
    java(path, says)
    with pytest.raises(JavaMissingError, match=said):
        check_java()


def test_java_home_goes_before_the_path(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java(path, 'java version "1.8.0_402"')
    java(path / "home", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(path / "home"))
    assert check_java() == 17
    monkeypatch.setenv("JAVA_HOME", str(path / "nowhere"))
    with pytest.raises(JavaMissingError, match="JAVA_HOME does not contain Java"):
        check_java()


def test_a_java_that_cannot_be_started_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java(path / "home", "x").chmod(0o644)
    monkeypatch.setenv("JAVA_HOME", str(path / "home"))
    with pytest.raises(JavaMissingError, match="cannot be started"):
        check_java()


def test_a_session_without_java_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    with pytest.raises(JavaMissingError):
        lakebed.spark.session(master="local[2]")


ENDING = """
import subprocess, sys
from lakebed.spark.java import end_children
wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
children = [
    subprocess.Popen([*wait, name], stdin=subprocess.PIPE)
    for name in ("org.apache.spark.Main", "./bin/spark-submit", "/home/sparky/bin/python")
]
end_children()
print(children[0].wait(timeout=300), children[1].wait(timeout=300), children[2].poll())
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_only_programs_of_spark_are_ended_with_the_command_that_started_them() -> None:
    """In a process of its own: this one has a Spark that other tests use."""
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, check=True)
    assert done.stdout.split() == [b"-9", b"-9", b"None"]
