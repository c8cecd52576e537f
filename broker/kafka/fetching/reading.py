"""What a Fetch request has to send at one moment: one pass over its partitions. Records are not read here.

On the connection's processor, or on a handler for requests of many partitions and for what is not in the page cache.

What the client may read is asked each time, so a fetch that was parked gets nothing after its right was taken away.

Logs that may have entries, which Pulsar's producers write, are the exception: handlers answer for them, with records in the place
of entries (``broker/kafka/fetching/reading.py``). The bytes that a fetch waits for are counted as they are in the log.

From version 13 on a request names topics by their ids, as 16 bytes. Everything here looks up by what the request says, name or
id, so that a fetch that is parked never gets the records of a new topic under the old name.

What Kafka's consumers get of a log that Pulsar's producers write to: entries become record batches with the same offsets.

On threads that may block: an entry is read, decompressed and written anew, in Python. So one response has a bounded number of
bytes of them, and at least one, and the client asks again for the rest. Batches of Kafka's producers that lie between entries
still leave by sendfile.

Tests: tests/kafka/handlers/test_fetch.py,
tests/kafka/handlers/test_fetch_entries.py,
tests/kafka/handlers/test_topic_ids.py,
tests/kafka/test_fetched_entries.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from broker.errors import Refusal, RequestError, StorageError
from broker.kafka.authorization import denied, denied_ids, may
from broker.kafka.context import KafkaContext
from broker.kafka.error_codes import code_of
from broker.network.service import Connection, Part
from broker.network.tracing import LOG_CALLS_MAX, LogCall
from broker.network.work import Work
from broker.runtime.disk import FileRegion
from broker.security.acl import Operation, ResourceType
from broker.storage.log import inspection
from broker.storage.log.inspection import walk
from broker.storage.log.log import Log
from protocol.errors import ProtocolError
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import fetch
from protocol.kafka.records.batch import BatchHeader

# Of one response: 10,000 messages of 100 bytes take about 30 ms to write anew.
MOST_BYTES = 1024 * 1024
_CHUNK = 256 * 1024


class Translated(NamedTuple):
    """``whole`` is False if some batches did not fit."""

    parts: list[Part]
    size: int
    whole: bool


def translate(log: Log, regions: Sequence[FileRegion], most: int, *, at_least_one: bool) -> Translated:
    """The parts of a response: the whole batches in ``regions``, with records in the place of entries, as many as fit ``most``;
    with ``at_least_one`` the first batch even if it does not fit.

    Raises StorageError for a log that is damaged.
    """
    parts: list[Part] = []
    size = 0
    if most <= 0 and not at_least_one:
        return Translated(parts, 0, not regions)
    try:
        for region in regions:
            for header, position, batch in walk(region, _CHUNK, _of_entries):
                translated = None
                if header.is_entry:
                    translated = inspection.as_records(batch, header, log.around.large_entries)
                taken = header.size if translated is None else len(translated)
                if size + taken > most and not (at_least_one and not size):
                    return Translated(parts, size, False)
                size += taken
                if translated is not None:
                    parts.append(translated)
                else:
                    _extend(parts, region, position, taken)
    except ProtocolError as error:
        raise log.go_offline(f"a record batch is damaged: {error}") from error
    except OSError as error:
        raise log.failed("entries could not be read", error) from error
    return Translated(parts, size, True)


def _extend(parts: list[Part], region: FileRegion, position: int, size: int) -> None:
    """Add bytes of the file, to the region before them if they follow it."""
    last = parts[-1] if parts else None
    if isinstance(last, FileRegion) and last.file is region.file and last.offset + last.size == position:
        last.size += size
    else:
        parts.append(FileRegion(region.file, position, size))


def _of_entries(header: BatchHeader) -> int:
    """All bytes of an entry, and none of other batches."""
    return header.size if header.is_entry else 0


READ_COMMITTED = 1
# Files that a response sends from; the partitions that come later in the request get nothing this time. A client that does not
# read its response holds all of them open.
FILES_MAX = 1000
NO_TOPICS: frozenset[str | bytes] = frozenset()
_NO_ENTRIES: dict[tuple[str | bytes, int], tuple[Log, int]] = {}
_Partitions = Mapping[tuple[Any, int], Log]  # by the name of the topic, or by its id
# Looking up a member of an enumeration costs as much as an authorizer's answer.
_READ, _TOPIC = Operation.READ, ResourceType.TOPIC
_new = tuple.__new__  # faster than a named tuple's own __new__


class Seen(NamedTuple):
    """What a reading has found in one log: its end, and how many bytes there were to send."""

    log: Log
    wanted: fetch.FetchPartition
    end: int
    size: int


class Reading:
    """One pass over the partitions of a request, and what there is to send at that moment."""

    __slots__ = ("committed", "entries", "failed", "files", "limit", "log_calls", "logs", "resident", "results", "size")

    def __init__(
        self,
        context: KafkaContext,
        connection: Connection,
        request: fetch.FetchRequest,
        work: Work | None = None,
    ) -> None:
        """``work``: given for many partitions, so that the reading ends when nobody waits for the answer. Of topics that the
        client may not read nothing is looked up."""
        self.results: list[tuple[str | bytes, list[fetch.PartitionData]]] = []
        self.logs: list[Seen] = []
        self.size = 0
        self.files = 0
        self.failed = False
        self.resident = True
        # Logs that may have entries among what is to be sent, each with the most bytes to send of it.
        self.entries = _NO_ENTRIES
        self.committed = request.isolation_level == READ_COMMITTED
        left = self.limit = min(request.max_bytes, context.config.fetch_max_bytes)
        partitions: _Partitions = context.logs.partitions_by_id if request.by_id else context.logs.partitions
        unauthorized = NO_TOPICS if context.authorizer is None else _unauthorized(context, connection, request)
        if unauthorized:
            partitions = _readable(partitions, request, unauthorized)
        read = self._read
        if context.traces is not None:
            self.log_calls: list[LogCall] = []
            read = self._read_traced
        last_topic: str | bytes | None = None
        found: list[fetch.PartitionData] = []  # of that topic
        for wanted in request.partitions if work is None else work.each(request.partitions):
            topic = wanted.topic
            target = partitions.get((topic, wanted.partition))
            if target is None:
                data = _error(wanted.partition, _why_absent(context, topic, unauthorized))
                self.failed = True
            else:
                data = read(context, target, wanted, left)
                left -= data.records_size
            if topic != last_topic:
                last_topic, found = topic, []
                self.results.append((topic, found))
            found.append(data)

    def _read(self, context: KafkaContext, target: Log, wanted: fetch.FetchPartition, left: int) -> fetch.PartitionData:
        try:
            epoch = wanted.current_leader_epoch
            if epoch >= 0 and epoch != target.leader_epoch:
                older = epoch < target.leader_epoch
                raise RequestError(ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch)
            most = max(0, min(left, wanted.max_bytes)) if self.files < FILES_MAX else 0
            aborted: list[tuple[int, int]] | None = None
            # KIP-74: the first partition that has something sends at least one batch, whatever the limits say.
            if self.committed:
                stable = target.last_stable_offset
                read = target.read(wanted.fetch_offset, most, at_least_one=self.size == 0, up_to=stable)
                found = target.aborted_transactions(wanted.fetch_offset, read, stable)
                aborted = [(one.producer_id, one.first_offset) for one in found]
            else:
                read = target.read(wanted.fetch_offset, most, at_least_one=self.size == 0)
                stable = read.high_watermark if target.state.first_unstable is None else target.last_stable_offset
        except Refusal as error:
            self.failed = True
            return _error(wanted.partition, code_of(error), target.high_watermark, target.log_start_offset)
        except StorageError as error:
            self.failed = True
            context.complain("read_failed", target.topic, wanted.partition, error)
            return _error(wanted.partition, ErrorCode.kafka_storage_error)
        size = read.size
        self.logs.append(_new(Seen, (target, wanted, read.high_watermark, size)))
        self.size += size
        self.files += len(read.regions)
        self.resident = self.resident and read.resident
        if size and target.state.has_entries:
            if self.entries is _NO_ENTRIES:
                self.entries = {}
            self.entries[wanted.topic, wanted.partition] = target, wanted.max_bytes
            self.resident = False  # a handler writes them anew
        fields = wanted.partition, 0, read.high_watermark, stable, read.log_start_offset, aborted, size, read.regions
        return _new(fetch.PartitionData, fields)

    def _read_traced(
        self, context: KafkaContext, target: Log, wanted: fetch.FetchPartition, left: int
    ) -> fetch.PartitionData:
        """Read, and note when if there is something to send."""
        began = context.clock.monotonic()
        data = self._read(context, target, wanted, left)
        if data.records_size:
            self._note("read", target.topic, wanted.partition, wanted.fetch_offset, began, context)
        return data

    def _note(
        self, verb: str, topic: str | bytes, partition: int, offset: int | None, began: float, context: KafkaContext
    ) -> None:
        if len(self.log_calls) < LOG_CALLS_MAX:
            if isinstance(topic, bytes):
                info = context.logs.topics_by_id.get(topic)
                name = topic.hex() if info is None else info.name  # deleted meanwhile
            else:
                name = topic
            call = LogCall(verb, name, partition, offset, began, context.clock.monotonic())
            self.log_calls.append(call)

    def enough(self, request: fetch.FetchRequest) -> bool:
        """The response can be sent: it has ``min_bytes``, an error or all it may have, or the client does not wait."""
        return (
            self.failed
            or self.size >= request.min_bytes
            or request.max_wait_ms <= 0
            or not request.partitions
            or self.files >= FILES_MAX
        )

    def translate(self, context: KafkaContext) -> None:
        """Put records in the place of entries. It takes time: for handler threads only."""
        plain = sum(
            data.records_size
            for topic, some in self.results
            for data in some
            if (topic, data.partition) not in self.entries
        )
        left, size = min(self.limit - plain, MOST_BYTES), 0
        for topic, partitions in self.results:
            for number, data in enumerate(partitions):
                found = self.entries.get((topic, data.partition))
                if found is None:
                    continue
                log, most = found
                try:
                    translated = translate(log, data.records_parts, min(left, most), at_least_one=not (size or plain))
                    partitions[number] = data._replace(records_size=translated.size, records_parts=translated.parts)
                    size += translated.size
                    # What did not fit was written anew for nothing. Once is enough.
                    left = left - translated.size if translated.whole or most < left else 0
                except StorageError as error:
                    context.complain("read_failed", log.topic, data.partition, error)
                    partitions[number] = _error(data.partition, ErrorCode.kafka_storage_error)

    def warm(self, context: KafkaContext) -> None:
        """Read what is to be sent, so that sendfile finds it in the page cache. It blocks: for handler threads only."""
        for topic, partitions in self.results:
            for data in partitions:
                began = 0.0 if context.traces is None else context.clock.monotonic()
                regions = [region for region in data.records_parts if isinstance(region, FileRegion)]
                for region in regions:
                    region.warm()
                if regions and context.traces is not None:
                    self._note("load", topic, data.partition, None, began, context)


def _unauthorized(context: KafkaContext, connection: Connection, request: fetch.FetchRequest) -> frozenset[str | bytes]:
    """Topics of the request that the client may not read."""
    wanted: Sequence[Any] = request.partitions  # whose topics are all names, or all ids
    if len(wanted) == 1:
        topic = name = wanted[0].topic
        if request.by_id:
            info = context.logs.topics_by_id.get(topic)
            if info is None:
                return NO_TOPICS
            name = info.name
        return NO_TOPICS if may(context, connection, _READ, _TOPIC, name) else frozenset((topic,))
    if request.by_id:
        return denied_ids(context, connection, _READ, [one.topic for one in wanted])
    return denied(context, connection, _READ, _TOPIC, [one.topic for one in wanted])


def _readable(
    partitions: _Partitions, request: fetch.FetchRequest, unauthorized: frozenset[str | bytes]
) -> _Partitions:
    """What the client may read of what it asks for."""
    keys = ((wanted.topic, wanted.partition) for wanted in request.partitions if wanted.topic not in unauthorized)
    return {key: target for key in keys if (target := partitions.get(key)) is not None}


def _why_absent(context: KafkaContext, topic: str | bytes, unauthorized: frozenset[str | bytes]) -> ErrorCode:
    """The error of a partition that there is not, or that the client may not read."""
    if topic in unauthorized:
        return ErrorCode.topic_authorization_failed
    if isinstance(topic, bytes) and topic not in context.logs.topics_by_id:
        return ErrorCode.unknown_topic_id
    return ErrorCode.unknown_topic_or_partition


def _error(partition: int, code: int, high_watermark: int = -1, log_start_offset: int = -1) -> fetch.PartitionData:
    return fetch.PartitionData(partition, code, high_watermark, -1, log_start_offset, None, 0, ())
