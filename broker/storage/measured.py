"""What logs measure that is no log's own: fsyncs, and what the recovery at the start has done.

Tests: tests/storage/test_metrics.py.
"""

from bisect import bisect_left

import attrs

from broker.metrics import Labels, names
from broker.metrics.registry import Ranges
from broker.runtime.threads import Lock


class Fsyncs:
    """How long fsyncs take. Any thread may observe; one that has just waited for a disk can wait for this lock."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts = [0] * (len(names.FSYNC_SECONDS.bounds) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        with self._lock:
            self._counts[bisect_left(names.FSYNC_SECONDS.bounds, seconds)] += 1
            self._sum_s += seconds

    def ranges(self) -> dict[Labels, Ranges]:
        with self._lock:
            return {(): (list(self._counts), self._sum_s)}


@attrs.define
class Recovery:
    """Written by the thread that opens the storage."""

    seconds: float = 0.0
    scanned_logs: int = 0
    scanned_bytes: int = 0
    cut_bytes: int = 0

    def add(self, scanned_bytes: int, cut_bytes: int) -> None:
        """A log was opened. Without a scan, ``scanned_bytes`` is 0."""
        self.scanned_logs += scanned_bytes > 0
        self.scanned_bytes += scanned_bytes
        self.cut_bytes += cut_bytes
