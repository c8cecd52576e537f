"""The batch source: at every run of a query it plans on the driver which records the tasks read.

``BatchReader`` is created in a planning process and copied to the tasks, so it holds options only. ``reading.py`` is the tasks'
side.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from broker.client.kafka.cluster import Cluster
from broker.errors import ConfigError
from broker.spark.sentences import sentences_only
from broker.spark.source import filters, reading, resolve
from broker.spark.source.filters import Narrowing
from broker.spark.source.options import SourceOptions
from broker.spark.source.partitions import OffsetRange, ReadSettings, Slice, cut
from broker.spark.source.positions import Offsets
from broker.spark.source.table_schema import columns_of

if TYPE_CHECKING:
    import pyarrow as pa


def settings_of(options: SourceOptions, schema: StructType) -> ReadSettings:
    return ReadSettings(options.client, columns_of(schema), options.fail_on_data_loss, options.poll_timeout_ms)


@sentences_only
class BatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._settings = settings_of(options, schema)
        self._narrowing = Narrowing()

    def partitions(self) -> list[InputPartition]:
        options = self._options
        with Cluster(options.client) as cluster:
            ranges = plan(cluster, options, self._narrowing)
        pieces = cut(ranges, options.min_partitions, options.max_records_per_partition)
        return [Slice(piece, self._settings) for piece in pieces]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return reading.read(partition)


@sentences_only
class NarrowingReader(BatchReader):
    """A reader that takes filters.

    It is a class of its own, because Spark does not plan with a reader that can take filters while
    ``spark.sql.python.filterPushdown.enabled`` is false.
    """

    def pushFilters(self, filters_: list[Filter]) -> Iterable[Filter]:
        self._narrowing, rest = filters.narrow(filters_)
        return rest


def plan(cluster: Cluster, options: SourceOptions, narrowing: Narrowing) -> list[OffsetRange]:
    """The offsets to read of each partition. Raises ConfigError, DataLossError."""
    discovered = resolve.discover(cluster, options.subscription)
    resolve.require_all(discovered, options)
    ends = resolve.Ends(cluster, discovered.partitions)
    now_ms = cluster.clock.time_ms()
    first = resolve.first_offsets(ends, discovered.partitions, options, now_ms)
    last = resolve.last_offsets(ends, discovered.partitions, options, now_ms)
    for where in discovered.partitions:
        # Times may cross in a partition that has no records between them; crossed offsets are a mistake of the user.
        if first[where] > last[where] and isinstance(options.start, Offsets) and isinstance(options.end, Offsets):
            raise ConfigError(
                f"startingOffsets ({first[where]}) is after endingOffsets ({last[where]}) for {resolve.name(where)}."
            )
    kept = [where for where in discovered.partitions if narrowing.keeps(*where)]
    if narrowing.since_ms is not None:
        late = resolve.ask(cluster, dict.fromkeys(kept, narrowing.since_ms))
        for where, offset in late.items():
            first[where] = last[where] if offset is None else max(first[where], offset)
    return [
        OffsetRange(
            *where,
            max(first[where], narrowing.start),
            last[where] if narrowing.end is None else min(last[where], narrowing.end),
            discovered.topic_id(where[0]),
        )
        for where in kept
    ]
