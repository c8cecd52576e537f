"""The scrub: all that is on disk is verified again, a little every second, so that damage is found before a consumer does.

Background thread. A partition whose files are damaged goes offline, and its recovery point goes back to the bad batch, so that
the next start finds it as well.
"""

from broker.errors import RequestError, StorageError
from broker.storage import reading
from broker.storage.log import Log
from broker.storage.scan import scan


class Scrub:
    """Goes round all logs. ``step`` verifies about so many bytes and goes on there the next time."""

    def __init__(self) -> None:
        self._key: tuple[str, int] = ("", -1)
        self._offset = 0
        self.rounds = 0

    def step(self, partitions: dict[tuple[str, int], Log], budget: int) -> list[Log]:
        """Returns the logs that were found damaged."""
        damaged = []
        for _ in range(len(partitions) + 1):
            log = partitions.get(self._key)
            if log is not None:
                budget -= self._verify(log, budget)
                if log.offline is not None and not log.deleted and log not in damaged:
                    damaged.append(log)
            if budget <= 0:
                return damaged
            keys = sorted(partitions)
            following = [key for key in keys if key > self._key]
            if not following:
                self.rounds += 1
                following = keys
            if not following:
                return damaged
            self._key, self._offset = following[0], 0
        return damaged

    def _verify(self, log: Log, budget: int) -> int:
        """Verify about ``budget`` bytes from ``_offset`` on. Returns how many it was; 0 at the end of the log."""
        done = 0
        while done < budget and log.offline is None and self._offset < log.high_watermark:
            try:
                done += reading.search(log, lambda: self._verify_segment(log, budget - done))  # noqa: B023 (called here)
            except (StorageError, RequestError):
                break
        return done

    def _verify_segment(self, log: Log, budget: int) -> int:
        _, active, active_end = log.tail
        with log.lock:
            segments = log.segments_from(self._offset)
        segment = segments[0]
        begin = max(self._offset, segment.base_offset)
        end = active_end if segment is active else segment.size
        position = segment.locate(begin, end) if begin > segment.base_offset else 0
        file = segment.log.get()
        stop, self._offset = scan(
            file,
            position,
            end,
            begin,
            base_offset=segment.base_offset,
            dense_from=log.dense_from,
            newest_epoch=log.leader_epoch,
            stop_after=budget,
        )
        if stop < end and stop - position < budget and segment in log.view.segments:
            where = f"no valid record batch at position {stop} (offset {self._offset})"
            log.recovery_point = min(log.recovery_point, self._offset)
            log.go_offline(f"{segment.log.path} is damaged: {where}")
        elif stop >= end and len(segments) > 1:
            self._offset = max(self._offset, segments[1].base_offset)
        return max(1, stop - position)
