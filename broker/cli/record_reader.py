"""Reads topics for `consume` from a place to their present end, with our own Kafka client: partition after partition.

Tests: tests/cli/test_produce_consume.py.
"""

from collections.abc import Iterator, Sequence

from broker.cli.client import Place, no_topic
from broker.client.kafka.cluster import Cluster
from broker.client.kafka.errors import CorruptRecordError
from broker.client.kafka.values import EARLIEST, LATEST, TopicPartition
from broker.errors import BrokerError
from protocol.errors import ProtocolError
from protocol.kafka.records.batch import CONTROL, check_crc, read_header
from protocol.kafka.records.records import Record, records

_FETCH_BYTES = 4 * 1024 * 1024


def read_to_end(
    cluster: Cluster, topics: Sequence[str], numbers: Sequence[int], place: Place
) -> Iterator[tuple[str, int, list[Record]]]:
    """Topic, partition, and the records of a batch. ``numbers``: only these partitions, unless empty. Raises
    BrokerError."""
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
                    # Markers of transactions are not records.
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
