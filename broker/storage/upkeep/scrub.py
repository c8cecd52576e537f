"""The scrub verifies the checksums of everything on disk, a little every second, so that damage is found before a consumer reads
it.

Housekeeper thread. It opens files outside of the cache of open files, so that it does not evict files in use. A
partition whose files are damaged goes offline, and its recovery point moves back to the bad batch, so that the next start finds
it as well. Segments that are in the object store only are left out.
"""

from collections.abc import Mapping

from broker.errors import StorageError
from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.storage.log import state
from broker.storage.log.log import Log
from broker.storage.recovery.scan import BATCH_COST_BYTES, scan
from broker.storage.segments.segment import Header, Segment

logger = get_logger("storage")

# A round over little data ends soon, and the next round need not follow at once.
SHORTEST_ROUND_S = 3600.0

Partitions = Mapping[tuple[str, int], Log]


class Scrub:
    """Verifies all logs in turn. ``step`` verifies about ``budget`` bytes and continues there the next time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._round_began = 0.0
        self._left: list[tuple[str, int]] = []  # logs of this round not verified yet, the next log last
        self._log: Log | None = None
        self._segment: Segment | None = None
        self._position = 0
        self._offset = 0
        self.rounds = 0

    def step(self, partitions: Partitions, budget: int) -> list[Log]:
        """Returns the logs that were found damaged."""
        damaged = []
        while budget > 0:
            log = self._log
            if log is None or log.offline is not None or self._offset >= log.high_watermark:
                if not self._next_log(partitions):
                    break
                continue
            try:
                budget -= self._verify(log, budget)
            except OSError as error:
                log.state.failed("it could not be verified", error)
            except StorageError:
                damaged.append(log)
        return damaged

    def _next_log(self, partitions: Partitions) -> bool:
        """False at the end of a round."""
        self._log = self._segment = None
        if not self._left:
            if self.rounds and self._clock.monotonic() - self._round_began < SHORTEST_ROUND_S:
                return False
            self._round_began = self._clock.monotonic()
            self._left = sorted(partitions, reverse=True)
            self.rounds += 1
            if not self._left:
                return False
        self._log = partitions.get(self._left.pop())
        self._offset = 0
        return True

    def _verify(self, log: Log, budget: int) -> int:
        """Verify about ``budget`` bytes of one segment. Returns the part of the budget that was used. Raises StorageError for
        damage."""
        _, active, active_end = log.tail
        with log.lock:
            segment = log.state.segments_from(self._offset)[0]
        if segment is not self._segment:  # the next segment, or its replacement by compaction
            self._segment, self._position, self._offset = segment, 0, segment.base_offset
        end = active_end if segment is active else segment.size
        start = self._position
        batches = 0

        def count(position: int, header: Header) -> None:
            nonlocal batches
            batches += 1

        try:
            file = log.around.disk.open(segment.log.path, read_only=True)
        except FileNotFoundError:
            if segment in log.view.segments:
                raise
            self._segment = None  # deleted or compacted meanwhile
            return 1
        try:
            if file.is_remote:  # it was verified before it was uploaded; the store verifies what it has
                self._offset = self._after(log, segment)
                return BATCH_COST_BYTES
            if start == 0 and not state.agrees(segment, log.durability.aborted_sums):
                if segment in log.view.segments:
                    raise log.state.go_offline(
                        f"{segment.aborted.cached.path} is damaged; the next start will make it again"
                    )
                self._segment = None  # deleted meanwhile
                return 1
            scanned = scan(
                file,
                start,
                end,
                self._offset,
                base_offset=segment.base_offset,
                dense_from=log.dense_from,
                newest_epoch=log.leader_epoch,
                on_batch=count,
                stop_after=budget,
            )
        finally:
            file.close()
        self._position, self._offset = scanned.position, scanned.offset
        if scanned.bad:
            where = f"no valid record batch at position {scanned.position} (offset {scanned.offset})"
            log.durability.distrust_from(scanned.offset)
            raise log.state.go_offline(f"{segment.log.path} is damaged: {where}")
        if self._position >= end:
            self._offset = self._after(log, segment)
        return scanned.position - start + (batches + 1) * BATCH_COST_BYTES

    def _after(self, log: Log, segment: Segment) -> int:
        """The start of the next segment; the present offset if this was the last segment."""
        following = [base for base in log.view.bases if base > segment.base_offset]
        return max(self._offset, following[0]) if following else self._offset
