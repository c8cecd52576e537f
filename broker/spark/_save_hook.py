"""Has ``broker.spark.save_mode`` patch PySpark's DataFrameWriter as soon as that is imported.

Where the package is installed, each Python runs this at its start, as the top-level module ``reactor_broker_save_hook``, so it
imports nothing that costs anything. Elsewhere ``import broker.spark`` does. Why so: docs/decisions/0008-save-mode.md.
"""

import sys

MYPY = False  # what mypy takes for true
if MYPY:
    from typing import Any

_MODULES = ("pyspark.sql.readwriter", "pyspark.sql.connect.readwriter")


class _Finder:
    """Finds what the others find, and has it patched after it has run."""

    is_broker_save_hook = True  # also of the other copy of this module

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name not in _MODULES:
            return None
        for finder in sys.meta_path:
            find = None if hasattr(finder, "is_broker_save_hook") else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader:
    """Another loader for one module. That one is left as it is: of a zip file, all modules have the same."""

    def __init__(self, loader: "Any") -> None:
        self._loader = loader

    def create_module(self, spec: "Any") -> "Any":
        return self._loader.create_module(spec)

    def exec_module(self, module: "Any") -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _patch(module)


def _patch(module: "Any") -> None:
    try:
        from broker.spark import save_mode

        save_mode.patch(module)
    except (
        Exception
    ):  # of another PySpark, or what is left of an installation: no reason to break every program that uses it
        return


def install() -> None:
    for name in _MODULES:
        if name in sys.modules:
            _patch(sys.modules[name])
    if not any(hasattr(finder, "is_broker_save_hook") for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


install()
