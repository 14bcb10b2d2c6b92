"""Import hook that loads one module from the code of a mutant.

`install` writes this file as `sitecustomize.py` into a folder, beside the name and the code of the
module. With that folder on `PYTHONPATH`, every Python process loads the hook as it starts,
including processes that tests start, however they change other variables. The source tree is
neither copied nor changed, and no compiled file of the module is read or written.
"""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

_CODE, _MODULE, _LOADED = "mutant.code", "mutant.module", "mutant.loaded"


def install(folder: str, module: str, code: CodeType) -> None:
    """Prepare a folder for `PYTHONPATH`."""
    with open(__file__, "rb") as source:
        _write(folder, "sitecustomize.py", source.read())
    _write(folder, _MODULE, module.encode())
    _write(folder, _CODE, marshal.dumps(code))


def was_loaded(folder: str) -> bool:
    """Return True if a process has loaded the mutant."""
    return os.path.exists(os.path.join(folder, _LOADED))


def _write(folder: str, name: str, data: bytes) -> None:
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def _read(folder: str, name: str) -> bytes:
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, folder: str) -> None:
        super().__init__(name, path)
        self._folder = folder

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = marshal.loads(_read(self._folder, _CODE))
        _write(self._folder, _LOADED, b"")
        return code


class _Finder:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._module = _read(folder, _MODULE).decode()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == self._module else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin, self._folder)
        return spec


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, _Finder(os.path.dirname(os.path.abspath(__file__))))
