"""Kafka's error codes, as an IntEnum with lower-case names: ``ErrorCode.unknown_topic_or_partition`` is 3.

This module imports kio before any other module of this package does. Where hypothesis is installed, kio imports it for its types,
which would cost 135 ms and 21 MB in every test run that starts a broker; this module prevents that import.

Tests: tests/protocol/kafka/schema/test_control.py.
"""

import sys


def _import_kio_without_hypothesis() -> None:
    if "kio.static._phantom" in sys.modules:
        return
    missing = object()
    before = sys.modules.get("hypothesis", missing)
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # makes its import fail at once
    try:
        import kio.static._phantom  # noqa: F401  # the only module of kio that imports hypothesis
    finally:
        if before is missing:
            del sys.modules["hypothesis"]
        else:
            sys.modules["hypothesis"] = before  # type: ignore[assignment]


_import_kio_without_hypothesis()

from kio.schema.errors import ErrorCode  # noqa: E402

__all__ = ["ErrorCode"]
