"""Writes what is installed in this environment as a CycloneDX document.

    .venv/bin/python -m tools.sbom sbom.json

Names, versions and licences come from the packages' own metadata; the hashes of their files are in
`requirements/`. The document is the same for the same environment: it has no time and no serial
number.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

PROJECT = "lakebed"


def normal(name: str) -> str:
    """Return a project's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements_of(distribution: Distribution) -> list[str]:
    """Return the names of what a package requires, but for what its extras add."""
    listed = distribution.requires or []
    found = (re.match(r"[A-Za-z0-9._-]+", text) for text in listed if "extra ==" not in text)
    return sorted({normal(match[0]) for match in found if match})


def component(distribution: Distribution) -> dict[str, Any]:
    """Describe one package."""
    metadata = distribution.metadata
    name, version = normal(metadata["Name"]), distribution.version
    described: dict[str, Any] = {
        "type": "application" if name == PROJECT else "library",
        "bom-ref": reference(name, version),
        "name": name,
        "version": version,
        "purl": reference(name, version),
    }
    if "License-Expression" in metadata:
        described["licenses"] = [{"expression": metadata["License-Expression"]}]
    else:
        names = [text for text in metadata.get_all("License") or [] if text.strip()]
        described["licenses"] = [{"license": {"name": text.splitlines()[0]}} for text in names]
    return described


def reference(name: str, version: str) -> str:
    """Return the package URL of a version."""
    return f"pkg:pypi/{name}@{version}"


def document() -> dict[str, Any]:
    """Describe everything that is installed."""
    installed = {normal(each.metadata["Name"]): each for each in distributions()}
    components = {name: component(installed[name]) for name in sorted(installed)}
    own = components.pop(PROJECT, None)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": own} if own else {},
        "components": list(components.values()),
        "dependencies": [
            {
                "ref": reference(name, installed[name].version),
                "dependsOn": [
                    reference(other, installed[other].version)
                    for other in requirements_of(installed[name])
                    if other in installed
                ],
            }
            for name in sorted(installed)
        ],
    }


def main() -> None:
    """Write the document to the file that the argument names."""
    path = Path(sys.argv[1])
    made = document()
    path.write_text(json.dumps(made, indent=2) + "\n", encoding="utf8")
    print(f"{path}: {len(made['components'])} components")


if __name__ == "__main__":
    main()
