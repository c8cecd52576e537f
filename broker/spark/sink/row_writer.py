"""Rows to topics: which partition each goes to, gathered until they make large record batches, handed to a producer.

On a task's thread; the producer sends while the next rows are gathered. No Python object for a row: partitions are chosen and
rows are sorted into them by column.

A row goes to the partition that its column ``partition`` says, else to the one of its key's hash (as Kafka's own producers
choose it, so a key stays where it was), else wherever it makes the batches large: to one partition until a batch is full, then
to the next.
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

# All that is gathered for partitions that have no full batch yet (bytes). Kafka's buffer.memory.
_GATHERED_MAX_BYTES = 32 * 1024 * 1024
# What a record takes beside its key, value and headers, roughly: offsets of the Arrow arrays have the same size.
_RECORD_OVERHEAD = 12


@attrs.define(eq=False)
class _Gathered:
    """Rows of one partition that are not sent yet: slices of columns, in order."""

    values: list[Any] = attrs.Factory(list)
    keys: list[Any] = attrs.Factory(list)
    headers: list[Any] = attrs.Factory(list)
    size: int = 0


@attrs.define(eq=False)
class _Topic:
    """``next`` is where rows that may go anywhere go, until ``room`` bytes have gone there."""

    name: str
    partitions: int
    next: int
    room: int


class RowWriter:
    """``add`` batches, then ``finish``: everything has been given to the producer, which the caller flushes."""

    def __init__(
        self, cluster: Cluster, producer: Producer, columns: SinkColumns, topic: str | None, first: int = 0
    ) -> None:
        """``first``: the partition (modulo their number) where rows without a place begin, so that tasks spread."""
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
        self._gathered: dict[TopicPartition, _Gathered] = {}
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
        for where in list(self._gathered):
            self._send(where)

    # One topic ------------------------------------------------------------------------------------------------------

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
                self._gather(topic, partition, batch.slice(start, stop - start))
            return
        free = np.flatnonzero(placed < 0)
        for start, stop, partition in self._spread(topic, len(free), row_bytes):
            placed[free[start:stop]] = partition
        if topic.partitions < 2**15:
            placed = placed.astype(np.int16)  # numpy sorts these by radix
        order = np.argsort(placed, kind="stable")
        edges = np.flatnonzero(np.diff(placed[order])) + 1
        if len(edges):
            wanted = [one for one in (columns.value, columns.key, columns.headers) if one is not None]
            moved = batch.select(wanted).take(pa.array(order))
            arrays = list(batch.columns)
            for position, index in enumerate(wanted):
                arrays[index] = moved.column(position)
            batch = pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
        bounds = [0, *edges.tolist(), batch.num_rows]
        for start, stop in pairwise(bounds):
            self._gather(topic, int(placed[order[start]]), batch.slice(start, stop - start))

    def _placed(self, topic: _Topic, batch: pa.RecordBatch) -> Any:
        """The partition of each row, -1 where it may go anywhere; None if all may."""
        columns = self._columns
        given = None if columns.partition is None else batch.column(columns.partition)
        keys = None if columns.key is None else batch.column(columns.key)
        if given is not None and given.null_count < len(given):
            placed = given.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
            valid = given.is_valid().to_numpy(zero_copy_only=False)
            wrong = valid & ((placed < 0) | (placed >= topic.partitions))
            if wrong.any():
                raise ConfigError(
                    f"A row is for partition {placed[wrong][0]} of {topic.name!r}, which has partitions 0 to"
                    f" {topic.partitions - 1}."
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
        """Runs of rows that may go anywhere: first, end, partition."""
        runs = []
        start = 0
        while start < rows:
            stop = min(rows, start + max(1, int(topic.room / row_bytes)))
            runs.append((start, stop, topic.next))
            topic.room -= int((stop - start) * row_bytes)
            if topic.room < row_bytes:
                topic.next = (topic.next + 1) % topic.partitions
                topic.room = self._batch_bytes
            start = stop
        return runs

    def _bytes(self, batch: pa.RecordBatch) -> int:
        columns = self._columns
        wanted = (columns.value, columns.key, columns.headers)
        size = sum(batch.column(index).nbytes for index in wanted if index is not None)
        return int(size) + _RECORD_OVERHEAD * int(batch.num_rows)

    # Gathered rows --------------------------------------------------------------------------------------------------

    def _gather(self, topic: _Topic, partition: int, batch: pa.RecordBatch) -> None:
        columns = self._columns
        where = topic.name, partition
        gathered = self._gathered.get(where)
        if gathered is None:
            gathered = self._gathered[where] = _Gathered()
        gathered.values.append(batch.column(columns.value))
        if columns.key is not None:
            gathered.keys.append(batch.column(columns.key))
        if columns.headers is not None:
            gathered.headers.append(batch.column(columns.headers))
        size = self._bytes(batch)
        gathered.size += size
        self._size += size
        if gathered.size + size // batch.num_rows >= self._batch_bytes:  # no other row fits in
            self._send(where)
        elif self._size > _GATHERED_MAX_BYTES:
            self._send(max(self._gathered, key=lambda one: self._gathered[one].size))

    def _send(self, where: TopicPartition) -> None:
        gathered = self._gathered.pop(where)
        self._size -= gathered.size
        batches = build(
            _joined(gathered.values),
            _joined(gathered.keys),
            _joined(gathered.headers),
            now_ms=self._cluster.clock.time_ms(),
            compression=self._compression,
            max_batch_bytes=min(self._batch_bytes, self._producer.largest(where[0])),
        )
        for one in batches:
            self._producer.send(*where, one.data, one.count)


def _joined(slices: list[Any]) -> Any:
    if not slices:
        return None
    return slices[0] if len(slices) == 1 else pa.concat_arrays(slices)
