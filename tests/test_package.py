"""The wheel has everything, and works in an environment that has never seen the source folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from lakebed import __version__

ROOT = Path(__file__).parents[1]
SOURCES = ("pyproject.toml", "README.md", "LICENSE")
USE = """
import lakebed, pyspark_lakebed
with lakebed.open("data") as log:
    log.create_topic("orders")
    log.append("orders", b"2 coffees", key=b"table 7")
with lakebed.open("data") as log:
    print(log.read("orders")["value"].to_pylist())
print(lakebed.__file__)
"""


def run(*command: str | Path, folder: Path) -> str:
    """Run a program that knows nothing of this process's Python path; return its output."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, built offline from a copy: a build leaves files in the source folder."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in SOURCES:
        shutil.copy(ROOT / name, folder)
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--no-build-isolation")
    run(*pip, "--wheel-dir", folder / "dist", folder, folder=folder)
    return folder / "dist" / f"lakebed-{__version__}-py3-none-any.whl"


def test_the_wheel_has_every_file_of_the_source(wheel: Path) -> None:
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and not {"__pycache__", "lakebed.egg-info"} & set(path.parts)
    }
    assert expected >= {"lakebed/py.typed", "lakebed/spark/log4j2.properties"}
    assert expected >= {"lakebed/wal/DESIGN.md", "pyspark_lakebed/__init__.py"}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"lakebed-{__version__}.dist-info/METADATA").decode()
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert f"lakebed-{__version__}.dist-info/licenses/LICENSE" in names
    for extra in ("avro", "demo", "spark"):
        assert f"\nProvides-Extra: {extra}\n" in metadata


def test_an_installed_wheel_works_without_the_source(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index")
    run(*pip, wheel, folder=tmp_path)
    lend_dependencies(environment)
    assert run(environment / "bin" / "lakebed", "--version", folder=tmp_path) == (
        f"lakebed {__version__}\n"
    )
    records, file = run(python, "-c", USE, folder=tmp_path).splitlines()
    assert records == "[b'2 coffees']"
    assert Path(file).is_relative_to(environment)


def lend_dependencies(environment: Path) -> None:
    """Let an environment import the packages of this one, but not its editable Lakebed.

    A folder that is named in a .pth file is searched for modules; .pth files in it are not read.
    """
    (packages,) = environment.glob("lib/python*/site-packages")
    folders = [folder for folder in sys.path if folder.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(folders) + "\n")
