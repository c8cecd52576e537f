"""Makes ``df.write.format("broker").save()`` without a mode append, as with Spark's own Kafka sink. In the user's
process.

Spark's default mode is ErrorIfExists, and its JVM refuses that mode for every Python data source before it calls the
source. So the mode must be changed when ``save`` is called: ``patch`` wraps that method of PySpark. Writes of other
formats are passed on unchanged. ``import broker.spark`` calls ``install``, which patches PySpark at once or as soon as
PySpark is imported. Reasons: docs/decisions/0008-save-mode.md.

Tests: tests/spark/sink/test_batch_sink.py.
"""

import functools
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_FORMAT = "broker"
_APPENDS = ("append", "error", "errorifexists", "default")


def patch(module: Any) -> None:
    """``module``: pyspark.sql.readwriter, or pyspark.sql.connect.readwriter. Calling it again has no effect."""
    writer = module.DataFrameWriter
    original = writer.save
    if hasattr(original, "_broker_appends"):
        return

    @functools.wraps(original)
    def save(
        self: Any, path: Any = None, format: Any = None, mode: Any = None, partitionBy: Any = None, **options: Any
    ) -> None:
        original(self, path, format, _mode(self, format, mode), partitionBy, **options)

    save._broker_appends = True  # type: ignore[attr-defined]
    writer.save = save


def _mode(writer: Any, given_format: Any, given_mode: Any) -> Any:
    """The mode to pass to ``save``."""
    try:
        # Spark Connect keeps a write's settings in `_write`, PySpark on a JVM in a DataFrameWriter of Scala.
        if hasattr(writer, "_write"):
            known = writer._write.source, writer._write.mode
        else:
            known = writer._jwrite.source(), writer._jwrite.curmode().name()
    except Exception:  # another version of Spark: leave the mode to it
        return given_mode
    if str(given_format or known[0] or "").lower() != _FORMAT:
        return given_mode
    mode = str(given_mode or known[1] or "default").lower()
    if mode in ("overwrite", "ignore"):
        from pyspark.errors import AnalysisException

        raise AnalysisException(
            f"A topic cannot be written in the mode {mode!r}, only appended to: the modes are append and errorifexists"
            " (the default)."
        )
    return "append" if mode in _APPENDS else given_mode


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
    """Wraps the loader of a module. The loader itself is not changed, because all modules of a zip file share it."""

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
        patch(module)
    except AttributeError:  # a PySpark without such a writer keeps its own behaviour
        return


def install() -> None:
    """Calling it again has no effect."""
    for name in _MODULES:
        if name in sys.modules:
            _patch(sys.modules[name])
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
