"""Which task reads what: ranges of offsets, cut into pieces, and the piece as it travels to a task. Pure.

A task runs in another process, perhaps on another machine, on a copy of the reader that was made before the query ran: all
that it needs is in its ``Slice``.
"""

import heapq
import itertools
from collections.abc import Iterable

import attrs
from pyspark.sql.datasource import InputPartition

from broker.client.kafka.config import ClientConfig


@attrs.frozen
class OffsetRange:
    """Records ``start`` to ``end`` (exclusive) of a partition. ``topic_id``: of the topic that they are in, if known."""

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
    """What is the same for all tasks of a query."""

    client: ClientConfig
    columns: tuple[str, ...]
    fail_on_data_loss: bool
    # How long a task waits for records that should be there.
    poll_timeout_ms: int


@attrs.frozen(init=False)
class Slice(InputPartition):
    """What one task reads. Goes through pickle."""

    range: OffsetRange
    settings: ReadSettings

    def __init__(self, range: OffsetRange, settings: ReadSettings) -> None:
        self.__attrs_init__(range, settings)

    def __repr__(self) -> str:
        return f"Slice({self.range})"  # what Spark shows; without addresses and columns


def cut(ranges: Iterable[OffsetRange], at_least: int | None, most_records: int | None) -> list[OffsetRange]:
    """``ranges`` without the empty ones, cut where that is asked for, in the order of topic, partition and offset.

    ``at_least``: so many pieces, if there are so many records; the longest are cut first (minPartitions). ``most_records``: in
    no piece more (maxRecordsPerPartition).
    """
    whole = sorted((one for one in ranges if one.size), key=lambda one: (one.topic, one.partition, one.start))
    pieces = [-(-one.size // most_records) if most_records else 1 for one in whole]
    missing = min(at_least or 0, sum(one.size for one in whole)) - sum(pieces)
    heap = [(-one.size / count, index) for index, (one, count) in enumerate(zip(whole, pieces, strict=True))]
    heapq.heapify(heap)
    # The longest piece has two records at least, for there are as many records as pieces wanted.
    for _ in range(missing):
        _, index = heap[0]
        pieces[index] += 1
        heapq.heapreplace(heap, (-whole[index].size / pieces[index], index))
    return [piece for one, count in zip(whole, pieces, strict=True) for piece in _split(one, count)]


def _split(one: OffsetRange, count: int) -> list[OffsetRange]:
    ends = [one.start + one.size * index // count for index in range(count + 1)]
    return [attrs.evolve(one, start=start, end=end) for start, end in itertools.pairwise(ends)]
