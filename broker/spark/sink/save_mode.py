"""``df.write.format("broker").save()`` without a mode: appends, as with Spark's own Kafka sink. In the user's own process.

Spark's default mode is ErrorIfExists, and its JVM refuses that to every Python data source before it asks the source anything. So
the mode has to be another one when ``save`` is called: ``patch`` wraps that method of PySpark's. Writes of any other format are
passed on as they are. Who calls ``patch``, and when: ``save_hook.py``; why so: docs/decisions/0008-save-mode.md.
"""

import functools
from typing import Any

_FORMAT = "broker"
_APPENDS = ("append", "error", "errorifexists", "default")


def patch(module: Any) -> None:
    """``module``: pyspark.sql.readwriter, or pyspark.sql.connect.readwriter. A second time it does nothing."""
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
    """What ``save`` shall be told."""
    try:
        # Spark Connect collects a write in `_write`, PySpark on a JVM in a DataFrameWriter of Scala.
        if hasattr(writer, "_write"):
            known = writer._write.source, writer._write.mode
        else:
            known = writer._jwrite.source(), writer._jwrite.curmode().name()
    except Exception:  # another version of Spark: it shall say what it says
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
