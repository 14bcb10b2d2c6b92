"""Creates a virtual environment with Lakebed and its tools: what requirements/ lists, checked.

    python3.13 tools/environment.py .venv dev bench

An environment of another Python version is replaced; one of the same version is brought up to date.
Every file is compared with the hashes of `requirements/EXTRA.txt`, which `make constraints` writes.
pip and setuptools come from there too: those that Python bundles are years old.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST = (3, 11)


def create(python: str, venv: Path, extras: tuple[str, ...] = ("dev",)) -> Path:
    """Create or update an environment; return its interpreter.

    Raises `subprocess.CalledProcessError` if a package cannot be installed.
    """
    program = venv / "bin" / "python"
    if version_of(str(program)) != version_of(python):
        subprocess.run([python, "-m", "venv", "--clear", str(venv)], check=True)
    pip = [str(program), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    pip += ["--no-compile"]  # what is used is compiled when it is first imported
    pip += ["--no-deps"]  # the files list everything; what they lack must not come unchecked
    locked = [*pip, "--require-hashes", "--no-build-isolation", "--requirement"]
    files = [ROOT / "requirements" / f"{extra}.txt" for extra in extras]
    with tempfile.TemporaryDirectory() as folder:
        first, spark = Path(folder) / "first.txt", Path(folder) / "spark.txt"
        first.write_text(entries_of(files[0], "pip", "setuptools"), encoding="utf8")
        subprocess.run([*locked, str(first)], check=True)
        # Spark is built from source, which takes as long as all else: both at the same time.
        spark.write_text(entries_of(files[0], "pyspark"), encoding="utf8")
        rest = Path(folder) / "rest.txt"
        rest.write_text(entries_of(files[0], "pyspark", others=True), encoding="utf8")
        with subprocess.Popen([*locked, str(spark)]) as beside:
            subprocess.run([*locked, str(rest)], check=True)
        if beside.returncode:
            raise subprocess.CalledProcessError(beside.returncode, beside.args)
    for file in files[1:]:
        subprocess.run([*locked, str(file)], check=True)
    subprocess.run([*pip, "--no-build-isolation", "--editable", str(ROOT)], check=True)
    return program


def entries_of(path: Path, *names: str, others: bool = False) -> str:
    """Return the entries of some packages, or of all others, in a file of requirements."""
    text = path.read_text(encoding="utf8").replace("\\\n", "")
    lines = [line for line in text.splitlines() if (line.partition("==")[0] in names) != others]
    return "".join(f"{line}\n" for line in lines)


def version_of(python: str) -> tuple[int, int] | None:
    """Return the version of an interpreter, or None if it does not run.

    A shim of pyenv exists for every version that is installed, and fails for those not selected.
    """
    code = "import sys; print(*sys.version_info[:2])"
    try:
        done = subprocess.run(
            [python, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60
        )
        major, minor = map(int, done.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return major, minor


def main() -> None:
    """Create the environment that the arguments name, with the interpreter that runs this."""
    if sys.version_info < OLDEST:
        sys.exit("lakebed needs Python 3.11 or newer; run make with PYTHON=/path/to/python3.11")
    venv, *extras = sys.argv[1:]
    create(base_interpreter(), Path(venv), tuple(extras))


def base_interpreter() -> str:
    """Return the interpreter outside any environment: one cannot replace itself."""
    return str(getattr(sys, "_base_executable", sys.executable))


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
