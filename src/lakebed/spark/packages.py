"""The Python packages that not every installation has: there, or one sentence that says how to."""

from __future__ import annotations

from importlib.util import find_spec

from lakebed.errors import PackageMissingError


def check_packages(extra: str, *names: str) -> None:
    """Raise `PackageMissingError` if one of the modules that an extra brings is not installed."""
    missing = [name for name in names if find_spec(name) is None]
    if missing:
        raise PackageMissingError(
            f"this needs Python packages that are not installed: pip install 'lakebed[{extra}]'",
            missing=", ".join(missing),
        )
