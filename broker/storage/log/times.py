"""Looking up offsets by time: the first record that is not older, and the record with the largest timestamp.

On a thread that may wait: batches are read from the disk and decompressed. As in ``reading.py`` no lock is taken, except to read
the end of the active segment.

The broker may never have read the records of a batch before. A batch that matches its checksum but cannot be read, or is too
large to be decompressed, or lacks the record that its header promises, is answered as a whole: with its first offset, from which
a consumer misses nothing, and the timestamp of its header. So are batches once a look-up has spent its budget.
"""

from bisect import bisect_right
from typing import NamedTuple

from broker.runtime.threads import Lock
from broker.storage.log import inspection
from broker.storage.log.reading import LogReader
from broker.storage.log.state import LogState
from broker.storage.segments.segment import (
    ATTRIBUTES,
    BASE_OFFSET,
    LAST_DELTA,
    LENGTH,
    MAX_TIMESTAMP,
    RECORD_COUNT,
    CorruptSegment,
    Header,
    Segment,
)
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import ENTRY, LOG_OVERHEAD, check_crc, read_header
from protocol.kafka.records.record_scan import first_record, latest_record

# A look-up decompresses at most this many batches and bytes. Two batches are enough if the headers are true.
MOST_OPENED = 16
_MOST_OPENED_BYTES = 2 * inspection.LARGEST_BYTES


class Latest(NamedTuple):
    """The first batch with the largest timestamp of a segment, from offset ``start`` to position ``end``. ``position`` is -1 if
    no batch has a timestamp."""

    segment: Segment
    start: int
    end: int
    timestamp: int
    position: int


class _Budget:
    """The rest that one look-up may decompress."""

    def __init__(self) -> None:
        self.batches = MOST_OPENED
        self.records = inspection.MOST_RECORDS
        self.bytes = _MOST_OPENED_BYTES

    def spend(self, header: Header) -> bool:
        """False if the rest is too small for this batch, whose size is only known once it was opened."""
        self.batches -= 1
        self.records -= header[RECORD_COUNT]
        return self.batches >= 0 and self.records >= 0 and self.bytes > 0


class TimeLookup:
    """``large`` is held while a batch is decompressed that is large inside (``inspection.py``)."""

    __slots__ = ("_large", "_latest", "_reader", "_state")

    def __init__(self, state: LogState, reader: LogReader, large: Lock) -> None:
        self._state = state
        self._reader = reader
        self._large = large
        # By the base offset of the segment. Replaced as a whole: of two look-ups at once one may drop the other's result.
        self._latest: dict[int, Latest] = {}

    def timestamp_at(self, offset: int) -> int:
        """The largest timestamp (ms) of the first batch with ``offset`` or a later offset; -1 if none exists, or it has no
        timestamp. Reads no more than the headers of some batches. Raises StorageError, Refusal."""
        if self._state.offline is not None:
            raise self._state.why_unavailable()
        return self._reader.search(lambda: self._timestamp_at(offset))

    def _timestamp_at(self, offset: int) -> int:
        state = self._state
        _, active, active_end = state.tail
        offset = max(offset, state.log_start_offset)
        view = state.view
        for segment in view.segments[max(0, bisect_right(view.bases, offset) - 1) :]:
            end = active_end if segment is active else segment.size
            header = segment.header(segment.locate(offset, end), end)
            if header is not None:
                return header[MAX_TIMESTAMP]
            if segment is active:
                break
        return -1

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record that is not older than ``timestamp`` (ms); None if there is none.

        Raises StorageError.
        """
        if self._state.offline is not None:
            raise self._state.why_unavailable()
        return self._reader.search(lambda: self._offset_for_timestamp(timestamp))

    def _offset_for_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        state = self._state
        _, active, active_end = state.tail
        start = state.log_start_offset
        budget = _Budget()
        assert active is not None
        for segment in state.view.segments:
            if segment.base_offset > active.base_offset:  # nobody sees it yet
                break
            if segment.largest()[0] < timestamp:
                continue
            end = active_end if segment is active else segment.size
            entry = segment.times.at_or_before(timestamp)
            position = 0
            if entry is not None:
                position = segment.locate(entry[1], end)
                segment.check_time(entry[0], position)
            for at, header in segment.walk(position, end):
                if (
                    header[MAX_TIMESTAMP] < timestamp
                    or header[BASE_OFFSET] + header[LAST_DELTA] < start
                    or not header[RECORD_COUNT]
                ):
                    continue
                if not budget.spend(header):
                    return _answer_as_a_whole(header, start)
                try:
                    record = self._first_record(segment, at, header, timestamp, start, budget)
                except ProtocolError:
                    return _answer_as_a_whole(header, start)
                if record is not None:
                    return record
            if segment is active:
                break
        return None

    def _first_record(
        self, segment: Segment, position: int, header: Header, timestamp: int, start: int, budget: _Budget
    ) -> tuple[int, int] | None:
        """Raises ProtocolError if the producer wrote an illegible batch, CorruptSegment if the disk has damaged it."""
        if header[ATTRIBUTES] & ENTRY:  # its messages were published together
            return _answer_as_a_whole(header, start)
        batch = _read(segment, position, header)
        parsed = read_header(batch)

        def look(data: bytes) -> tuple[int, int] | None:
            budget.bytes -= len(data)
            return first_record(parsed, data, timestamp, start, inspection.MOST_RECORDS)

        return inspection.inspect(batch, parsed, self._state.config, self._large, look)

    def max_timestamp_offset(self) -> tuple[int, int] | None:
        """(offset, timestamp) of the first record with the largest timestamp; None if no record has any.

        Raises StorageError.
        """
        if self._state.offline is not None:
            raise self._state.why_unavailable()
        return self._reader.search(self._max_timestamp_offset)

    def _max_timestamp_offset(self) -> tuple[int, int] | None:
        start = self._state.log_start_offset
        best: Latest | None = None
        for segment in self._state.view.segments:
            latest = self._latest_of(segment, start)
            if latest.position >= 0 and (best is None or latest.timestamp > best.timestamp):
                best = latest
        if best is None:
            return None
        header = best.segment.header(best.position, best.end)
        if header is None:
            raise CorruptSegment(f"{best.segment.log.path} has no record batch at position {best.position}")
        try:
            found_record = self._first_record(best.segment, best.position, header, best.timestamp, start, _Budget())
        except ProtocolError:
            found_record = None
        return found_record or _answer_as_a_whole(header, start)

    def _latest_of(self, segment: Segment, start: int) -> Latest:
        """Usually the time index has the answer. If some records of its batch were deleted, or compaction has removed them all,
        the headers are read, and the result is kept for the next time."""
        state = self._state
        if segment is state.active:
            with state.lock:  # the three values belong together
                (timestamp, offset), end = segment.largest(), segment.size
        else:
            (timestamp, offset), end = segment.largest(), segment.size
        if timestamp < 0:
            return Latest(segment, start, end, -1, -1)
        position = segment.locate(offset, end)
        segment.check_time(timestamp, position)
        header = segment.header(position, end)
        if header is not None and header[BASE_OFFSET] >= start and header[RECORD_COUNT]:
            return Latest(segment, start, end, timestamp, position)
        known = self._latest.get(segment.base_offset)
        if known is None or not _still_true(known, segment, start, end):
            known = Latest(segment, start, segment.locate(start, end), -1, -1)
        walked = self._walk(known, start, end)
        segments = state.view.segments
        current = {base: latest for base, latest in self._latest.items() if latest.segment in segments}
        self._latest = current | {segment.base_offset: walked}
        return walked

    def _walk(self, known: Latest, start: int, end: int) -> Latest:
        """``known``, extended to ``end``."""
        segment, _, begin, timestamp, position = known
        for at, header in segment.walk(begin, end):
            latest = header[MAX_TIMESTAMP]
            if not header[RECORD_COUNT] or latest <= timestamp:
                continue
            if header[BASE_OFFSET] < start:
                latest = self._latest_from(segment, at, header, start)
                if latest <= timestamp:
                    continue
            timestamp, position = latest, at
        return Latest(segment, start, end, timestamp, position)

    def _latest_from(self, segment: Segment, position: int, header: Header, start: int) -> int:
        """The largest timestamp of a batch's records from the log start offset on; -1 if none has any."""
        if header[ATTRIBUTES] & ENTRY:
            return header[MAX_TIMESTAMP]
        batch = _read(segment, position, header)
        parsed = read_header(batch)

        def look(data: bytes) -> tuple[int, int] | None:
            return latest_record(parsed, data, start, inspection.MOST_RECORDS)

        try:
            record = inspection.inspect(batch, parsed, self._state.config, self._large, look)
        except ProtocolError:
            return header[MAX_TIMESTAMP]
        return -1 if record is None else record[1]


def _answer_as_a_whole(header: Header, start: int) -> tuple[int, int]:
    return max(header[BASE_OFFSET], start), header[MAX_TIMESTAMP]


def _read(segment: Segment, position: int, header: Header) -> bytes:
    batch = segment.log.get().pread(header[LENGTH] + LOG_OVERHEAD, position)
    try:
        check_crc(batch, 0, read_header(batch))
    except ProtocolError as error:
        raise CorruptSegment(f"{segment.log.path} is damaged at position {position}: {error}") from error
    return batch


def _still_true(known: Latest, segment: Segment, start: int, end: int) -> bool:
    """Is ``known`` right for this start and end? Yes as long as the log start offset has not moved past its batch."""
    if known.segment is not segment or known.end > end or known.start > start:
        return False
    if known.start == start:
        return True
    header = segment.header(known.position, known.end) if known.position >= 0 else None
    return header is not None and header[BASE_OFFSET] >= start
