"""Turns the options into partitions and offsets by asking the cluster. Runs on the driver.

Every function that may encounter deleted records takes a ``Loss``, which decides how to proceed.

Tests: tests/spark/source/test_batch_source.py, tests/spark/source/test_stream_source.py.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping

import attrs

from broker.client.kafka.cluster import Cluster
from broker.client.kafka.values import EARLIEST, LATEST, TopicMetadata, TopicPartition
from broker.errors import BrokerError, ConfigError
from broker.spark.source.offsets import Back, Edge, Offsets, Position, Since, StreamOffset, Timestamps
from broker.spark.source.options import SourceOptions, Subscription

# Brokers keep their own state in these topics, so a pattern does not match them.
_INTERNAL_TOPICS = ("__consumer_offsets", "__transaction_state", "__share_group_state")

_log = logging.getLogger(__name__)


class DataLossError(BrokerError):
    """Records that the query should have read were deleted, or may have been. Raised only if ``failOnDataLoss`` is true."""


@attrs.frozen
class Loss:
    """How to treat deleted records: fail, or log a warning and continue."""

    fails: bool

    def report(self, sentence: str) -> None:
        if self.fails:
            raise DataLossError(f"{sentence} To go on with what there is, set failOnDataLoss to false.")
        _log.warning("%s The query goes on with what there is.", sentence)


def name(where: TopicPartition) -> str:
    return f"{where[0]}-{where[1]}"


def records(start: int, end: int) -> str:
    """The records in words; ``end`` is exclusive."""
    return f"record {start}" if end == start + 1 else f"records {start} to {end - 1}"


class Discovered:
    """The topics and partitions that the query reads, as they exist now."""

    def __init__(self, topics: Iterable[TopicMetadata], chosen: Iterable[TopicPartition] | None = None) -> None:
        self.topics = {topic.name: topic for topic in topics}
        existing = [(topic.name, partition) for topic in self.topics.values() for partition in topic.partitions]
        self.partitions = sorted(existing if chosen is None else set(existing) & set(chosen))

    def topic_id(self, topic: str) -> str | None:
        known = self.topics.get(topic)
        return known.topic_id.hex if known and known.topic_id else None

    def offset(self, at: Mapping[TopicPartition, int]) -> StreamOffset:
        ids = {topic: self.topic_id(topic) for topic in {topic for topic, _ in at}}
        return StreamOffset(dict(at), {topic: id_ for topic, id_ in ids.items() if id_})


def discover(cluster: Cluster, subscription: Subscription) -> Discovered:
    """The existing topics and partitions of the subscription. ``require_all`` raises for missing ones."""
    if subscription.pattern is not None:
        matches = re.compile(subscription.pattern).fullmatch
        every = cluster.topics(None).values()
        return Discovered(topic for topic in every if matches(topic.name) and topic.name not in _INTERNAL_TOPICS)
    if subscription.assigned is not None:
        return Discovered(cluster.topics({topic for topic, _ in subscription.assigned}).values(), subscription.assigned)
    assert subscription.topics is not None
    return Discovered(cluster.topics(subscription.topics).values())


def require_all(discovered: Discovered, options: SourceOptions) -> None:
    """Raise ConfigError for a topic or partition that the options name and that does not exist."""
    subscription = options.subscription
    servers = ", ".join(f"{host}:{port}" for host, port in options.client.bootstrap)
    for topic in subscription.topics or ():
        if topic not in discovered.topics:
            raise ConfigError(f"There is no topic {topic!r} at {servers}.")
    for where in subscription.assigned or ():
        if where not in discovered.partitions:
            what = f"no partition {where[1]} of topic" if where[0] in discovered.topics else "no topic"
            raise ConfigError(f"There is {what} {where[0]!r} at {servers}.")


class Ends:
    """First and next offsets of partitions, requested when needed and then kept. LATEST depends on the isolation level."""

    def __init__(
        self,
        cluster: Cluster,
        partitions: Iterable[TopicPartition],
        latest: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """``latest``: the next offsets, if they are known already."""
        self._cluster, self._partitions = cluster, list(partitions)
        self._known: dict[int, Mapping[TopicPartition, int]] = {} if latest is None else {LATEST: latest}

    def at(self, edge: int) -> Mapping[TopicPartition, int]:
        if edge not in self._known:
            self._known[edge] = known_offsets(self._cluster, dict.fromkeys(self._partitions, edge))
        return self._known[edge]

    def by_time(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        return ask(self._cluster, times)


def ask(cluster: Cluster, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
    return cluster.offsets(times, isolation=cluster.config.isolation_level) if times else {}


def known_offsets(cluster: Cluster, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The offsets at EARLIEST and LATEST, which every partition has."""
    return {where: offset for where, offset in ask(cluster, times).items() if offset is not None}


def first_offsets(
    ends: Ends, partitions: list[TopicPartition], options: SourceOptions, now_ms: int
) -> dict[TopicPartition, int]:
    """The offset at which a new query begins in each of ``partitions``."""

    def when_too_late(where: TopicPartition, time_ms: int) -> int:
        if options.late_start != LATEST:
            raise ConfigError(
                f"{name(where)} has no record from time {time_ms} on: choose an earlier start, or set "
                f"startingOffsetsByTimestampStrategy to latest."
            )
        return ends.at(LATEST)[where]

    at = _offsets(ends, partitions, options.start, "startingOffsets", now_ms, when_too_late)
    return _within(ends, at, options.start, "startingOffsets", Loss(options.fail_on_data_loss))


def last_offsets(
    ends: Ends, partitions: list[TopicPartition], options: SourceOptions, now_ms: int
) -> dict[TopicPartition, int]:
    """The offset at which a batch read ends in each of ``partitions`` (exclusive)."""
    at = _offsets(ends, partitions, options.end, "endingOffsets", now_ms, lambda where, _: ends.at(LATEST)[where])
    return _within(ends, at, options.end, "endingOffsets", Loss(options.fail_on_data_loss))


def _offsets(
    ends: Ends,
    partitions: list[TopicPartition],
    position: Position,
    option: str,
    now_ms: int,
    when_too_late: Callable[[TopicPartition, int], int],
) -> dict[TopicPartition, int]:
    if isinstance(position, Edge):
        return {where: ends.at(position.at)[where] for where in partitions}
    if isinstance(position, Back):
        first, last = ends.at(EARLIEST), ends.at(LATEST)
        return {where: max(first[where], last[where] - position.offsets) for where in partitions}
    if isinstance(position, Offsets):
        _must_match(option, position.at, partitions)
        return {where: ends.at(offset)[where] if offset < 0 else offset for where, offset in position.at.items()}
    if isinstance(position, Timestamps):
        _must_match(f"{option}ByTimestamp", position.at_ms, partitions)
        times = dict(position.at_ms)
    else:
        time_ms = position.timestamp_ms if isinstance(position, Since) else max(0, now_ms - position.milliseconds)
        times = dict.fromkeys(partitions, time_ms)
    offsets = ends.by_time(times)
    return {
        where: when_too_late(where, times[where]) if offset is None else offset for where, offset in offsets.items()
    }


def _must_match(option: str, given: Mapping[TopicPartition, int], partitions: list[TopicPartition]) -> None:
    missing, unknown = sorted(set(partitions) - set(given)), sorted(set(given) - set(partitions))
    if missing:
        raise ConfigError(
            f"{option} must name every partition that is read (-2 is earliest, -1 latest), and lacks {name(missing[0])}."
        )
    if unknown:
        raise ConfigError(f"{option} names {name(unknown[0])}, which is not there or not read.")


def _within(
    ends: Ends, at: dict[TopicPartition, int], position: Position, option: str, loss: Loss
) -> dict[TopicPartition, int]:
    """Report offsets of the user that do not exist, and move them to the nearest existing offsets."""
    if not isinstance(position, Offsets):
        return at
    for where, offset in at.items():
        first, last = ends.at(EARLIEST)[where], ends.at(LATEST)[where]
        if not first <= offset <= last:
            loss.report(f"{option} has {offset} for {name(where)}, which goes from {first} to {last} (exclusive).")
            at[where] = min(max(first, offset), last)
    return at
