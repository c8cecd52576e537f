"""Has ``broker.spark.save_mode`` patch PySpark's DataFrameWriter as soon as that is imported.

Where the package is installed, each Python runs this at its start, as the top-level module ``reactor_broker_save_hook``, so it
imports nothing that costs anything. Elsewhere ``import broker.spark`` does. Why so: docs/decisions/0007-save-mode.md.
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
                _patch_after_running(spec.loader)
                return spec
        return None


def install() -> None:
    for name in _MODULES:
        if name in sys.modules:
            _patch(sys.modules[name])
    if not any(hasattr(finder, "is_broker_save_hook") for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _patch(module: "Any") -> None:
    try:
        from broker.spark import save_mode
    except ImportError:  # this is what is left of an installation
        return
    save_mode.patch(module)


def _patch_after_running(loader: "Any") -> None:
    run = loader.exec_module

    def exec_module(module: "Any") -> None:
        run(module)
        _patch(module)

    try:
        loader.exec_module = exec_module
    except AttributeError:  # a loader whose methods cannot be replaced
        pass


install()
