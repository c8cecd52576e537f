"""Kafka's error codes, as an IntEnum with lower-case names: ``ErrorCode.unknown_topic_or_partition`` is 3.

This is also where kio is first imported, for every module here: kio imports hypothesis wherever it is installed, to
tell it about its types, which costs 135 ms and 21 MB of whoever runs a broker in their tests.
"""

import sys


def _import_kio_without_hypothesis() -> None:
    if "kio.static._phantom" in sys.modules:
        return
    missing = object()
    before = sys.modules.get("hypothesis", missing)
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # Python's way to say: do not look for it
    try:
        import kio.static._phantom  # noqa: F401  # the one module of kio's that asks
    finally:
        if before is missing:
            del sys.modules["hypothesis"]
        else:
            sys.modules["hypothesis"] = before  # type: ignore[assignment]


_import_kio_without_hypothesis()

from kio.schema.errors import ErrorCode  # noqa: E402

__all__ = ["ErrorCode"]
