"""Reading records for people: from an offset on, up to a limit, within bounds. On a thread that may block.

One reading looks at a bounded number of bytes and records, compressed and decompressed, whatever a producer has put into a batch;
then it says where to go on. A batch that cannot be read, or is too large inside, is shown as one record that says why. Entries of
Pulsar's producers are shown as the messages in them.

Records of transactions are marked as ``open``, ``aborted`` or ``committed``, and the markers that end transactions are shown,
too; or, if only committed records are wanted, uncommitted ones are left out.

``shown`` makes a record JSON, purely: keys and values as text if they are text, else in base64, and cut at a bound. Producers may
be hostile, so nothing is decompressed or parsed further than it is shown: whether a value is JSON is decided by parsing it, which
takes bounded time, and the parsed form is not kept.

Tests: tests/kafka/views/test_records.py.
"""

import json
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from broker.network.work import Work
from broker.runtime.disk import FileRegion
from broker.storage.log import inspection
from broker.storage.log.log import Log
from broker.storage.refusals import OffsetOutOfRange
from broker.storage.segments.index_file import AbortedTransaction
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import HEADER, HEADER_SIZE, BatchHeader, read_header
from protocol.kafka.records.compression import CODEC_NAMES
from protocol.kafka.records.records import Record, parse_marker, read_records

# Bytes of a key or a value; bytes of all headers of a record.
PART_MAX_BYTES: Final = 64 * 1024
HEADERS_MAX: Final = 100
_HEADER_MAX_BYTES: Final = 1024
_NAME_MAX = 300
# Characters of a key or a value of a shortened record: at most 24,000 bytes as JSON. Divisible by 4, for base64.
_SHORT_MAX: Final = 2000
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")  # not: tabs, line ends, escape


def part(data: bytes | None, most: int = PART_MAX_BYTES) -> dict[str, Any] | None:
    """``{"text": ...}`` or ``{"base64": ...}``; with ``truncated`` if it was cut, ``json`` if it is an object or array."""
    if data is None:
        return None
    shown = data[:most]
    truncated = len(shown) < len(data)
    text = _text(shown, truncated)
    fields: dict[str, Any] = {"base64": b64encode(shown).decode()} if text is None else {"text": text}
    if truncated:
        fields["truncated"] = True
    elif text is not None and _is_json(text):
        fields["json"] = True
    return fields


def headers(pairs: Sequence[tuple[str, bytes | None]]) -> list[dict[str, Any]]:
    return [{"key": name[:_NAME_MAX], "value": part(value, _HEADER_MAX_BYTES)} for name, value in pairs[:HEADERS_MAX]]


def size_of(record: Record) -> int:
    """Of key, value and headers, in bytes."""
    of_headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + of_headers


def shown(partition: int, record: Record, batch: Mapping[str, Any]) -> dict[str, Any]:
    """``batch``: the fields that all records of a batch share."""
    return {
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp if record.timestamp >= 0 else None,
        "key": part(record.key),
        "value": part(record.value),
        "headers": headers(record.headers),
        "size": size_of(record),
        **batch,
    }


def shortened(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as ``shown``, with less of its key and value and without its headers."""
    return {**record, "key": _shortened(record["key"]), "value": _shortened(record["value"]), "headers": []}


def _shortened(fields: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if fields is None:
        return None
    form = "text" if "text" in fields else "base64"
    if len(fields[form]) <= _SHORT_MAX:
        return dict(fields)
    return {form: fields[form][:_SHORT_MAX], "truncated": True}


def _text(data: bytes, truncated: bool) -> str | None:
    """None for bytes that are not UTF-8, or have control characters that text does not have."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if not truncated or error.start < len(data) - 3 or not error.start:
            return None
        text = data[: error.start].decode()  # cut within a character
    return None if _CONTROLS.search(text) else text


def _is_json(text: str) -> bool:
    if text[:1] not in ("{", "["):  # an object or an array: a lone number or word may as well be text
        return False
    try:
        json.loads(text, parse_constant=_refuse, parse_int=_skip, parse_float=_skip)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(_text: str) -> None:
    raise ValueError


def _skip(_text: str) -> None:
    """Ignores a number: many digits would take long, and their value is not needed."""


# Stored bytes that are read at a time, and the largest batch that is opened.
_CHUNK_BYTES: Final = 1024 * 1024
_BATCH_MAX_BYTES: Final = 32 * 1024 * 1024


@attrs.define
class Budget:
    """The limits of one reading. Every batch counts, also a skipped one."""

    stored_bytes: int = 32 * 1024 * 1024
    opened_bytes: int = 64 * 1024 * 1024
    records: int = 200_000
    shown_bytes: int = 8 * 1024 * 1024

    @property
    def is_spent(self) -> bool:
        return min(self.stored_bytes, self.opened_bytes, self.records, self.shown_bytes) <= 0

    def share(self, parts: int) -> "Budget":
        """An equal part of it."""
        return Budget(*(max(1, amount // parts) for amount in attrs.astuple(self)))

    def take(self, given: "Budget", left: "Budget") -> None:
        """Charge the part of ``given`` that was used; ``left`` remains of it."""
        self.stored_bytes -= given.stored_bytes - left.stored_bytes
        self.opened_bytes -= given.opened_bytes - left.opened_bytes
        self.records -= given.records - left.records
        self.shown_bytes -= given.shown_bytes - left.shown_bytes


@attrs.frozen
class Wanted:
    limit: int
    key: bytes | None = None  # only records with this key
    committed: bool = False
    before: int | None = None  # an offset: records from there on are not wanted


@attrs.define
class Found:
    """``next_offset``: where to go on."""

    records: list[dict[str, Any]]
    next_offset: int


class RecordReader:
    """Reads one log, for one request."""

    def __init__(self, log: Log, wanted: Wanted, budget: Budget, work: Work) -> None:
        self._log = log
        self._wanted = wanted
        self._budget = budget
        self._work = work
        self._looked_at = False  # at least one record: every reading makes progress

    def read(self, offset: int) -> Found:
        """Raises StorageError, Refusal (the topic was deleted)."""
        log, wanted = self._log, self._wanted
        offset = max(offset, log.log_start_offset)
        end = log.last_stable_offset if wanted.committed else log.high_watermark
        if wanted.before is not None:
            end = min(end, wanted.before)
        reading = Found([], offset)
        while reading.next_offset < end and len(reading.records) < wanted.limit and not self._budget.is_spent:
            self._work.checkpoint()
            if not self._read_some(reading, end):
                break
        return reading

    def _read_some(self, reading: Found, end: int) -> bool:
        """Some batches. False at the end of the log."""
        log, offset = self._log, reading.next_offset
        try:
            # At a last stable offset a batch ends; `before` may be within one.
            read = log.read(offset, _CHUNK_BYTES, up_to=log.last_stable_offset if self._wanted.committed else None)
        except OffsetOutOfRange:  # it was deleted meanwhile
            reading.next_offset = max(offset, log.log_start_offset)
            return reading.next_offset > offset
        if not read.size:
            return False
        aborted = log.transactions.aborted(offset, read, log.last_stable_offset)
        try:
            for header, batch in self._batches(read.regions):
                self._budget.stored_bytes -= header.size
                if header.next_offset > offset:
                    self._open(header, batch, aborted, reading, end)
                if reading.next_offset >= end or len(reading.records) >= self._wanted.limit or self._budget.is_spent:
                    return True
        except OSError as error:
            raise log.state.failed("records could not be read", error) from error
        return reading.next_offset > offset

    def _batches(self, regions: list[FileRegion]) -> Iterator[tuple[BatchHeader, bytes | None]]:
        """Each whole batch; None for a batch that is too large to be opened. Raises OSError."""
        for region in regions:
            if region.size > _BATCH_MAX_BYTES:  # a region that is larger than a chunk is a single batch
                yield _header_of(region), None
                continue
            data = region.file.pread(region.size, region.offset)
            position = 0
            while position < len(data):
                try:
                    header = read_header(data, position)
                except ProtocolError as error:
                    raise self._log.state.go_offline(f"a record batch is damaged: {error}") from error
                yield header, data[position : position + header.size]
                position += header.size

    def _open(
        self, header: BatchHeader, batch: bytes | None, aborted: list[AbortedTransaction], reading: Found, end: int
    ) -> None:
        """Add the wanted records of a batch that lie before ``end``."""
        of_batch = self._describe(header, aborted)
        start = reading.next_offset
        reading.next_offset = header.next_offset
        if self._wanted.committed and (header.is_control or of_batch["transaction"] in ("open", "aborted")):
            return
        try:
            if batch is None:
                raise ProtocolError(f"a batch of {header.size} bytes")
            self._add_records(header, batch, of_batch, range(start, end), reading)
        except ProtocolError as error:
            if self._wanted.key is None:
                reading.records.append(
                    _unreadable(self._log.partition, max(start, header.base_offset), header, of_batch, error)
                )

    def _add_records(
        self, header: BatchHeader, batch: bytes, of_batch: Mapping[str, Any], offsets: range, reading: Found
    ) -> None:
        def look(data: bytes) -> None:
            self._budget.opened_bytes -= len(data)
            for record in read_records(header, data, offsets.start):
                if record.offset < offsets.start:
                    continue  # offsets in a batch ascend, unless a producer has written them otherwise
                if record.offset >= offsets.stop:
                    reading.next_offset = offsets.stop
                    return
                if len(reading.records) >= self._wanted.limit or (self._looked_at and self._budget.is_spent):
                    reading.next_offset = record.offset
                    return
                self._looked_at = True
                self._budget.records -= 1 + len(record.headers)
                self._add(record, header, of_batch, reading)

        log = self._log
        if header.is_entry:
            translated = inspection.as_records(memoryview(batch), header, log.around.large_entries)
            if translated is None:
                raise ProtocolError("an entry that cannot be taken apart")
            header, batch = read_header(translated), bytes(translated)
        inspection.inspect(batch, header, log.config, log.around.large_shown, look)

    def _add(self, record: Record, header: BatchHeader, of_batch: Mapping[str, Any], reading: Found) -> None:
        if header.is_control:
            marker = parse_marker(record.key, record.value)
            kind = "control" if marker is None else "commit" if marker.commit else "abort"
            if self._wanted.key is not None:
                return
            record = record._replace(key=None, value=None)
            of_batch = {**of_batch, "marker": kind}
        elif self._wanted.key is not None and record.key != self._wanted.key:
            return
        row = shown(self._log.partition, record, of_batch)
        self._budget.shown_bytes -= 200 + 2 * min(row["size"], 2 * PART_MAX_BYTES)
        reading.records.append(row)

    def _describe(self, header: BatchHeader, aborted: list[AbortedTransaction]) -> dict[str, Any]:
        """The fields that all records of a batch share."""
        state = None
        if header.is_transactional and not header.is_control:
            state = "committed"
            if header.base_offset >= self._log.last_stable_offset:
                state = "open"
            elif any(
                each.producer_id == header.producer_id and each.first_offset <= header.base_offset < each.last_offset
                for each in aborted
            ):
                state = "aborted"
        return {
            "timestamp_type": "append" if header.is_log_append_time else "create",
            "compression": CODEC_NAMES[header.compression] if header.compression < len(CODEC_NAMES) else "unknown",
            "transactional": header.is_transactional,
            "transaction": state,
            "marker": None,
            "pulsar": header.is_entry,
            "unreadable": None,
        }


def _header_of(region: FileRegion) -> BatchHeader:
    """The header of a region's first batch. Raises OSError."""
    return BatchHeader._make(HEADER.unpack(region.file.pread(HEADER_SIZE, region.offset)))


def _unreadable(
    partition: int, offset: int, header: BatchHeader, of_batch: Mapping[str, Any], error: ProtocolError
) -> dict[str, Any]:
    """Stands for the records of a batch that could not be read."""
    record = Record(offset, header.max_timestamp, None, None, [])
    reason = f"{header.record_count} records that cannot be shown: {error}"[:300]
    return {**shown(partition, record, of_batch), "size": header.size, "unreadable": reason}
