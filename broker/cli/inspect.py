"""`broker inspect`: shows and verifies segment files. It needs no running broker, and writes nothing without --repair --apply."""

import os
import sys
from collections.abc import Iterator

import attrs
import click

from broker.cli.client import format_time
from broker.cli.output import json_line, json_text, output_option, print_object, print_table, say
from broker.cli.segment_check import OnBatch, Segment, check_segment
from broker.errors import BrokerError
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import BatchHeader
from protocol.kafka.records.markers import read_marker
from protocol.kafka.records.records import records
from protocol.translation.to_kafka import OpenedEntry, open_entry

_CODECS = ("none", "gzip", "snappy", "lz4", "zstd", "codec 5", "codec 6", "codec 7")
# For each segment; otherwise a file of zeros would fill the screen.
_PROBLEMS_SHOWN = 20


@click.command()
@click.argument("path", metavar="DIR", type=click.Path(exists=True))
@click.option("--batches", is_flag=True, help="Print the header of each record batch.")
@click.option("--records", "with_records", is_flag=True, help="Also print the records, as JSON.")
@click.option("--repair", is_flag=True, help="Report what keeps partitions offline and what a repair would lose.")
@click.option("--apply", "applied", is_flag=True, help="With --repair: carry the repair out.")
@click.option(
    "--partition", "partitions", multiple=True, metavar="TOPIC-N", help="With --repair: only this one; can be repeated."
)
@output_option
def command(
    path: str,
    batches: bool,
    with_records: bool,
    repair: bool,
    applied: bool,
    partitions: tuple[str, ...],
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
    """
    if repair:
        from broker.cli.repair import repair as repair_directory

        repair_directory(os.path.abspath(path), partitions, applied, as_json)
        return
    if applied or partitions:
        raise click.UsageError("--apply and --partition go with --repair.")
    if as_json and (batches or with_records):
        raise click.UsageError("--output shows segments: leave it out, or --batches and --records.")
    found: list[Segment] = []
    transactions = _Transactions()
    for log_path in _segments(path):
        transactions.directory = os.path.dirname(os.path.abspath(log_path))
        if batches or with_records:
            say(f"{log_path}:")
            transactions.then = _Printer(with_records)
        found.append(check_segment(log_path, transactions, with_records))
    if not found:
        raise BrokerError(f"There are no segment files (<20 digits>.log) in {path}.")
    if not (batches or with_records):
        _print_summary(found, as_json)
    sys.stdout.flush()
    for line in transactions.open():
        say(line, err=as_json)
    damaged = [segment for segment in found if segment.problems]
    for segment in damaged:
        for problem in segment.problems[:_PROBLEMS_SHOWN]:
            say(f"{segment.path}: {problem}", err=True)
        if len(segment.problems) > _PROBLEMS_SHOWN:
            say(f"{segment.path}: and {len(segment.problems) - _PROBLEMS_SHOWN} more like these", err=True)
    if damaged:
        raise BrokerError(f"Of {len(found)} segments {len(damaged)} cannot be trusted.")


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


def _print_summary(found: list[Segment], as_json: bool) -> None:
    if as_json:
        for segment in found:
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
        for segment in found
    ]
    print_table(("partition", "from", "to", "batches", "records", "bytes", "newest (UTC)", ""), rows)


def _partition(segment: Segment) -> str:
    return os.path.basename(os.path.dirname(os.path.abspath(segment.path)))


class _Transactions:
    """The transactions that have no marker yet, by partition."""

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
