"""Checks for the Python packages of an extra, which not every installation has."""

from __future__ import annotations

from importlib.util import find_spec

from lakebed.errors import PackageMissingError
from lakebed.version import __version__


def check_packages(extra: str, *names: str) -> None:
    """Raise `PackageMissingError` if one of the modules that an extra brings is not installed."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise PackageMissingError(
            f"Lakebed is installed without the extra '{extra}', which this needs; install it: "
            f"pip install '.[{extra}]' in a clone of the repository, or "
            f"pip install 'lakebed-{__version__}-py3-none-any.whl[{extra}]'",
            missing=", ".join(missing),
        )
