"""`broker produce`: sends the lines of a file or of standard input to a topic, one record per line, with our own Kafka client.

What it has read when there is nothing more to read for the moment is sent and acknowledged before it waits, so that lines that
come slowly leave at once. The first Ctrl-C does the same and ends it.

Sends the lines of `produce` with our own client, and knows at every moment which of them the broker has.

Records without a key go to one partition after the other, a batch to each; records with a key where Kafka's clients send them.
"""

import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, BinaryIO

import attrs
import click

from broker.cli import completion
from broker.cli.broker_options import Target, broker_options
from broker.cli.client import client_errors, unescape
from broker.cli.output import Interrupts, json_line, say
from broker.cli.record_format import parse_template
from broker.cli.record_input import (
    BadLine,
    Common,
    LineSource,
    Parsed,
    Parser,
    formatted_lines,
    json_lines,
    keyed_lines,
    whole_lines,
)
from broker.client.kafka.cluster import Cluster
from broker.client.kafka.errors import BrokerAnswerError, KafkaClientError
from broker.client.kafka.producer import Producer
from broker.client.kafka.record_encoder import Records, by_key, encode
from broker.errors import BrokerError
from broker.runtime.entropy import SystemEntropy
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.compression import CODEC_NAMES


class Ledger:
    """Which lines went to which partition and are not acknowledged. Acknowledgements come in the order of sending."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[Sequence[int]]] = {}
        self._settled: dict[int, int] = {}  # records of each partition that have left `_waiting`

    def sent(self, partition: int, lines: Sequence[int]) -> None:
        """``lines``: their numbers, ascending."""
        self._waiting.setdefault(partition, deque()).append(lines)

    def acknowledged(self, partition: int, count: int) -> None:
        """``count`` records of the partition are acknowledged, from the first one on."""
        waiting = self._waiting.get(partition)
        while waiting and self._settled.get(partition, 0) + len(waiting[0]) <= count:
            self._settled[partition] = self._settled.get(partition, 0) + len(waiting.popleft())

    def first_missing(self, partition: int, count: int) -> int | None:
        """The number of the first line of the partition that is not among its first ``count`` records."""
        self.acknowledged(partition, count)
        waiting = self._waiting.get(partition)
        return waiting[0][count - self._settled.get(partition, 0)] if waiting else None


class RecordSender:
    """``lines`` counts what was given to it; ``acknowledged`` what the broker has confirmed, with acks=0 what was sent."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        parser: Parser,
        *,
        partition: int | None,
        acks: str,
        codec: str,
        rotation: int = 0,
    ) -> None:
        self.lines = 0
        self.bytes = 0
        self._topic = topic
        self._clock = cluster.clock
        self._batch_bytes = cluster.config.batch_size
        self._parser = parser
        self._codec = CODEC_NAMES.index(codec)
        self._confirms = acks != "0"
        self._fixed = partition
        # Kafka numbers the partitions of a topic from 0 on.
        self._partitions = _partitions(cluster, topic)
        if partition is not None and partition >= self._partitions:
            raise BrokerError(f"Topic {topic!r} has no partition {partition}: it has 0 to {self._partitions - 1}.")
        self._by_key: Callable[[bytes], int] = by_key(self._partitions)
        self._next = rotation % self._partitions
        self._producer: Producer = cluster.producer(acks=acks)
        self._ledger = Ledger()

    @property
    def acknowledged(self) -> int:
        return sum(self._producer.acknowledged.values()) if self._confirms else self.lines

    def send(self, lines: list[bytes]) -> None:
        """Raises BrokerError for the first line that cannot be read or is refused; those before it are sent."""
        first = self.lines + 1
        try:
            parsed = self._parser(lines, self._clock.time_ms())
            groups = self._groups(parsed)
        except BadLine as bad:
            if bad.index:
                self.send(lines[: bad.index])
            self.flush()
            raise BrokerError(f"Line {first + bad.index} {bad.why}. {self._so_far()}") from bad
        self.lines += len(lines)
        self.bytes += sum(map(len, lines)) + len(lines)
        for partition, rows in groups.items():
            records = parsed.records if isinstance(rows, range) else parsed.records.take(rows)
            self._send_to(partition, records, [first + row for row in rows])

    def flush(self) -> None:
        """Returns when everything that was sent is acknowledged."""
        self._guarded(self._producer.flush)
        self._settle()

    def close(self) -> None:
        self._producer.close()

    def _groups(self, parsed: Parsed) -> dict[int, Sequence[int]]:
        """Partition -> rows; a range stands for all of them. Raises BadLine."""
        records, named = parsed.records, parsed.partitions
        if self._fixed is not None:
            return {self._fixed: range(len(records))}
        if records.keys is None and named is None:
            return {self._turn(): range(len(records))}
        keys = records.keys if records.keys is not None else [None] * len(records)
        names = named if named is not None else [None] * len(records)
        without_key = self._turn()
        count, by_key = self._partitions, self._by_key
        rows: dict[int, list[int]] = {}
        for row, (key, name) in enumerate(zip(keys, names, strict=True)):
            if name is None:
                partition = without_key if key is None else by_key(key)
            elif name < count:
                partition = name
            else:
                raise BadLine(row, f"names partition {name}, but topic {self._topic!r} has 0 to {count - 1}")
            rows.setdefault(partition, []).append(row)
        return dict(rows)

    def _turn(self) -> int:
        self._next, turn = (self._next + 1) % self._partitions, self._next
        return turn

    def _send_to(self, partition: int, records: Records, lines: Sequence[int]) -> None:
        self._ledger.sent(partition, lines)
        most = min(self._batch_bytes, self._producer.largest(self._topic))
        for batch, count in encode(records, most, now_ms=self._clock.time_ms(), codec=self._codec):
            self._guarded(partial(self._producer.send, self._topic, partition, batch, count))
        self._settle()

    def _settle(self) -> None:
        for (_, partition), count in self._producer.acknowledged.items():
            self._ledger.acknowledged(partition, count)

    def _guarded(self, step: Callable[[], Any]) -> None:
        """Names the line that was refused."""
        try:
            step()
        except KafkaClientError as error:
            reason = str(error).rstrip(".")
            refused = self._producer.refused
            line = None
            if refused is not None:
                line = self._ledger.first_missing(refused[1], self._producer.acknowledged.get(refused, 0))
            what = f"Line {line} was not taken: {reason}" if line is not None else reason
            raise BrokerError(f"{what}. {self._so_far()}") from error

    def _so_far(self) -> str:
        if not self._confirms:
            return f"Lines that were sent before it: {self.lines}; with --acks 0 nobody knows which of them are stored."
        return f"Lines that are stored: {self.acknowledged} of the {self.lines} that were sent."


def _partitions(cluster: Cluster, topic: str) -> int:
    try:
        return len(cluster.make_topics([topic])[topic].partitions)
    except BrokerAnswerError as error:
        if error.code != ErrorCode.invalid_topic_exception:
            raise
        raise BrokerError(
            f"{topic!r} is no legal name of a topic: use at most 249 letters, digits, dots, underscores and hyphens."
        ) from error


_DELIVERY_TIMEOUT_MS = 30_000
# The broker enforces the topic's limit, and its error says so.
_REQUEST_BYTES_MAX = 110 * 1024 * 1024


@click.command()
@click.argument("topic", shell_complete=completion.topics)
@click.argument("file", required=False, type=click.File("rb"), default="-")
@broker_options
@click.option(
    "--key-separator", "-K", metavar="TEXT", help=r"Lines are KEY<TEXT>VALUE; \t is a tab.  [default: no keys]"
)
@click.option(
    "--format",
    "-F",
    "template",
    metavar="FORMAT",
    help="What a line looks like, in tokens of `broker consume --format`, e.g. '%k %v'.",
)
@click.option("--json", "as_json", is_flag=True, help="Lines are JSON objects, as `broker consume --json` prints them.")
@click.option("--key", "-k", metavar="TEXT", help="A key for every record that has none of its own.")
@click.option("--header", "-H", "headers", metavar="NAME=VALUE", multiple=True, help="A header for every record.")
@click.option(
    "--partition", "-p", type=click.IntRange(min=0), help="The partition.  [default: as the line says, by key, or any]"
)
@click.option(
    "--tombstones", "-Z", is_flag=True, help="An empty value is null, which deletes its key from a compacted topic."
)
@click.option(
    "--compression",
    "-z",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="none",
    show_default=True,
    help="Codec of the batches.",
)
@click.option(
    "--acks",
    type=click.Choice(["0", "1", "all"]),
    default="all",
    show_default=True,
    help="When the broker acknowledges a record. all: when it is on disk; 1: when the broker has it; 0: never.",
)
@click.option("--quiet", "-q", is_flag=True, help="Print no progress bar and no count.")
@click.option(
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="json: the count as an object on standard output.",
)
def command(
    topic: str,
    file: BinaryIO,
    target: Target,
    key_separator: str | None,
    template: str | None,
    as_json: bool,
    key: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    tombstones: bool,
    compression: str,
    acks: str,
    quiet: bool,
    output: str,
) -> None:
    """Send the lines of FILE, or of standard input, to TOPIC, one record per line.

    Stops at the first line that cannot be read or that the broker refuses, and names it. Ctrl-C sends what has been read and
    says how much that was; a second one ends at once. If the topic does not exist, the broker creates it (unless
    auto_create_topics_enable is off).
    """
    common = Common(_typed(key), tuple(_header(pair) for pair in headers), tombstones)
    parser = _parser(key_separator, template, as_json, common)

    from broker.client.kafka.cluster import Cluster

    config = attrs.evolve(
        target.config("produce"), delivery_timeout_ms=_DELIVERY_TIMEOUT_MS, max_request_size=_REQUEST_BYTES_MAX
    )
    with ExitStack() as stack:
        stack.enter_context(client_errors(target))
        cluster = stack.enter_context(Cluster(config))
        sender = RecordSender(
            cluster,
            topic,
            parser,
            partition=partition,
            acks=acks,
            codec=compression,
            rotation=SystemEntropy.bytes(1)[0],
        )
        stack.callback(sender.close)
        try:
            interrupted = _send_all(sender, file, quiet)
        except KeyboardInterrupt:
            _report(topic, sender, output, quiet, "interrupted: at least ")
            raise
        _report(topic, sender, output, quiet, "interrupted: " if interrupted else "")
    if interrupted:
        raise KeyboardInterrupt


def _send_all(sender: "RecordSender", file: BinaryIO, quiet: bool) -> bool:
    """Returns whether Ctrl-C has ended it. A second Ctrl-C raises KeyboardInterrupt."""
    source = LineSource(file.fileno())
    with Interrupts() as interrupts, _progress(file, quiet) as advance:
        chunks = source.chunks()
        shown = 0
        while not interrupts.requested:
            try:
                with interrupts.allowed():
                    lines = next(chunks, None)
            except KeyboardInterrupt:
                lines = source.whole_lines()
            if lines is None:
                break
            if lines:
                sender.send(lines)
            else:
                sender.flush()
            shown, size = sender.bytes, sender.bytes - shown
            advance(size)
        sender.flush()
        return interrupts.requested


def _report(topic: str, sender: "RecordSender", output: str, quiet: bool, before: str) -> None:
    if output == "json":
        click.echo(json_line({"topic": topic, "records": sender.acknowledged, "bytes": sender.bytes}), nl=False)
    elif not quiet:
        records = f"{sender.acknowledged} record{'s' * (sender.acknowledged != 1)}"
        say(f"{before}{records} sent to {topic}", err=True)


def _parser(separator: str | None, template: str | None, as_json: bool, common: Common) -> Parser:
    if (separator is not None) + (template is not None) + as_json > 1:
        raise click.UsageError("Use only one of --key-separator, --format and --json.")
    if as_json:
        return json_lines(common)
    if template is not None:
        return formatted_lines(parse_template(template), common)
    if separator:
        return keyed_lines(unescape(separator), common)
    return whole_lines(common)


def _typed(text: str | None) -> bytes | None:
    """An argument as it was typed, also where it is no UTF-8."""
    return None if text is None else os.fsencode(text)


def _header(pair: str) -> tuple[bytes, bytes]:
    name, equals, value = pair.partition("=")
    if not equals:
        raise click.UsageError(f"Write --header {pair} as --header name=value.")
    return os.fsencode(name), os.fsencode(value)


@contextmanager
def _progress(source: BinaryIO, quiet: bool) -> "Iterator[Callable[[int], object]]":
    """A progress bar on standard error, if the input is a file and standard error is a terminal."""
    status = os.fstat(source.fileno())
    if quiet or not stat.S_ISREG(status.st_mode) or not sys.stderr.isatty():
        yield lambda _bytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=status.st_size - os.lseek(source.fileno(), 0, os.SEEK_CUR))
        yield lambda size: progress.advance(task, size)
