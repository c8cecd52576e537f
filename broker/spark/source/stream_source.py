"""The stream source. One ``StreamReader`` runs in a Python process beside the driver for as long as the query runs.

It decides where each micro-batch ends, plans the tasks and keeps the connections. The tasks have copies of it that were
made before that, so they use nothing but their ``Slice``.

Only ``latestOffset`` decides the contents of a batch: partitions, topic ids and, for the first batch, its beginning are
in the offset that Spark keeps. After a restart ``partitions`` plans the same batch from that offset.

``share_records`` and ``share_bytes`` compute how many records a micro-batch reads of each partition from the lags, the
numbers of unread records. Every partition with a lag gets at least one record, so none is starved. For
maxBytesPerTrigger, ``RecordSizes`` estimates the record size of each partition by samples, because the driver sees no
records of the query.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from broker.client.kafka.cluster import Cluster
from broker.client.kafka.errors import KafkaClientError
from broker.client.kafka.values import EARLIEST, LATEST, TopicPartition
from broker.errors import ConfigError
from broker.spark.sentences import sentences_only
from broker.spark.source import reading, resolve
from broker.spark.source.batch_source import settings_of
from broker.spark.source.offsets import StreamOffset
from broker.spark.source.options import SourceOptions
from broker.spark.source.reading import OffsetRange, Slice, cut
from broker.spark.source.resolve import Discovered, Loss

if TYPE_CHECKING:
    import pyarrow as pa


Lags = Mapping[TopicPartition, int]


def share_records(lags: Lags, most: int) -> dict[TopicPartition, int]:
    """Distribute ``most`` records over the partitions in proportion to their lags, or all records if they are fewer.

    The sum is ``most``, or the number of partitions with a lag, if larger.
    """
    lags = {where: lag for where, lag in lags.items() if lag > 0}
    total = sum(lags.values())
    if total <= most:
        return dict(lags)
    shares = {where: max(1, most * lag // total) for where, lag in lags.items()}
    # The records left over by rounding down go to the partitions that lost most by it.
    left_over = max(0, most - sum(shares.values()))
    rounded_down = [where for where, lag in lags.items() if most * lag >= total]
    for where in sorted(rounded_down, key=lambda where: (-(most * lags[where] % total), where))[:left_over]:
        shares[where] += 1
    return shares


def share_bytes(lags: Lags, record_bytes: Mapping[TopicPartition, float], most: int) -> dict[TopicPartition, int]:
    """Records of each partition that together have about ``most`` bytes. ``record_bytes``: the mean size per
    partition."""
    lags = {where: lag for where, lag in lags.items() if lag > 0}
    total = sum(lag * record_bytes[where] for where, lag in lags.items())
    if total <= most:
        return dict(lags)
    return {where: max(1, min(lag, int(lag * most / total))) for where, lag in lags.items()}


def must_wait(lags: Lags, least: int, waited_ms: float, longest_ms: int) -> bool:
    """Whether to postpone the batch: fewer than ``least`` records exist, and the last batch was not too long ago."""
    return sum(lags.values()) < least and waited_ms < longest_ms


# One batch is enough, and a broker sends the first batch whole, however large it is.
_SAMPLE_BYTES = 16 * 1024
# A sample costs a connection and a fetch, 1-3 ms: each partition is sampled once, then this many in turn per micro-batch.
_SAMPLES_PER_BATCH = 4


class RecordSizes:
    def __init__(self) -> None:
        # Bytes per record as stored, after compression. In the order of the samples, the oldest first.
        self._mean: dict[TopicPartition, float] = {}

    def means(self, cluster: Cluster, at: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """Bytes per record of the partitions in ``at``, which has an offset to sample for each, before the partition's end."""
        known = [where for where in self._mean if where in at]
        unknown = [where for where in at if where not in self._mean]
        for where in unknown + known[:_SAMPLES_PER_BATCH]:
            mean = self._sample(cluster, where, at[where])
            before = self._mean.pop(where, mean)
            self._mean[where] = (mean + before) / 2
        return {where: self._mean[where] for where in at}

    @staticmethod
    def _sample(cluster: Cluster, where: TopicPartition, offset: int) -> float:
        with cluster.fetcher(*where, offset, offset + 1, max_bytes=_SAMPLE_BYTES) as fetcher:
            for fetched in fetcher:
                if fetched.data:
                    base = int.from_bytes(fetched.data[:8], "big")  # a record batch begins with its first offset
                    return len(fetched.data) / max(1, fetched.next_offset - base)
                break
        return 1.0  # no record yet (an open transaction): then a batch without a limit does no harm


_log = logging.getLogger(__name__)


@sentences_only
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._settings = settings_of(options, schema)
        self._loss = Loss(options.fail_on_data_loss)
        self._opened: Cluster | None = None
        self._sizes = RecordSizes()
        self._newest: StreamOffset | None = None  # the newest offsets at the last look, without limits
        self._pinned: StreamOffset | None = None  # the end of the query, with the trigger availableNow
        self._last_batch_s: float | None = None
        self._committed: dict[str, Any] | None = None  # the last commit to the group

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    @property
    def _cluster(self) -> Cluster:
        if self._opened is None:
            self._opened = Cluster(self._options.client)
        return self._opened

    # Spark's calls ----------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        discovered = self._discover(required=True)
        # With the trigger availableNow, records that have arrived since it was prepared do not count.
        latest = self._pinned.at if self._pinned else None
        partitions = [where for where in discovered.partitions if latest is None or where in latest]
        ends = resolve.Ends(self._cluster, partitions, latest)
        now_ms = self._cluster.clock.time_ms()
        first = resolve.first_offsets(ends, partitions, self._options, now_ms)
        if latest is not None:
            first = {where: min(offset, latest[where]) for where, offset in first.items()}
        return attrs.evolve(discovered.offset(first), first=first).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Only tells whether there are limits: Spark can express one at a time. ``latestOffset`` uses the options."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        discovered = self._discover(required=False)
        self._pinned = discovered.offset(self._latest_offsets(discovered))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        newest = self._newest = self._pinned or self._look_up_newest()
        come_to = StreamOffset.from_json(start)
        begun = self._clamp_to_existing(_resume_offsets(come_to, newest, self._loss.report), newest)
        lags = {where: newest.at[where] - offset for where, offset in begun.items()}
        # Everything before `start` is done. Spark itself reports that only with the next batch, so never for the last
        # batch.
        self.commit(start)
        # For a trigger that fires only once, Spark asks for all records, whatever the options say.
        taken = lags if isinstance(limit, ReadAllAvailable) else self._limited(begun, lags)
        if any(taken.values()):
            self._last_batch_s = self._cluster.clock.monotonic()
        at = {where: offset + taken.get(where, 0) for where, offset in begun.items()}
        if at == come_to.at and newest.topic_ids == come_to.topic_ids:
            return start  # the same object: this tells Spark that nothing is new
        return StreamOffset(at, newest.topic_ids, begun if come_to.is_initial else None).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._newest.to_json() if self._newest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start == end:
            return []
        until = StreamOffset.from_json(end)
        begun = until.first
        if begun is None:
            # Lost records were reported when `latestOffset` decided on `end`.
            begun = _resume_offsets(StreamOffset.from_json(start), until, report=lambda _: None)
        ranges = [
            OffsetRange(*where, begun.get(where, 0), offset, until.topic_ids.get(where[0]))
            for where, offset in until.at.items()
        ]
        pieces = cut(ranges, self._options.min_partitions, self._options.max_records_per_partition)
        return [Slice(piece, self._settings) for piece in pieces]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return reading.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Commit to the group, if one is set. Spark uses its own checkpoint, so a failure does not stop the query."""
        group = self._options.commit_group
        if group is None or end == self._committed:
            return
        try:
            self._cluster.commit(group, StreamOffset.from_json(end).at)
            self._committed = end
        except KafkaClientError as error:
            _log.warning("the offsets of the query were not committed to the group %r: %s", group, error)

    def stop(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    # Asking the cluster -----------------------------------------------------------------------------------------------

    def _discover(self, *, required: bool) -> Discovered:
        discovered = resolve.discover(self._cluster, self._options.subscription)
        if required:
            resolve.require_all(discovered, self._options)
        return discovered

    def _latest_offsets(self, discovered: Discovered) -> dict[TopicPartition, int]:
        return resolve.known_offsets(self._cluster, dict.fromkeys(discovered.partitions, LATEST))

    def _look_up_newest(self) -> StreamOffset:
        discovered = self._discover(required=False)
        return discovered.offset(self._latest_offsets(discovered))

    def _clamp_to_existing(self, begun: dict[TopicPartition, int], newest: StreamOffset) -> dict[TopicPartition, int]:
        """``begun`` without records that retention has deleted, which are reported."""
        first = resolve.known_offsets(self._cluster, dict.fromkeys(begun, EARLIEST))
        for where, offset in first.items():
            if begun[where] < offset:
                deleted = resolve.records(begun[where], offset)
                self._loss.report(f"Before they were read, {deleted} of {resolve.name(where)} were deleted.")
        return {where: min(max(offset, first[where]), newest.at[where]) for where, offset in begun.items()}

    def _limited(
        self, begun: Mapping[TopicPartition, int], lags: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """The number of records that the batch reads of each partition, by the options."""
        limits, taken = self._options.limits, lags
        # The trigger availableNow ends with the first empty batch, so it must not wait.
        if limits.min_offsets is not None and self._pinned is None and self._last_batch_s is not None:
            waited_ms = (self._cluster.clock.monotonic() - self._last_batch_s) * 1000
            if must_wait(lags, limits.min_offsets, waited_ms, limits.max_delay_ms):
                return {}
        if limits.max_offsets is not None:
            taken = share_records(taken, limits.max_offsets)
        if limits.max_bytes is not None:
            means = self._sizes.means(self._cluster, {where: begun[where] for where, lag in taken.items() if lag > 0})
            taken = share_bytes(taken, means, limits.max_bytes)
        return taken


@sentences_only
class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader for invalid options: it raises their error at Spark's first call, which depends on trigger and checkpoint."""

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:
        raise self._error

    def getDefaultReadLimit(self) -> NoReturn:
        raise self._error

    def prepareForTriggerAvailableNow(self) -> NoReturn:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> NoReturn:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:
        raise self._error

    def read(self, partition: InputPartition) -> NoReturn:
        raise self._error


def _resume_offsets(
    begun: StreamOffset, until: StreamOffset, report: Callable[[str], None]
) -> dict[TopicPartition, int]:
    """The offset at which to continue, from ``begun``, in each partition of ``until``. Reports records lost between the two.

    A partition missing in ``begun`` is new and read from its beginning, as is a partition of a topic that was
    created again. A partition that ends before the query's position also was created again or, if the ids say that it
    is the same, lost its end.
    """
    for where in sorted(begun.at.keys() - until.at.keys()):
        report(
            f"{resolve.name(where)} does not exist any more, and the query had come to its offset {begun.at[where]}."
        )
    at = dict.fromkeys(until.at, 0)
    for where in sorted(until.at.keys() & begun.at.keys()):
        come_to, offset = begun.at[where], until.at[where]
        if not begun.same_topic(where[0], until):
            report(
                f"The topic {where[0]!r} was deleted and created again; the query had come to offset {come_to} of"
                f" {resolve.name(where)}, and what followed it is gone."
            )
        elif come_to > offset:
            report(
                f"{resolve.name(where)} ends at offset {offset} and the query had come to {come_to}:"
                f" the topic was deleted and created again, or lost its end."
            )
            known = where[0] in begun.topic_ids and where[0] in until.topic_ids
            at[where] = offset if known else 0
        else:
            at[where] = come_to
    return at
