"""`broker inspect`: shows and verifies segment files. It needs no running broker, and writes nothing without --repair --apply.

`check_segment` reads a segment's files from beginning to end and lists their errors. A segment has a ``.log`` with
record batches, and two indexes, which may be behind the log but must not be wrong. An entry of the offset index
(relative offset and position, 4 bytes each) points at a batch that begins at or before that offset. An entry of the
time index (timestamp in 8 bytes, relative offset in 4) says that no record up to that offset is newer. Memory is
bounded by the indexes and one window of the log.
"""

import os
import struct
import sys
from collections.abc import Callable, Iterator

import attrs
import click

from broker.cli.client import format_time
from broker.cli.output import json_line, json_text, output_option, print_object, print_table, say
from broker.errors import BrokerError
from broker.runtime.disk import File, SystemDisk
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, check_crc, read_header
from protocol.kafka.records.records import read_marker, records
from protocol.translation.to_kafka import OpenedEntry, open_entry

_WINDOW_BYTES = 4 * 1024 * 1024
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
# Indexes store offsets as 32 bits, relative to the first offset of the segment.
_RELATIVE_MAX = 2**31 - 1
_LENGTH = struct.Struct(">qi")

# Called for each valid batch with its header, its position, and its bytes.
OnBatch = Callable[[BatchHeader, int, memoryview], None]


@attrs.define
class Segment:
    """The contents of one segment, and the errors in it."""

    path: str
    base_offset: int
    size: int = 0
    batches: int = 0
    records: int = 0
    next_offset: int = 0
    max_timestamp: int = -1
    index_entries: int = 0
    time_index_entries: int = 0
    problems: list[str] = attrs.field(factory=list)


def check_segment(path: str, on_batch: OnBatch | None = None, with_records: bool = False) -> Segment:
    """Check the .log file ``path`` and the indexes beside it. ``with_records`` also reads every record.

    Raises OSError if a file cannot be read.
    """
    disk = SystemDisk()
    stem = path.removesuffix(".log")
    segment = Segment(path, base_offset=int(stem.rsplit("/", 1)[-1]))
    segment.next_offset = segment.base_offset
    offset_index = _Entries(disk, stem + ".index", _OFFSET_ENTRY, segment)
    time_index = _Entries(disk, stem + ".timeindex", _TIME_ENTRY, segment)
    segment.index_entries, segment.time_index_entries = len(offset_index.entries), len(time_index.entries)
    offsets = _OffsetIndexCheck(segment, [(offset, position) for offset, position in offset_index.entries])
    times = _TimeIndexCheck(segment, [(timestamp, offset) for timestamp, offset in time_index.entries])

    file = disk.open(path, read_only=True)
    try:
        segment.size = file.size()
        for position, header, data in _batches(file, segment):
            segment.batches += 1
            # An entry counts as one record, whatever the number of its messages.
            segment.records += header.last_offset_delta + 1 if header.is_entry else header.record_count
            segment.next_offset = header.next_offset
            segment.max_timestamp = max(segment.max_timestamp, header.max_timestamp)
            offsets.batch(position, header)
            times.batch(header)
            if with_records and not _readable(segment, position, header, data):
                continue
            if on_batch is not None:
                on_batch(header, position, data)
    finally:
        file.close()
    offsets.end()
    times.end()
    return segment


def _batches(file: File, segment: Segment) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Every valid batch: position in the file, header, and bytes. Ends at the first batch whose end is unknown."""
    window, start, position = memoryview(b""), 0, 0
    while position < segment.size:
        at = position - start
        size = _batch_size(window, at)
        if size is None or at + size > len(window):
            # A size is not trusted unless it fits into the file.
            left = segment.size - position
            want = _WINDOW_BYTES if size is None or size > left else max(size, _WINDOW_BYTES)
            window, start, at = memoryview(file.pread(want, position)), position, 0
            size = _batch_size(window, at)
        try:
            header = read_header(window, at)
        except ProtocolError as error:
            rest = segment.size - position
            if _all_zero(file, position, segment.size):
                return  # preallocated space
            if size is None or size > rest:
                reason = f"the last {rest} bytes are not a whole batch (a broker cuts them off when it starts)"
                segment.problems.append(f"torn tail at {position}: {reason}")
            else:
                segment.problems.append(
                    f"corrupt at {position}: {error}; the {rest} bytes from there on are unreadable"
                )
            return
        data = window[at : at + header.size]
        sound = True
        try:
            check_crc(data, 0, header)
        except ProtocolError as error:
            segment.problems.append(f"corrupt at {position} (offset {header.base_offset}): {error}")
            sound = False
        if header.base_offset < segment.next_offset or header.last_offset_delta < 0:
            expected = f"{segment.next_offset} or more"
        elif header.last_offset - segment.base_offset > _RELATIVE_MAX:
            expected = f"{segment.base_offset + _RELATIVE_MAX} or less"
        else:
            expected = ""
        if expected:
            segment.problems.append(f"corrupt at {position}: offset {header.base_offset} where {expected} was expected")
            sound = False
        if sound:
            yield position, header, data
        position += header.size


def _batch_size(window: memoryview, at: int) -> int | None:
    """The size that the batch at ``at`` states, or None if the window ends before it."""
    if at + HEADER_SIZE > len(window):
        return None
    _, length = _LENGTH.unpack_from(window, at)
    return LOG_OVERHEAD + int(length)


def _all_zero(file: File, position: int, end: int) -> bool:
    while position < end:
        piece = file.pread(_WINDOW_BYTES, position)
        if not piece or piece.strip(b"\0"):
            return False
        position += len(piece)
    return True


def _readable(segment: Segment, position: int, header: BatchHeader, data: memoryview) -> bool:
    """True if every record of the batch can be read and their offsets ascend within the batch."""
    last = header.base_offset - 1
    try:
        for record in records(data):
            if not last < record.offset <= header.last_offset:
                raise ProtocolError(f"a record with offset {record.offset} after {last}")
            last = record.offset
    except ProtocolError as error:
        segment.problems.append(f"corrupt at {position} (offset {header.base_offset}): {error}")
        return False
    return True


class _Entries:
    """An index file, as tuples. A missing file is no error, because it is rebuilt. Trailing zeros are space that Kafka
    preallocates.
    """

    def __init__(self, disk: SystemDisk, path: str, entry: struct.Struct, segment: Segment) -> None:
        self.entries: list[tuple[int, int]] = []
        if not disk.exists(path):
            return
        file = disk.open(path, read_only=True)
        try:
            data = file.pread(file.size(), 0)
        finally:
            file.close()
        if len(data) % entry.size:
            segment.problems.append(f"{_name(path)}: {len(data)} bytes are not a whole number of entries")
            data = data[: len(data) - len(data) % entry.size]
        self.entries = list(entry.iter_unpack(data))
        while self.entries and self.entries[-1] == (0, 0):
            self.entries.pop()
        for column, name in enumerate(("offset", "position") if entry is _OFFSET_ENTRY else ("timestamp", "offset")):
            values = [values[column] for values in self.entries]
            if values != sorted(values):
                segment.problems.append(f"{_name(path)}: entries do not ascend by {name}")


class _OffsetIndexCheck:
    """Compares the entries with the batches, in order."""

    def __init__(self, segment: Segment, entries: list[tuple[int, int]]) -> None:
        self._segment = segment
        self._entries = entries
        self._next = 0

    def batch(self, position: int, header: BatchHeader) -> None:
        while self._next < len(self._entries) and self._entries[self._next][1] <= position:
            relative, pointed = self._entries[self._next]
            offset = self._segment.base_offset + relative
            if pointed != position:
                self._segment.problems.append(
                    f"offset index: offset {offset} points at {pointed}, where no batch begins"
                )
            elif offset < header.base_offset:
                self._segment.problems.append(
                    f"offset index: offset {offset} points past itself, at the batch of {header.base_offset}"
                )
            self._next += 1

    def end(self) -> None:
        left = len(self._entries) - self._next
        if left:
            self._segment.problems.append(f"offset index: {left} entries point past the last batch")


class _TimeIndexCheck:
    """Compares the entries with the largest timestamp so far, batch by batch."""

    def __init__(self, segment: Segment, entries: list[tuple[int, int]]) -> None:
        self._segment = segment
        self._entries = entries
        self._next = 0
        self._newest = -1

    def batch(self, header: BatchHeader) -> None:
        # All batches up to the offsets of these entries have been read.
        self._check_before(header.base_offset)
        self._newest = max(self._newest, header.max_timestamp)

    def end(self) -> None:
        self._check_before(self._segment.next_offset)
        left = len(self._entries) - self._next
        if left:
            self._segment.problems.append(f"time index: {left} entries for offsets past the last batch")

    def _check_before(self, end: int) -> None:
        while self._next < len(self._entries) and self._segment.base_offset + self._entries[self._next][1] < end:
            timestamp, relative = self._entries[self._next]
            if timestamp < self._newest:
                offset = self._segment.base_offset + relative
                self._segment.problems.append(
                    f"time index: up to offset {offset} nothing is said to be newer than {timestamp}, but {self._newest} is"
                )
            self._next += 1


def _name(path: str) -> str:
    return path.rsplit("/", 1)[-1]


_CODECS = ("none", "gzip", "snappy", "lz4", "zstd", "codec 5", "codec 6", "codec 7")
# The limit of each segment; otherwise a file of zeros would fill the screen.
_PROBLEMS_SHOWN = 20


@click.command()
@click.argument("path", metavar="[DIR]", required=False, type=click.Path(exists=True))
@click.option("--batches", is_flag=True, help="Print the header of each record batch.")
@click.option("--records", "with_records", is_flag=True, help="Also print the records, as JSON.")
@click.option("--repair", is_flag=True, help="Report what keeps partitions offline and what a repair would lose.")
@click.option("--apply", "applied", is_flag=True, help="With --repair: carry the repair out.")
@click.option(
    "--partition", "partitions", multiple=True, metavar="TOPIC-N", help="With --repair: only this one; can be repeated."
)
@click.option(
    "--objects", metavar="URL", help="Count the objects in this store instead: s3://bucket/prefix, file:///dir, ..."
)
@click.option(
    "--catalogue",
    metavar="URL",
    help="With --objects: list the objects that this catalogue does not need. A stopped broker's data directory, or"
    " postgresql://user@host:port/database (with a password better in BROKER_CATALOGUE, and - here).",
)
@click.option("--schema", metavar="NAME", help="Of the tables in that database.  [default: broker]")
@click.option("--delete-orphans", is_flag=True, help="With --catalogue: delete these objects. Look at the list first.")
@output_option
def command(
    path: str | None,
    batches: bool,
    with_records: bool,
    repair: bool,
    applied: bool,
    partitions: tuple[str, ...],
    objects: str | None,
    catalogue: str | None,
    schema: str | None,
    delete_orphans: bool,
    as_json: bool,
) -> None:
    """Show and verify segment files, without a running broker.

    DIR is a data directory, the directory of one partition, or one .log file. It checks the header and checksum of every
    batch, the order of the offsets, the entries of the indexes, and with --records every record. What a Pulsar producer
    has sent is shown as an entry, and its messages as records. Exits with 1 if it finds an error. While a broker writes to
    DIR, the end of a log may look torn.

    With --repair, DIR is a data directory that no broker uses. What is damaged is named, with the offsets that are lost.
    --apply takes the damaged bytes out and keeps them aside, makes indexes again, and writes down that the loss is accepted, so
    that the broker serves the rest. Logs without damage are never touched.

    --objects counts what is in an object store, and its bytes, by the first part of the keys. With --catalogue it also lists
    what was left over there: segments that no file is in, whose upload began more than a day ago, and objects of the journal that
    no row has any more. --delete-orphans deletes them. The broker may run, unless the catalogue is a data directory.
    """
    if (path is None) == (objects is None):
        raise click.UsageError("Name DIR or --objects.")
    if objects is None and (catalogue is not None or delete_orphans):
        raise click.UsageError("--catalogue and --delete-orphans go with --objects.")
    if objects is not None:
        from broker.cli.inspect_objects import show_objects, show_orphans

        if batches or with_records or repair or applied or partitions:
            raise click.UsageError("--objects goes without the options of segments.")
        if delete_orphans and catalogue is None:
            raise click.UsageError("--delete-orphans goes with --catalogue.")
        if catalogue == "-":
            catalogue = os.environ.get("BROKER_CATALOGUE", "")
            schema = schema or os.environ.get("BROKER_CATALOGUE_SCHEMA")
        if not delete_orphans:
            show_objects(objects, as_json)
        if catalogue is not None:
            show_orphans(objects, catalogue, schema or "broker", delete_orphans, as_json)
        return
    assert path is not None
    if repair:
        from broker.cli.repair import repair as repair_directory

        repair_directory(os.path.abspath(path), partitions, applied, as_json)
        return
    if applied or partitions:
        raise click.UsageError("--apply and --partition go with --repair.")
    if as_json and (batches or with_records):
        raise click.UsageError("--output shows segments: leave it out, or --batches and --records.")
    segments: list[Segment] = []
    transactions = _Transactions()
    for log_path in _segments(path):
        transactions.directory = os.path.dirname(os.path.abspath(log_path))
        if batches or with_records:
            say(f"{log_path}:")
            transactions.then = _Printer(with_records)
        segments.append(check_segment(log_path, transactions, with_records))
    if not segments:
        raise BrokerError(f"There are no segment files (<20 digits>.log) in {path}.")
    if not (batches or with_records):
        _print_summary(segments, as_json)
    sys.stdout.flush()
    for line in transactions.open():
        say(line, err=as_json)
    damaged = [segment for segment in segments if segment.problems]
    for segment in damaged:
        for problem in segment.problems[:_PROBLEMS_SHOWN]:
            say(f"{segment.path}: {problem}", err=True)
        if len(segment.problems) > _PROBLEMS_SHOWN:
            say(f"{segment.path}: and {len(segment.problems) - _PROBLEMS_SHOWN} more like these", err=True)
    if damaged:
        raise BrokerError(f"Of {len(segments)} segments {len(damaged)} cannot be trusted.")


def _segments(path: str) -> Iterator[str]:
    """The log files under ``path``, partition by partition, oldest segment first."""
    if os.path.isfile(path):
        if not _is_segment(os.path.basename(path)):
            raise BrokerError(f"{path} is not a segment file: those are named <20 digits>.log.")
        yield path
        return
    for directory, directories, files in os.walk(path):
        directories.sort()
        yield from (os.path.join(directory, name) for name in sorted(files) if _is_segment(name))


def _is_segment(name: str) -> bool:
    return len(name) == 24 and name.endswith(".log") and name[:20].isdigit()


def _control(data: memoryview) -> str:
    try:
        marker = read_marker(data)
    except ProtocolError as error:
        return f"control: {error}"
    if marker is None:
        return "control"
    return f"control: {'commit' if marker.commit else 'abort'} by coordinator epoch {marker.coordinator_epoch}"


def _entry(entry: OpenedEntry) -> str:
    described = entry.described()
    codec = "" if described.compression == "none" else f", {described.compression}"
    closed = "" if entry.readable else ", encrypted or a chunk"
    producer = json_text(described.producer_name)
    return f"entry of {entry.messages} messages from {producer!r} sequence {described.sequence_id}{codec}{closed}"


def _print_summary(segments: list[Segment], as_json: bool) -> None:
    if as_json:
        for segment in segments:
            print_object({"partition": _partition(segment), **attrs.asdict(segment)})
        return
    rows = [
        (
            _partition(segment),
            segment.base_offset,
            segment.next_offset,
            segment.batches,
            segment.records,
            segment.size,
            format_time(segment.max_timestamp)[:16],
            f"{len(segment.problems)} problems" if segment.problems else "ok",
        )
        for segment in segments
    ]
    print_table(("partition", "from", "to", "batches", "records", "bytes", "newest (UTC)", ""), rows)


def _partition(segment: Segment) -> str:
    return os.path.basename(os.path.dirname(os.path.abspath(segment.path)))


class _Transactions:
    """The open transactions, by partition."""

    def __init__(self) -> None:
        self.directory = ""
        self.then: OnBatch | None = None  # called with every batch
        self._open: dict[tuple[str, int], tuple[int, int]] = {}  # (directory, producer id) -> epoch, first offset

    def __call__(self, header: BatchHeader, position: int, data: memoryview) -> None:
        if self.then is not None:
            self.then(header, position, data)
        if not header.is_transactional:
            return
        key = (self.directory, header.producer_id)
        if header.is_control:
            self._open.pop(key, None)
        else:
            self._open.setdefault(key, (header.producer_epoch, header.base_offset))

    def open(self) -> Iterator[str]:
        for (directory, producer_id), (epoch, offset) in sorted(self._open.items()):
            name = os.path.basename(directory)
            yield f"{name}: producer {producer_id} epoch {epoch} has an open transaction from offset {offset} on"


class _Printer:
    """Prints one line for each batch header, followed by the records."""

    def __init__(self, with_records: bool) -> None:
        self._with_records = with_records

    def __call__(self, header: BatchHeader, position: int, data: memoryview) -> None:
        parts = [
            f"offsets {header.base_offset}-{header.last_offset}",
            f"at {position}",
            f"{header.size} bytes",
            f"{header.record_count} records",
            f"{'append' if header.is_log_append_time else 'create'} time {format_time(header.max_timestamp)}",
            f"codec {_CODECS[header.compression]}",
            f"leader epoch {header.partition_leader_epoch}",
        ]
        if header.has_producer:
            parts.append(f"producer {header.producer_id} epoch {header.producer_epoch} sequence {header.base_sequence}")
        if header.is_control:
            parts.append(_control(data))
        elif header.is_transactional:
            parts.append("transactional")
        entry = open_entry(data, header) if header.is_entry else None
        if entry is not None:
            parts.append(_entry(entry))
        out = sys.stdout.buffer
        out.write(f"  {', '.join(parts)}\n".encode())
        if self._with_records:
            for record in records(data if entry is None else entry.records()):
                fields = {
                    "offset": record.offset,
                    "time": format_time(record.timestamp),
                    "key": json_text(record.key),
                    "value": json_text(record.value),
                    "headers": [[name, json_text(value)] for name, value in record.headers],
                }
                out.write(b"    " + json_line(fields))
