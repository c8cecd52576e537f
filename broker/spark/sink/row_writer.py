"""Chooses the partition of each row, collects rows until they make large record batches, and gives these to a producer.

It runs on a task's thread; the producer's requests are in flight while the next rows are collected. No Python object is
made for a row: partitions are chosen, and rows sorted into them, by column.

A row goes to the partition in its column ``partition``; without that, to the partition of its key's hash (as chosen by
Kafka's own producers, so a key keeps its partition); and without a key, to the same partition until a batch is full, then to
the next.
"""

from itertools import pairwise
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from broker.client.kafka.cluster import Cluster
from broker.client.kafka.columns.batch_builder import build, partitions_for
from broker.client.kafka.producer import Producer
from broker.client.kafka.values import TopicPartition
from broker.errors import ConfigError
from broker.spark.sink.options import SinkColumns, check_topic

# The most bytes collected for partitions that have no full batch yet: Kafka's buffer.memory.
_COLLECTED_MAX_BYTES = 32 * 1024 * 1024
# Roughly the bytes of a record beside key, value and headers: the offsets in Arrow arrays take as many.
_RECORD_OVERHEAD = 12


@attrs.define(eq=False)
class _Collected:
    """Unsent rows of a partition, as slices of columns, in order."""

    values: list[Any] = attrs.Factory(list)
    keys: list[Any] = attrs.Factory(list)
    headers: list[Any] = attrs.Factory(list)
    size: int = 0


@attrs.define(eq=False)
class _Topic:
    """``next`` is the partition for rows without key and partition, until ``bytes_left`` more bytes have gone there."""

    name: str
    partitions: int
    next: int
    bytes_left: int


class RowWriter:
    """``add`` batches, then call ``finish``. Afterwards the producer has all rows, and the caller flushes the
    producer."""

    def __init__(
        self, cluster: Cluster, producer: Producer, columns: SinkColumns, topic: str | None, first: int = 0
    ) -> None:
        """``first``: the partition (modulo their number) at which rows without a partition begin, so that tasks
        spread."""
        self.rows = 0
        self.topics: set[str] = set()
        config = cluster.config
        self._cluster = cluster
        self._producer = producer
        self._columns = columns
        self._topic = topic
        self._first = first
        self._compression = config.compression_type
        self._batch_bytes = min(config.batch_size, config.max_request_size)
        self._known: dict[str, _Topic] = {}
        self._collected: dict[TopicPartition, _Collected] = {}
        self._size = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        if self._topic is not None:
            self._add_to_topic(self._topic, batch)
            return
        assert self._columns.topic is not None
        names = batch.column(self._columns.topic)
        if names.null_count:
            raise ConfigError("A row has no topic: set the option topic, or let the column 'topic' be null nowhere.")
        encoded = names.dictionary_encode()
        indexes = encoded.indices.to_numpy()
        for index, name in enumerate(encoded.dictionary.to_pylist()):
            of_topic = np.flatnonzero(indexes == index)
            whole = len(of_topic) == batch.num_rows
            self._add_to_topic(name, batch if whole else batch.take(pa.array(of_topic)))

    def finish(self) -> None:
        for where in list(self._collected):
            self._send(where)

    # A topic ----------------------------------------------------------------------------------------------------------

    def _add_to_topic(self, name: str, batch: pa.RecordBatch) -> None:
        topic = self._known.get(name)
        if topic is None:
            check_topic(name, "The topic of a row")
            partitions = len(self._cluster.make_topics([name])[name].partitions)
            topic = self._known[name] = _Topic(name, partitions, self._first % partitions, self._batch_bytes)
            self.topics.add(name)
        columns = self._columns
        row_bytes = max(1.0, self._bytes(batch) / batch.num_rows)
        placed = self._placed(topic, batch)
        if placed is None:
            for start, stop, partition in self._spread(topic, batch.num_rows, row_bytes):
                self._collect(topic, partition, batch.slice(start, stop - start))
            return
        free = np.flatnonzero(placed < 0)
        for start, stop, partition in self._spread(topic, len(free), row_bytes):
            placed[free[start:stop]] = partition
        if topic.partitions < 2**15:
            placed = placed.astype(np.int16)  # numpy sorts these by radix
        order = np.argsort(placed, kind="stable")
        edges = np.flatnonzero(np.diff(placed[order])) + 1
        if len(edges):
            written = [index for index in (columns.value, columns.key, columns.headers) if index is not None]
            moved = batch.select(written).take(pa.array(order))
            arrays = list(batch.columns)
            for position, index in enumerate(written):
                arrays[index] = moved.column(position)
            batch = pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
        bounds = [0, *edges.tolist(), batch.num_rows]
        for start, stop in pairwise(bounds):
            self._collect(topic, int(placed[order[start]]), batch.slice(start, stop - start))

    def _placed(self, topic: _Topic, batch: pa.RecordBatch) -> Any:
        """The partition of each row, -1 if it may go anywhere; None if all rows may."""
        columns = self._columns
        chosen = None if columns.partition is None else batch.column(columns.partition)
        keys = None if columns.key is None else batch.column(columns.key)
        if chosen is not None and chosen.null_count < len(chosen):
            placed = chosen.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
            valid = chosen.is_valid().to_numpy(zero_copy_only=False)
            wrong = valid & ((placed < 0) | (placed >= topic.partitions))
            if wrong.any():
                raise ConfigError(
                    f"A row is for partition {placed[wrong][0]} of {topic.name!r}, which has partitions 0 to"
                    f" {topic.partitions - 1}: leave out the column partition, as in .select('key', 'value'), or give the topic"
                    " as many partitions as the source has."
                )
        elif keys is None or keys.null_count == len(keys):
            return None
        else:
            placed = np.full(batch.num_rows, -1, np.int32)
        if keys is not None:
            by_key = (placed < 0) & keys.is_valid().to_numpy(zero_copy_only=False)
            if by_key.all():
                return partitions_for(keys, topic.partitions)
            if by_key.any():
                placed[by_key] = partitions_for(keys.filter(pa.array(by_key)), topic.partitions)
        return placed

    def _spread(self, topic: _Topic, rows: int, row_bytes: float) -> list[tuple[int, int, int]]:
        """Runs of rows that may go anywhere, as (start, end, partition)."""
        runs = []
        start = 0
        while start < rows:
            stop = min(rows, start + max(1, int(topic.bytes_left / row_bytes)))
            runs.append((start, stop, topic.next))
            topic.bytes_left -= int((stop - start) * row_bytes)
            if topic.bytes_left < row_bytes:
                topic.next = (topic.next + 1) % topic.partitions
                topic.bytes_left = self._batch_bytes
            start = stop
        return runs

    def _bytes(self, batch: pa.RecordBatch) -> int:
        columns = self._columns
        written = (columns.value, columns.key, columns.headers)
        size = sum(batch.column(index).nbytes for index in written if index is not None)
        return int(size) + _RECORD_OVERHEAD * int(batch.num_rows)

    # Collected rows ---------------------------------------------------------------------------------------------------

    def _collect(self, topic: _Topic, partition: int, batch: pa.RecordBatch) -> None:
        columns = self._columns
        where = topic.name, partition
        collected = self._collected.get(where)
        if collected is None:
            collected = self._collected[where] = _Collected()
        collected.values.append(batch.column(columns.value))
        if columns.key is not None:
            collected.keys.append(batch.column(columns.key))
        if columns.headers is not None:
            collected.headers.append(batch.column(columns.headers))
        size = self._bytes(batch)
        collected.size += size
        self._size += size
        if collected.size + size // batch.num_rows >= self._batch_bytes:  # another row would not fit
            self._send(where)
        elif self._size > _COLLECTED_MAX_BYTES:
            self._send(max(self._collected, key=lambda key: self._collected[key].size))

    def _send(self, where: TopicPartition) -> None:
        collected = self._collected.pop(where)
        self._size -= collected.size
        batches = build(
            _joined(collected.values),
            _joined(collected.keys),
            _joined(collected.headers),
            now_ms=self._cluster.clock.time_ms(),
            compression=self._compression,
            max_batch_bytes=min(self._batch_bytes, self._producer.largest(where[0])),
        )
        for batch in batches:
            self._producer.send(*where, batch.data, batch.count)


def _joined(slices: list[Any]) -> Any:
    if not slices:
        return None
    return slices[0] if len(slices) == 1 else pa.concat_arrays(slices)
