"""One moment of all logs: where each of them ended at it.

A record that was written after one in another log had been acknowledged must not be in the backup without it. So the locks of all
logs are held together while their ends are read, for at most ``_HELD_S``. A log whose lock is not free within that time is being
written to by a thread that waits for the disk. Its end changes when that thread is done; it is read until two reads in a row
agree, while all other logs stand still, and then belongs to the same moment.

Runs on a handler that may wait. Nothing else takes the locks of two logs, and every lock here is waited for with a limit.
"""

from collections.abc import Sequence

import attrs

from broker.runtime.clock import Clock
from broker.storage.log.log import Log
from broker.storage.segments.segment import Segment

# The longest time (s) for which appends may have to wait.
_HELD_S = 0.1
_READS = 100


@attrs.frozen
class LogCut:
    """A log at the moment of the cut. ``segment`` is the one in which it ended, and ``size`` that segment's size; None for a log
    that could not be opened."""

    log: Log
    end_offset: int
    segment: Segment | None
    size: int


def cut(logs: Sequence[Log], clock: Clock) -> list[LogCut]:
    """Where the logs ended at one moment during this call."""
    taken = []
    busy = []
    until = clock.monotonic() + _HELD_S
    try:
        for log in logs:
            if log.lock.acquire(timeout=max(0.0, until - clock.monotonic())):
                taken.append(log.lock)
            else:
                busy.append(log)
        tails = [log.written_end for log in busy]
        for _ in range(_READS):
            before, tails = tails, [log.written_end for log in busy]
            if before == tails:
                break
        known = dict(zip(busy, tails, strict=True))
        return [LogCut(log, *known.get(log, log.written_end)) for log in logs]
    finally:
        for lock in taken:
            lock.release()
