"""Has ``broker.spark.sink.save_mode`` patch PySpark's DataFrameWriter, at once or as soon as PySpark is imported.

``import broker.spark`` calls ``install``, before or after PySpark was imported. Reasons: docs/decisions/0008-save-mode.md.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from broker.spark.sink import save_mode

_MODULES = ("pyspark.sql.readwriter", "pyspark.sql.connect.readwriter")


class _Finder(MetaPathFinder):
    """Finds a module with the other finders, and has it patched after its execution."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in _MODULES:
            return None
        for finder in sys.meta_path:
            # Old finders have no `find_spec`; Python skips them, too.
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _PatchingLoader(spec.loader)
                return spec
        return None


class _PatchingLoader(Loader):
    """Wraps the loader of one module. The loader itself is not changed, because all modules of a zip file share one."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _patch(module)


def _patch(module: ModuleType) -> None:
    try:
        save_mode.patch(module)
    except AttributeError:  # a PySpark without such a writer keeps its own behaviour
        return


def install() -> None:
    """Calling it again has no effect."""
    for name in _MODULES:
        if name in sys.modules:
            _patch(sys.modules[name])
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
