"""Record batches on their way to one Arrow record batch: which are left out, and what their headers mean for each record. Pure.

Tests: tests/client/kafka/columns/test_columns.py.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.client.kafka.columns.record_walk import Section
from broker.client.kafka.columns.varints import I64
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, BatchHeader
from protocol.kafka.records.markers import read_marker
from protocol.wire import BytesLike

CREATE_TIME, LOG_APPEND_TIME_TYPE = np.int32(0), np.int32(1)  # values of the column timestampType


class AbortedTransactions:
    """Which batches belong to aborted transactions, found as Kafka's consumer finds them.

    They are a producer's batches from the first offset of its aborted transaction up to its abort marker.
    """

    def __init__(self, transactions: Sequence[tuple[int, int]]) -> None:
        self._latest_first = sorted(transactions, key=lambda transaction: -transaction[1])
        self._producers: set[int] = set()

    def leaves_out(self, header: BatchHeader, view: memoryview, pos: int) -> bool:
        """Must be called for every batch in turn. Control batches are always left out."""
        waiting = self._latest_first
        while waiting and waiting[-1][1] <= header.last_offset:
            self._producers.add(waiting.pop()[0])
        if not header.attributes & (TRANSACTIONAL | CONTROL):
            return False
        if header.attributes & CONTROL:
            if header.producer_id in self._producers:
                marker = read_marker(view[pos : pos + header.size])
                if marker is not None and not marker.commit:
                    self._producers.discard(header.producer_id)
            return True
        return header.producer_id in self._producers


class BatchGroup:
    """Sections of consecutive batches that become one Arrow record batch."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._headers: list[BatchHeader] = []
        self._sections: list[Section] = []
        self._datas: list[BytesLike | None] = []
        self.size = 0

    def add(self, header: BatchHeader, section: Section, data: BytesLike | None) -> None:
        """``data`` None: the section lies in the fetched bytes."""
        self._headers.append(header)
        self._sections.append(section)
        self._datas.append(data)
        self.size += section.end - section.start

    def joined(self) -> tuple[BytesLike, list[Section]]:
        """All sections in one buffer: the fetched bytes in place, or copies one behind the other."""
        sections, datas = self._sections, self._datas
        if all(data is None for data in datas):
            start = sections[0].start
            return self._view[start : sections[-1].end], [Section(s - start, e - start, n) for s, e, n in sections]
        if len(datas) == 1 and datas[0] is not None:
            return datas[0], sections
        moved: list[Section] = []
        parts: list[BytesLike] = []
        end = 0
        for section, data in zip(sections, datas, strict=True):
            start, end = end, end + section.end - section.start
            moved.append(Section(start, end, section.records))
            parts.append((self._view if data is None else memoryview(data))[section.start : section.end])
        return b"".join(parts), moved

    def columns(self) -> "BatchColumns":
        by_field: Any = zip(*self._headers, strict=True)
        return BatchColumns(BatchHeader(*by_field), [section.records for section in self._sections])


class BatchColumns:
    """The values from the headers of a group's batches, repeated for every record. ``fields``: each holds that of all batches."""

    def __init__(self, fields: Any, records: list[int]) -> None:
        self._fields = fields
        self._records = np.array(records, np.int64)
        self._has_append_time = any(attributes & LOG_APPEND_TIME for attributes in fields.attributes)
        self.lowest: int = fields.base_offset[0]
        self.highest: int = fields.base_offset[-1] + fields.last_offset_delta[-1]

    def offsets(self, deltas: I64) -> I64:
        if int(deltas.min()) < 0 or (deltas > self._each(self._fields.last_offset_delta)).any():
            raise ProtocolError("a record whose offset is not within its batch's")
        return self._each(self._fields.base_offset) + deltas

    def timestamps(self, deltas: I64) -> I64:
        """The times in ms."""
        times = self._each(self._fields.base_timestamp) + deltas
        types = self.timestamp_types()
        return times if types is None else np.where(types == CREATE_TIME, times, self._each(self._fields.max_timestamp))

    def timestamp_types(self) -> npt.NDArray[np.int32] | None:
        """None if every record has its time of creation."""
        if not self._has_append_time:
            return None
        return np.where(self._each(self._fields.attributes) & LOG_APPEND_TIME, LOG_APPEND_TIME_TYPE, CREATE_TIME)

    def _each(self, of_batches: Sequence[int]) -> I64:
        return np.repeat(np.array(of_batches, np.int64), self._records)
