"""`broker consume`: prints the records of topics, one record per line.

Without a group and without --follow it reads every partition from a chosen position to where it ended at the start
(``read_to_end``). In a group it reads the partitions that it is assigned and commits what it has printed. It is a member of
the group, and follows several partitions at a time, by kafka-python.

`broker consume --share-group`: prints records as a member of a share group, and accepts what it has printed.

Reads topics for `consume` from a place to their present end, with our own Kafka client: partition after partition.

Where `consume` begins in a partition: an offset, a number of records before the end, or a time. Pure.

Tests: tests/cli/test_produce_consume.py.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import click

from broker.cli import completion
from broker.cli.broker_options import Target, broker_options
from broker.cli.client import (
    Moment,
    client_errors,
    client_settings,
    describe,
    no_topic,
    plain_errors,
    unescape,
)
from broker.cli.output import Interrupts, say
from broker.cli.record_format import Renderer, by_template, json_line, parse_template, text_line
from broker.client.kafka.cluster import Cluster
from broker.client.kafka.errors import CorruptRecordError
from broker.client.kafka.values import EARLIEST, LATEST, TopicPartition
from broker.errors import BrokerError
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import CONTROL, check_crc, read_header
from protocol.kafka.records.records import Record, records


@attrs.frozen
class Place:
    """One of them is set."""

    offset: int | None = None
    last: int | None = None
    timestamp_ms: int | None = None

    @classmethod
    def parse(cls, offset: str | None, timestamp_ms: int | None) -> "Place":
        """Raises click.UsageError."""
        if timestamp_ms is not None:
            return cls(timestamp_ms=timestamp_ms)
        if offset in (None, "beginning", "earliest"):
            return cls(offset=0)
        if offset in ("end", "latest"):
            return cls(last=0)
        try:
            number = int(offset)
        except ValueError:
            raise click.UsageError("Write --offset as beginning, end, a number, or -N for the last N.") from None
        return cls(last=-number) if offset.startswith("-") else cls(offset=number)

    def start(self, begin: int, end: int, at_time: int | None) -> int:
        """The offset in a partition from ``begin`` to ``end``. ``at_time``: the first record that is not before the time, if
        there is one."""
        if self.timestamp_ms is not None:
            start = end if at_time is None else at_time
        elif self.last is not None:
            start = end - self.last
        else:
            start = self.offset or 0
        return min(max(start, begin), end)


_FETCH_BYTES = 4 * 1024 * 1024


def read_to_end(
    cluster: Cluster, topics: Sequence[str], numbers: Sequence[int], place: Place
) -> Iterator[tuple[str, int, list[Record]]]:
    """Topic, partition, and the records of a batch. ``numbers``: only these partitions, if there are any. Raises BrokerError."""
    partitions = _partitions(cluster, topics, numbers)
    begins = cluster.offsets(dict.fromkeys(partitions, EARLIEST))
    ends = cluster.offsets(dict.fromkeys(partitions, LATEST))
    times = {}
    if place.timestamp_ms is not None:
        times = cluster.offsets(dict.fromkeys(partitions, place.timestamp_ms))
    for key in partitions:
        begin, end = begins[key] or 0, ends[key] or 0
        start = place.start(begin, end, times.get(key))
        if start < end:
            for batch in _batches(cluster, *key, start, end):
                yield *key, batch


def _partitions(cluster: Cluster, topics: Sequence[str], numbers: Sequence[int]) -> list[TopicPartition]:
    known = cluster.topics(topics)
    partitions: list[TopicPartition] = []
    for topic in topics:
        if topic not in known:
            raise no_topic(topic)
        existing = known[topic].partitions
        for number in numbers or existing:
            if number not in existing:
                raise BrokerError(f"Topic {topic!r} has no partition {number}: it has 0 to {max(existing)}.")
            partitions.append((topic, number))
    return list(dict.fromkeys(partitions))


def _batches(cluster: Cluster, topic: str, partition: int, start: int, end: int) -> Iterator[list[Record]]:
    with cluster.fetcher(topic, partition, start, end, max_bytes=_FETCH_BYTES) as fetcher:
        for fetched in fetcher:
            view, position = fetched.data, 0
            try:
                while position < len(view):
                    header = read_header(view, position)
                    check_crc(view, position, header)
                    # Markers of transactions are no records.
                    if not header.attributes & CONTROL:
                        batch = list(records(view, position))
                        if header.base_offset < start or header.last_offset >= end:
                            batch = [record for record in batch if start <= record.offset < end]
                        yield batch
                    position += header.size
            except ProtocolError as error:
                raise CorruptRecordError(
                    f"{topic}-{partition} cannot be read before offset {fetched.next_offset}: {error}."
                ) from None


# How long to wait for the group to assign something, and then, without --follow, for one more record.
_ASSIGNMENT_S = 60.0
_IDLE_S = 1.0

_POLL_S = 0.25
_CONSUME_SHARE_POLL_RECORDS = 500


def consume_shared(
    target: Target,
    group: str,
    topics: tuple[str, ...],
    render: Renderer,
    *,
    from_beginning: bool,
    follow: bool,
    limit: int | None,
) -> None:
    """Until Ctrl-C with ``follow``; otherwise until nothing more comes. Raises BrokerError."""
    from broker.client.kafka.share.share_consumer import ShareConsumer
    from broker.runtime.clock import SystemClock

    out, clock = sys.stdout.buffer, SystemClock()
    left = limit
    with client_errors(target):
        if from_beginning:
            _start_at_the_beginning(target, group)
        # Each poll is accepted by the commit after it, so that everything accepted has been printed.
        with ShareConsumer(target.config("consume"), group, topics) as consumer:
            last_at = clock.monotonic()
            while left is None or left > 0:
                records = consumer.poll(_POLL_S, min(left or _CONSUME_SHARE_POLL_RECORDS, _CONSUME_SHARE_POLL_RECORDS))
                now = clock.monotonic()
                if records:
                    out.write(b"".join([render(record.topic, record.partition, record) for record in records]))
                    out.flush()
                    consumer.commit()
                    last_at = now
                    if left is not None:
                        left -= len(records)
                elif not follow and now - last_at >= (_IDLE_S if consumer.has_fetched else _ASSIGNMENT_S):
                    return


def _start_at_the_beginning(target: Target, group: str) -> None:
    """A share group begins where its setting says, which is at the end by default."""
    from broker.client.kafka.admin.configs import GROUP, alter_configs
    from broker.client.kafka.cluster import Cluster
    from broker.errors import BrokerError

    resource = (GROUP, group)
    with Cluster(target.config("consume")) as cluster:
        changes = {resource: {"share.auto.offset.reset": "earliest"}}
        answer = alter_configs(cluster.routing, changes)[resource]
    if answer.code:
        raise BrokerError(f"The group {group} cannot be made to start at the first record: {answer.said}.")


# How long a poll waits, and how long Ctrl-C may take: an exception in the middle of kafka-python's locks could leave one
# of them held, and closing the consumer would then wait for ever.
_POLL_MS = 250
_POLL_RECORDS = 5000


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=completion.topics)
@broker_options
@click.option(
    "--group",
    "-g",
    metavar="NAME",
    shell_complete=completion.groups,
    help="Consume as a member of this group, from its committed offsets.",
)
@click.option(
    "--share-group",
    "-G",
    metavar="NAME",
    shell_complete=completion.groups,
    help="Consume as a member of this share group, a queue: a record goes to one of its members, and is accepted once it is"
    " printed.",
)
@click.option(
    "--partition", "-p", "partitions", type=click.IntRange(min=0), multiple=True, help="Only these partitions."
)
@click.option(
    "--offset",
    "-o",
    metavar="WHERE",
    help="beginning, end, an offset, or -N for the last N of each partition.  [default: beginning; --group: its own]",
)
@click.option(
    "--from-beginning",
    is_flag=True,
    help="Start at the first record, or with --group where the group is: the default, by the name it has in Kafka's tool. A"
    " --share-group starts there if it is new, and otherwise at the end.",
)
@click.option("--from-time", "-t", type=Moment(), metavar="TIME", help="Start at this time: 2026-11-20T14:00, or -10m.")
@click.option("--follow", "-f", is_flag=True, help="Wait for new records, until Ctrl-C.")
@click.option("--max-messages", "-n", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("--key-separator", "-K", metavar="TEXT", help=r"Print KEY<TEXT>VALUE; \t is a tab.")
@click.option("--headers", is_flag=True, help="Print the headers, NAME=VALUE,..., and a tab before each line.")
@click.option(
    "--format",
    "-F",
    "template",
    metavar="FORMAT",
    help=r"Print %k key, %v value, %h headers, %t topic, %p partition, %o offset, %T time (ms), %K and %S sizes of key and"
    r" value, with the text between them. A line break follows, unless FORMAT ends with \c.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print a JSON object per line, with all fields of a record; `broker produce --json` reads them.",
)
@click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="json: the same as --json."
)
def command(
    topics: tuple[str, ...],
    target: Target,
    group: str | None,
    share_group: str | None,
    partitions: tuple[int, ...],
    offset: str | None,
    from_beginning: bool,
    from_time: int | None,
    follow: bool,
    max_messages: int | None,
    key_separator: str | None,
    headers: bool,
    template: str | None,
    as_json: bool,
    output: str,
) -> None:
    """Print the records of TOPICs, one per line.

    By default it reads from the beginning to the current end, and stops there.
    """
    if share_group is not None:
        if group or partitions or offset is not None or from_time is not None:
            raise click.UsageError(
                "With --share-group, the group determines partitions and offsets: leave out --group, --partition, --offset"
                " and --from-time."
            )
        render = _renderer(key_separator, headers, template, as_json or output == "json")
        consume_shared(
            target, share_group, topics, render, from_beginning=from_beginning, follow=follow, limit=max_messages
        )
        return
    if (offset is not None) + (from_time is not None) + from_beginning > 1:
        raise click.UsageError("Use only one of --offset, --from-time and --from-beginning.")
    if group and (partitions or offset is not None or from_time is not None):
        raise click.UsageError(
            "With --group, the group determines partitions and offsets: leave out --group, or the other options."
        )
    place = Place.parse(offset, from_time)
    render = _renderer(key_separator, headers, template, as_json or output == "json")

    if not group and not follow:
        _read_to_end(target, topics, partitions, place, render, max_messages)
        return
    with _consumer(target, group) as consumer:
        share: _Assignment | _Share
        if group:
            share = _Share(consumer, topics)
        else:
            share = _Assignment(consumer, topics, partitions, place)
        _copy(consumer, share, render, follow, max_messages)


def _renderer(key_separator: str | None, headers: bool, template: str | None, as_json: bool) -> Renderer:
    is_text = key_separator is not None or headers
    if is_text + (template is not None) + as_json > 1:
        raise click.UsageError("Use only one of --format, --json, and --key-separator with --headers.")
    if as_json:
        return json_line
    if template is not None:
        return by_template(parse_template(template))
    return text_line(unescape(key_separator) if key_separator else None, headers)


def _read_to_end(
    target: Target,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    place: Place,
    render: Renderer,
    limit: int | None,
) -> None:

    from broker.client.kafka.cluster import Cluster

    out = sys.stdout.buffer
    left = limit
    with client_errors(target), Cluster(target.config("consume")) as cluster:
        for topic, partition, records in read_to_end(cluster, topics, partitions, place):
            out.write(b"".join([render(topic, partition, record) for record in records[:left]]))
            if left is not None:
                left -= len(records)
                if left <= 0:
                    return


class _Assignment:
    """Follows all partitions of the topics, or the chosen ones, without a group."""

    def __init__(self, consumer: Any, topics: tuple[str, ...], numbers: tuple[int, ...], place: Place) -> None:
        from kafka import TopicPartition

        partitions = []
        for topic in topics:
            known = consumer.partitions_for_topic(topic)
            if not known:
                raise no_topic(topic)
            for number in numbers or sorted(known):
                if number not in known:
                    raise BrokerError(f"Topic {topic!r} has no partition {number}: it has 0 to {max(known)}.")
                partitions.append(TopicPartition(topic, number))
        consumer.assign(partitions)
        self._ends: dict[Any, int] = consumer.end_offsets(partitions)
        self._consumer = consumer
        begins = consumer.beginning_offsets(partitions)
        times = {}
        if place.timestamp_ms is not None:
            times = consumer.offsets_for_times(dict.fromkeys(partitions, place.timestamp_ms))
        for partition in partitions:
            found = times.get(partition)
            at_time = None if found is None else found.offset
            consumer.seek(partition, place.start(begins[partition], self._ends[partition], at_time))

    def at_end(self) -> bool:
        return all(self._consumer.position(partition) >= end for partition, end in self._ends.items())

    def commit(self) -> None:
        """Nothing to commit without a group."""


class _Share:
    """Reads the partitions that the group assigns."""

    def __init__(self, consumer: Any, topics: tuple[str, ...]) -> None:
        self._consumer = consumer
        self._ends: dict[Any, int] = {}
        consumer.subscribe(list(topics))
        # kafka-python 3.0.12 joins a second time if it hears of the partitions only after it has assigned them as the leader. If
        # a poll ends during that join, it never takes note of its result. So it hears of them first.
        for topic in topics:
            consumer.partitions_for_topic(topic)

    def at_end(self) -> bool:
        assigned = self._consumer.assignment()
        missing = [partition for partition in assigned if partition not in self._ends]
        if missing:
            self._ends |= self._consumer.end_offsets(missing)
        return bool(assigned) and all(self._consumer.position(p) >= self._ends[p] for p in assigned)

    def commit(self) -> None:
        self._consumer.commit()


@contextmanager
def _consumer(target: Target, group: str | None) -> Iterator[Any]:
    with plain_errors(target):
        from kafka import KafkaConsumer

        consumer = KafkaConsumer(
            **client_settings(target, "consume"),
            # The client's metrics are not used, and they cost time for every record.
            metrics_enabled=False,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            allow_auto_create_topics=False,
            max_poll_records=_POLL_RECORDS,
        )
        try:
            yield consumer
        finally:
            consumer.close(autocommit=False, timeout_ms=2000)


def _copy(consumer: Any, share: _Assignment | _Share, render: Renderer, follow: bool, limit: int | None) -> None:
    out = sys.stdout.buffer
    left = limit
    with Interrupts() as interrupts:
        while left is None or left > 0:
            if not follow and share.at_end():
                return
            polled = consumer.poll(timeout_ms=_POLL_MS, max_records=min(left or _POLL_RECORDS, _POLL_RECORDS))
            for (topic, partition), records in polled.items():
                with interrupts.allowed():  # whoever reads may be slow
                    out.write(b"".join([render(topic, partition, record) for record in records]))
                if left is not None:
                    left -= len(records)
            if polled:
                # Print first, then commit, so that everything committed has been printed.
                with interrupts.allowed():
                    out.flush()
                _commit(share)
            if interrupts.requested:
                raise KeyboardInterrupt


def _commit(share: _Assignment | _Share) -> None:
    from kafka import errors

    try:
        share.commit()
    except errors.CommitFailedError as error:
        # The group has rebalanced without us; another member will print these records again.
        say(f"broker: {describe(error)}", err=True)
