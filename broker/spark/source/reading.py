"""The tasks' side of the sources: from a ``Slice`` to Arrow record batches of about 1 MB, on the thread of a Python
worker.

A task opens its connections here and closes them after the last batch, after an error, or when it ends; nothing is kept
between tasks, so a failed task can run again. A task runs in another process, perhaps on another machine, with a copy
of the reader that was made before the query ran. Its ``Slice`` contains everything that it needs.

``cut`` divides ranges of offsets into pieces, one for each task. Pure.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from broker.client.kafka.cluster import Cluster
from broker.client.kafka.errors import OffsetOutOfRangeError, TopicRecreatedError, UnknownTopicError
from broker.client.kafka.values import READ_COMMITTED, Fetched
from broker.spark.source.resolve import Loss, name, records
from broker.spark.worker import freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa

    from broker.client.kafka.columns.columns import Decoder
    from broker.client.kafka.fetcher import Fetcher

import heapq
import itertools
from collections.abc import Iterable

import attrs

from broker.client.kafka.config import ClientConfig


@attrs.frozen
class OffsetRange:
    """Records ``start`` to ``end`` (exclusive) of a partition. ``topic_id``: the id of their topic, if known."""

    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None

    @property
    def size(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@attrs.frozen
class ReadSettings:
    """The settings that all tasks of a query share."""

    client: ClientConfig
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    # How long a task waits for records that should exist.
    poll_timeout_ms: int


@attrs.frozen(init=False)
class Slice(InputPartition):
    """The records that a task reads. Pickled on its way to the task."""

    range: OffsetRange
    settings: ReadSettings

    def __init__(self, range: OffsetRange, settings: ReadSettings) -> None:
        self.__attrs_init__(range, settings)

    def __repr__(self) -> str:
        return f"Slice({self.range})"  # shown to users by Spark; addresses and columns are left out


def cut(ranges: Iterable[OffsetRange], at_least: int | None, most_records: int | None) -> list[OffsetRange]:
    """The non-empty ``ranges``, cut as required, in the order of topic, partition and offset.

    ``at_least``: the least number of pieces, if there are enough records; the longest ranges are cut first
    (minPartitions).
    ``most_records``: the most records in a piece (maxRecordsPerPartition).
    """
    whole = sorted(
        (range_ for range_ in ranges if range_.size), key=lambda range_: (range_.topic, range_.partition, range_.start)
    )
    pieces = [-(-range_.size // most_records) if most_records else 1 for range_ in whole]
    missing = min(at_least or 0, sum(range_.size for range_ in whole)) - sum(pieces)
    heap = [(-range_.size / count, index) for index, (range_, count) in enumerate(zip(whole, pieces, strict=True))]
    heapq.heapify(heap)
    # The longest piece has at least two records, because `missing` does not exceed the number of records.
    for _ in range(missing):
        _, index = heap[0]
        pieces[index] += 1
        heapq.heapreplace(heap, (-whole[index].size / pieces[index], index))
    return [piece for range_, count in zip(whole, pieces, strict=True) for piece in _split(range_, count)]


def _split(range_: OffsetRange, count: int) -> list[OffsetRange]:
    ends = [range_.start + range_.size * index // count for index in range(count + 1)]
    return [attrs.evolve(range_, start=start, end=end) for start, end in itertools.pairwise(ends)]


def read(partition: InputPartition) -> "Iterator[pa.RecordBatch]":
    """The records of a slice, in order. If there is nothing to read, Spark passes a partition of its own without a
    value."""
    if not isinstance(partition, Slice):
        return
    freeze_imports()
    range_, settings = partition.range, partition.settings
    loss = Loss(settings.fail_on_data_loss)
    with Cluster(settings.client) as cluster:
        known = cluster.topics([range_.topic]).get(range_.topic)
        if known is None or range_.partition not in known.partitions:
            loss.report(
                f"{range_.topic}-{range_.partition} was deleted before {records(range_.start, range_.end)} were read."
            )
            return
        if range_.topic_id and known.topic_id and known.topic_id.hex != range_.topic_id:
            loss.report(f"The topic {range_.topic!r} was deleted and created again before {range_} was read.")
            return
        with cluster.fetcher(range_.topic, range_.partition, range_.start, range_.end) as fetcher:
            yield from _records_of(fetcher, partition, cluster, loss)


def _records_of(fetcher: "Fetcher", task: Slice, cluster: Cluster, loss: Loss) -> "Iterator[pa.RecordBatch]":
    range_ = task.range
    decoder = _decoder(task, range_.start)
    deadline: float | None = None
    while True:
        try:
            fetched = next(fetcher, None)
        except OffsetOutOfRangeError as error:
            following = _after_gap(error, decoder.next_offset, task, loss)
            if following is None:
                return
            decoder = _decoder(task, following)
            fetcher.seek(following)
            continue
        except (TopicRecreatedError, UnknownTopicError) as error:
            loss.report(str(error))
            return
        if fetched is None:
            return
        if fetched.data:
            yield from decoder.batches(fetched.data, fetched.aborted)
            deadline = None
            continue
        # The broker stated the end when the read was planned, so the missing records come soon or are lost.
        now = cluster.clock.monotonic()
        deadline = deadline or now + task.settings.poll_timeout_ms / 1000
        if now >= deadline:
            loss.report(
                f"{name((range_.topic, range_.partition))} ends at {_end(fetched, task)}, before offset {range_.end} that was"
                f" there when the read was planned, and nothing came within {task.settings.poll_timeout_ms} ms."
            )
            return


def _decoder(task: Slice, start: int) -> "Decoder":
    # Only tasks need Arrow and numpy. The planning processes import this module, too, and start faster without them.
    from broker.client.kafka.columns.columns import Decoder

    return Decoder(task.range.topic, task.range.partition, start, task.range.end, columns=task.settings.columns)


def _after_gap(error: OffsetOutOfRangeError, position: int, task: Slice, loss: Loss) -> int | None:
    """The offset at which to continue after deleted records, or None if nothing is left to read."""
    where = name((task.range.topic, task.range.partition))
    if position < error.log_start:
        deleted_to = min(error.log_start, task.range.end)
        loss.report(
            f"Before they were read, {records(position, deleted_to)} of {where} were deleted: it begins at {error.log_start} now."
        )
        return deleted_to if deleted_to < task.range.end else None
    loss.report(f"{where} ends at {error.end} now, before {records(position, task.range.end)} were read.")
    return None


def _end(fetched: Fetched, task: Slice) -> int:
    committed = task.settings.client.isolation_level == READ_COMMITTED
    return fetched.last_stable_offset if committed else fetched.high_watermark
