"""The stream source. One ``StreamReader`` lives in a Python process beside the driver for as long as the query runs: it decides
how far each micro-batch goes, plans its tasks and keeps its connections. The tasks work on copies of it made before all that, so
they use nothing but what is in their ``Slice``.

What is a batch is decided in ``latestOffset`` alone: partitions, topic ids and, of the first one, its beginning are in the offset
that Spark keeps. ``partitions`` plans the same from it after a restart.
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
from broker.spark.source import limits, reading, resolve
from broker.spark.source.batch_source import settings_of
from broker.spark.source.offsets import StreamOffset
from broker.spark.source.options import SourceOptions
from broker.spark.source.partitions import OffsetRange, Slice, cut
from broker.spark.source.resolve import Found, Loss
from broker.spark.source.sizes import RecordSizes

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._settings = settings_of(options, schema)
        self._loss = Loss(options.fail_on_data_loss)
        self._opened: Cluster | None = None
        self._sizes = RecordSizes()
        self._newest: StreamOffset | None = None  # as last seen, without limits
        self._pinned: StreamOffset | None = None  # where the trigger availableNow ends
        self._last_batch_s: float | None = None
        self._committed: dict[str, Any] | None = None  # to the group

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}

    @property
    def _cluster(self) -> Cluster:
        if self._opened is None:
            self._opened = Cluster(self._options.client)
        return self._opened

    # What Spark asks --------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        found = self._discover(required=True)
        # With the trigger availableNow, what has come since it was prepared does not exist.
        latest = self._pinned.at if self._pinned else None
        partitions = [where for where in found.partitions if latest is None or where in latest]
        ends = resolve.Ends(self._cluster, partitions, latest)
        now_ms = self._cluster.clock.time_ms()
        first = resolve.first_offsets(ends, partitions, self._options, now_ms)
        if latest is not None:
            first = {where: min(offset, latest[where]) for where, offset in first.items()}
        return attrs.evolve(found.offset(first), first=first).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Says only whether there are limits: Spark can express one at a time, ``latestOffset`` goes by the options."""
        wanted = self._options.limits
        if wanted.max_offsets is not None:
            return ReadMaxRows(wanted.max_offsets)
        if wanted.max_bytes is not None:
            return ReadMaxBytes(wanted.max_bytes)
        if wanted.min_offsets is not None:
            return ReadMinRows(wanted.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        found = self._discover(required=False)
        self._pinned = found.offset(self._newest_of(found))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        newest = self._newest = self._pinned or self._look()
        come_to = StreamOffset.from_json(start)
        begun = self._there(_going_on(come_to, newest, self._loss.report), newest)
        lags = {where: newest.at[where] - offset for where, offset in begun.items()}
        # What comes before `start` is done. Spark says so itself with the next batch, so of the last one it never does.
        self.commit(start)
        # Spark asks for all there is, whatever the options say, where the trigger is to come only once.
        taken = lags if isinstance(limit, ReadAllAvailable) else self._limited(begun, lags)
        if any(taken.values()):
            self._last_batch_s = self._cluster.clock.monotonic()
        at = {where: offset + taken.get(where, 0) for where, offset in begun.items()}
        if at == come_to.at and newest.topic_ids == come_to.topic_ids:
            return start  # as it is: by that Spark knows that nothing is new
        return StreamOffset(at, newest.topic_ids, begun if come_to.is_initial else None).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._newest.to_json() if self._newest else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        if start == end:
            return []
        until = StreamOffset.from_json(end)
        begun = until.first
        if begun is None:
            # What was lost has been reported when `end` was decided on.
            begun = _going_on(StreamOffset.from_json(start), until, report=lambda _: None)
        ranges = [
            OffsetRange(*where, begun.get(where, 0), offset, until.topic_ids.get(where[0]))
            for where, offset in until.at.items()
        ]
        pieces = cut(ranges, self._options.min_partitions, self._options.max_records_per_partition)
        return [Slice(piece, self._settings) for piece in pieces]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return reading.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """To the group, if one is wanted. Spark goes by its own checkpoint, so a failure is no reason to stop."""
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

    # How it is found out -----------------------------------------------------------------------------------------------

    def _discover(self, *, required: bool) -> Found:
        found = resolve.discover(self._cluster, self._options.subscription)
        if required:
            resolve.require_all(found, self._options)
        return found

    def _newest_of(self, found: Found) -> dict[TopicPartition, int]:
        return resolve.known_offsets(self._cluster, dict.fromkeys(found.partitions, LATEST))

    def _look(self) -> StreamOffset:
        found = self._discover(required=False)
        return found.offset(self._newest_of(found))

    def _there(self, begun: dict[TopicPartition, int], newest: StreamOffset) -> dict[TopicPartition, int]:
        """``begun`` without what retention has deleted; reports it."""
        first = resolve.known_offsets(self._cluster, dict.fromkeys(begun, EARLIEST))
        for where, offset in first.items():
            if begun[where] < offset:
                gone = resolve.records(begun[where], offset)
                self._loss.report(f"Before they were read, {gone} of {resolve.name(where)} were deleted.")
        return {where: min(max(offset, first[where]), newest.at[where]) for where, offset in begun.items()}

    def _limited(
        self, begun: Mapping[TopicPartition, int], lags: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """How many records of each partition the batch takes, by the options."""
        wanted, taken = self._options.limits, lags
        # The trigger availableNow ends with the first batch that brings nothing, so it is not to wait.
        if wanted.min_offsets is not None and self._pinned is None and self._last_batch_s is not None:
            waited_ms = (self._cluster.clock.monotonic() - self._last_batch_s) * 1000
            if limits.must_wait(lags, wanted.min_offsets, waited_ms, wanted.max_delay_ms):
                return {}
        if wanted.max_offsets is not None:
            taken = limits.share_records(taken, wanted.max_offsets)
        if wanted.max_bytes is not None:
            means = self._sizes.means(self._cluster, {where: begun[where] for where, lag in taken.items() if lag > 0})
            taken = limits.share_bytes(taken, means, wanted.max_bytes)
        return taken


class RefusedReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Of options that cannot be: says so to whatever Spark asks first, which depends on the trigger and the checkpoint."""

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


def _going_on(begun: StreamOffset, until: StreamOffset, report: Callable[[str], None]) -> dict[TopicPartition, int]:
    """Where to go on in each partition of ``until``, coming from ``begun``. Reports what was lost between the two.

    What is not in ``begun`` is new and read from its beginning; so is a partition of a topic that was made again. One that ends
    before where the query has come to was made again too, or else, if the ids say it is the same, lost its end.
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
