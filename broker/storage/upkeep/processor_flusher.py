"""fsyncs for the appends of one processor, without another thread.

A flusher thread costs a request two changes of the thread: one until the fsync begins, one until the answer is sent. With little
load, these took as long as half an fsync, and half of the CPU time. Here the kernel does the fsync (``Disk.sync_queue``), and its
end is one more event of the processor's poller.

Fsyncs begin when the processor has handled all that it has read. So appends to a log that came together have one fsync, and those
that come while it runs have the next.

Tests: tests/storage/upkeep/test_processor_flusher.py.
"""

from collections import deque
from functools import partial

from broker.runtime.disk import Disk, File, SyncQueue
from broker.storage.log.durability import Sync
from broker.storage.log.log import Log
from broker.storage.upkeep.flusher import Flusher, Waiters

# Of a log: who waits for the fsync that has begun.
_Begun = tuple[Log, Waiters, Sync]

# How long (s) a flusher thread waits at a time for the fsyncs of a processor that has gone.
_PATIENCE_S = 60.0


def processor_flusher(flusher: Flusher, disk: Disk) -> "ProcessorFlusher | None":
    """For another processor; None if the disk needs threads for its fsyncs."""
    syncs = disk.sync_queue()
    return None if syncs is None else ProcessorFlusher(flusher, syncs)


class ProcessorFlusher:
    """An attachment of a processor. A log is in ``due``, or its fsync has begun here, or others have it: never two of these."""

    def __init__(self, flusher: Flusher, syncs: SyncQueue) -> None:
        self.due: deque[Log] = deque()
        self._flusher = flusher
        self.source = self._syncs = syncs

    def attach(self) -> None:
        self._flusher.join(self.due)

    def begin_due(self) -> None:
        flusher, room = self._flusher, self._syncs.room
        requests: list[tuple[_Begun, File]] = []
        while self.due:
            log = self.due.popleft()
            waiters = flusher.begin(log)
            offsets = [offset for offset, _ in waiters]
            if 0 < min(offsets) and max(offsets) <= log.durable_offset:  # they had appended before the last fsync began
                flusher.end(log, waiters, None, self.due)
                continue
            flush = flusher.begin_sync(log, waiters) if len(requests) < room else None
            if flush is None:
                flusher.leave_to_threads(log, waiters)
            else:
                requests.append(((log, waiters, flush[0]), flush[1]))
        taken = self._syncs.start(requests) if requests else 0
        for begun, file in requests[taken:]:
            flusher.hand_over(partial(self._sync, begun, file))

    def ready(self) -> None:
        for (log, waiters, sync), error in self._syncs.results():
            self._flusher.end_sync(log, waiters, sync, error, self.due)

    def detach(self) -> None:
        self._flusher.leave(self.due)
        self._leave_due()
        if self._syncs.pending:
            self._flusher.hand_over(self._finish)
        else:
            self._syncs.close()

    def _finish(self) -> None:
        """On a flusher thread: the processor has gone."""
        while self._syncs.pending:
            for (log, waiters, sync), error in self._syncs.results(_PATIENCE_S):
                self._flusher.end_sync(log, waiters, sync, error, self.due)
            self._leave_due()  # not after those for which this thread still waits
        self._syncs.close()

    def _leave_due(self) -> None:
        while self.due:
            self._flusher.leave_to_threads(self.due.popleft(), [])

    def _sync(self, begun: _Begun, file: File) -> None:
        """On a flusher thread, instead of the kernel, which did not take it."""
        error: OSError | None = None
        try:
            file.sync()
        except OSError as failed:
            error = failed
        self._flusher.end_sync(*begun, error)
