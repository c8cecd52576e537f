"""`broker consume`: prints the records of topics, one record per line.

Without a group and without --follow it reads every partition from a chosen position to its end at the start
(``record_reader.py``). In a group it reads its assigned partitions and commits the records that it has printed.
kafka-python is the member of the group, and also follows several partitions at a time. In a share group our own client
is the member; it accepts the records that were printed.

Tests: tests/cli/test_produce_consume.py.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from broker.cli import completing
from broker.cli.broker_options import Target, broker_options
from broker.cli.client import (
    Moment,
    Place,
    client_errors,
    client_settings,
    describe,
    no_topic,
    plain_errors,
    unescape,
)
from broker.cli.output import Interrupts, say
from broker.cli.record_format import Renderer, by_template, json_line, parse_template, text_line
from broker.errors import BrokerError

# How long a poll waits, and how long Ctrl-C may take: an exception in the middle of kafka-python's locks could leave a
# lock held, and closing the consumer would then never end.
_POLL_MS = 250
_POLL_RECORDS = 5000
# In a share group: records of a poll, and how long to wait for an assignment and then, without --follow, for another record.
_SHARED_RECORDS = 500
_ASSIGNMENT_S = 60.0
_IDLE_S = 1.0


@click.command()
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=completing.topics)
@broker_options
@click.option(
    "--group",
    "-g",
    metavar="NAME",
    shell_complete=completing.groups,
    help="Consume as a member of this group, from its committed offsets.",
)
@click.option(
    "--share-group",
    "-G",
    metavar="NAME",
    shell_complete=completing.groups,
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
        _consume_shared(
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
    from broker.cli.record_reader import read_to_end
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
            position = times.get(partition)
            at_time = None if position is None else position.offset
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
        # kafka-python 3.0.12 joins a second time if it learns of the partitions only after it has assigned them as the
        # leader. If a poll ends during that join, it never uses the result. So it is made to learn of them first.
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
                with interrupts.allowed():  # the reader of the output may be slow
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


def _consume_shared(
    target: Target,
    group: str,
    topics: tuple[str, ...],
    render: Renderer,
    *,
    from_beginning: bool,
    follow: bool,
    limit: int | None,
) -> None:
    """Runs until Ctrl-C with ``follow``; otherwise until no more records come. Raises BrokerError."""
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
                records = consumer.poll(_POLL_MS / 1000, min(left or _SHARED_RECORDS, _SHARED_RECORDS))
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
    """Set the group's start position, which is the end by default."""
    from broker.client.kafka.admin.configs import GROUP, alter_configs
    from broker.client.kafka.cluster import Cluster

    resource = (GROUP, group)
    with Cluster(target.config("consume")) as cluster:
        changes = {resource: {"share.auto.offset.reset": "earliest"}}
        answer = alter_configs(cluster.routing, changes)[resource]
    if answer.code:
        raise BrokerError(f"The group {group} cannot be made to start at the first record: {answer.said}.")
