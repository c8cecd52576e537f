"""Mistakes for ``planted.py``: in what makes a broker's state durable beyond its machine."""

from collections import deque
from collections.abc import Callable
from typing import Any

from broker.network.sending import Sending
from broker.storage.journal.file_table import FileTable, oldest_row
from broker.storage.journal.shipper import Shipper
from broker.storage.log.log import Log
from broker.storage.segments.segment import Segment
from broker.storage.tier.tiered_disk import TieredDisk
from broker.storage.tier.uploads import Uploads


def shown_before_shipped(_: Any) -> Any:
    return property(lambda self: self.visible == "durable")


def acks_1_at_once(_: Any) -> Any:
    return lambda acks, log: acks == -1


def row_before_object(right: Any) -> Any:
    def persist(self: Shipper, what: str, attempt: Callable[[], object]) -> None:
        later = vars(self).setdefault("_puts", deque())
        if what == "put":
            later.append(attempt)
            return
        right(self, what, attempt)
        while later:
            right(self, "put", later.popleft())

    return persist


def out_of_order(right: Any) -> Any:
    def commit(self: Shipper) -> None:
        with self.lock:
            if not self._committing:
                self._flushes = deque(sorted(self._flushes, key=lambda flush: not flush.is_ready))
        right(self)

    return commit


def epoch_unchecked(_: Any) -> Any:
    return lambda self: None


def removed_too_early(right: Any) -> Any:
    def tidy(self: Shipper, open_file: Any) -> None:
        with self.lock:
            oldest = oldest_row(list(self.table), self.table.dropped, self._next - 1)
            self._unneeded = oldest - 1, 0
        right(self, open_file)

    return tidy


def forgotten_before_adopted(right: Any) -> Any:
    def adopt(self: TieredDisk, files: Any) -> None:
        if self.shipping is not None:
            self.shipping.forget([self._prefix + file.path for file in files])
        right(self, files)

    return adopt


def names_late(right: Any) -> Any:
    def take_names(self: FileTable, number: int) -> Any:
        late = vars(self).get("_late", [])
        vars(self)["_late"] = right(self, number)
        return late

    return take_names


def objects_before_rows(right: Any) -> Any:
    def tidy(self: Shipper, open_file: Any) -> None:
        with self.lock:
            upto = self._unneeded[0]
            doomed = [key for number, _, key in self.rows if number <= upto and key is not None]
        if doomed:
            self._objects.delete(doomed)
        right(self, open_file)

    return tidy


def open_segment_uploaded(_: Any) -> Any:
    def waiting(self: Uploads, log: Log) -> list[tuple[Segment, int]]:
        bases, segments = log.view
        following = [*bases[1:], log.log_end_offset]
        return [
            (segment, end)
            for segment, end in zip(segments, following, strict=True)
            if segment.size and not self._disk.is_remote(segment.log.path)
        ]

    return waiting


def epoch_stays(_: Any) -> Any:
    def take_over(self: Any) -> None:
        self.settle()
        self.epoch = self.epoch or 1

    return take_over


def answers_without_lease(_: Any) -> Any:
    return Sending.flush


def answers_at_once(_: Any) -> Any:
    return lambda self: None
