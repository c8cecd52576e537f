"""Makes ``df.write.format("broker").save()`` without a mode append, as with Spark's own Kafka sink. In the user's process.

Spark's default mode is ErrorIfExists, and its JVM refuses that mode for every Python data source before it calls the source. So
the mode must be changed when ``save`` is called: ``patch`` wraps that method of PySpark. Writes of other formats are passed on
unchanged. ``save_hook.py`` calls ``patch``. Reasons: docs/decisions/0008-save-mode.md.

Tests: tests/spark/sink/test_save_hook.py, tests/spark/sink/test_batch_sink.py.
"""

import functools
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
