"""Divides ranges of offsets into pieces, one for each task, and describes a piece to its task. Pure.

A task runs in another process, perhaps on another machine, with a copy of the reader that was made before the query ran. Its
``Slice`` contains everything that it needs.
"""

import heapq
import itertools
from collections.abc import Iterable

import attrs
from pyspark.sql.datasource import InputPartition

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
    """The records that one task reads. Pickled on its way to the task."""

    range: OffsetRange
    settings: ReadSettings

    def __init__(self, range: OffsetRange, settings: ReadSettings) -> None:
        self.__attrs_init__(range, settings)

    def __repr__(self) -> str:
        return f"Slice({self.range})"  # Spark shows it to users; addresses and columns are left out


def cut(ranges: Iterable[OffsetRange], at_least: int | None, most_records: int | None) -> list[OffsetRange]:
    """The non-empty ``ranges``, cut as required, in the order of topic, partition and offset.

    ``at_least``: the least number of pieces, if there are as many records; the longest ranges are cut first (minPartitions).
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
