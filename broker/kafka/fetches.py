"""Fetch requests: reading, waiting and answering.

``Reading`` is one pass over the partitions of a request, on the connection's processor, or on a handler for requests of many
partitions and for records that are not in the page cache. It finds regions of files and reads no records. It asks for the
client's rights each time, so a parked fetch gets nothing after its right was taken away. From version 13 on a request names
topics by their ids, as 16 bytes. Everything here looks up by the request's own key, name or id, so a parked fetch never gets the
records of a new topic under the old name.

``translate`` serves logs with entries of Pulsar's producers: entries become record batches with the same offsets, and Kafka's
batches between them still leave by sendfile. An entry is read, decompressed and written anew, in Python, so this runs on threads
that may block, and a response has a bounded number of bytes of entries, but at least one entry; the client asks again for the
rest. The bytes that a fetch waits for are counted as they are in the log.

``ParkedFetch`` is a fetch that waits for bytes or for its deadline. It watches its logs, and a thread that appends to one of them
has the fetch's own processor look at that log again. When there are enough bytes, a handler answers a fetch of many partitions.

``send_records`` answers with a reading, on any thread. Records leave by sendfile.

Tests: tests/kafka/handlers/test_fetch.py,
tests/kafka/handlers/test_fetch_entries.py,
tests/kafka/handlers/test_topic_ids.py,
tests/kafka/test_fetched_entries.py,
tests/kafka/handlers/test_fetch_waiting.py,
tests/kafka/test_metering.py.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from broker.errors import Refusal, RequestError, StorageError
from broker.kafka import leader_hints
from broker.kafka.api import KafkaRequest
from broker.kafka.authorization import denied, denied_ids, may
from broker.kafka.context import KafkaContext
from broker.kafka.error_codes import code_of
from broker.kafka.leader_hints import TELLING
from broker.kafka.metering import Metered
from broker.metrics.tracing import LOG_CALLS_MAX, LogCall
from broker.network.service import Connection, Handover, Outbox, Part
from broker.network.work import BULK, INLINE_ENTRIES, REMOTE, WATCHED_ALWAYS, Work
from broker.runtime.disk import FileRegion, warm_all
from broker.runtime.threads import get_ident
from broker.runtime.timers import TimerHandle
from broker.security.acl import Operation, ResourceType
from broker.storage.log import inspection
from broker.storage.log.inspection import walk
from broker.storage.log.log import Log
from broker.storage.log.reading import Elsewhere
from protocol.errors import ProtocolError
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import fetch
from protocol.kafka.messages.leaders import Hints
from protocol.kafka.records.batch import BatchHeader

# A response's bytes of entries: 10,000 messages of 100 bytes take about 30 ms to write anew.
MOST_BYTES = 1024 * 1024
_CHUNK = 256 * 1024


class Translated(NamedTuple):
    """Parts of a response; ``whole`` is False if some batches did not fit."""

    parts: list[Part]
    size: int
    whole: bool


def translate(log: Log, regions: Sequence[FileRegion], most: int, *, at_least_one: bool) -> Translated:
    """The parts of a response: the whole batches in ``regions``, with records in the place of entries, as many as fit ``most``;
    with ``at_least_one`` the first batch even if it does not fit.

    Raises StorageError for a damaged log.
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
        raise log.state.go_offline(f"a record batch is damaged: {error}") from error
    except OSError as error:
        raise log.state.failed("entries could not be read", error) from error
    return Translated(parts, size, True)


def _extend(parts: list[Part], region: FileRegion, position: int, size: int) -> None:
    """Add bytes of the file, to the region before them if they follow it."""
    last = parts[-1] if parts else None
    if isinstance(last, FileRegion) and last.file is region.file and last.offset + last.size == position:
        last.size += size
    else:
        parts.append(FileRegion(region.file, position, size))


def _of_entries(header: BatchHeader) -> int:
    """The batch's size if it is an entry, else 0."""
    return header.size if header.is_entry else 0


READ_COMMITTED = 1
# The number of files that a response sends from; later partitions of the request get nothing this time. A client that does not
# read its response holds all these files open.
FILES_MAX = 1000
NO_TOPICS: frozenset[str | bytes] = frozenset()
_NO_ENTRIES: dict[tuple[str | bytes, int], tuple[Log, int]] = {}
_Partitions = Mapping[tuple[Any, int], Log]  # by the name of the topic, or by its id
# Looking up a member of an enumeration costs as much as an authorizer's answer.
_READ, _TOPIC = Operation.READ, ResourceType.TOPIC
_new = tuple.__new__  # faster than a named tuple's own __new__


class Seen(NamedTuple):
    """A log as a reading saw it: its end, and the number of bytes to send."""

    log: Log
    wanted: fetch.FetchPartition
    end: int
    size: int


class Reading:
    """One pass over the partitions of a request: the bytes to send at that moment."""

    __slots__ = (
        "committed",
        "elsewhere",
        "entries",
        "failed",
        "files",
        "limit",
        "log_calls",
        "logs",
        "may_wait",
        "resident",
        "results",
        "size",
    )

    def __init__(
        self,
        context: KafkaContext,
        connection: Connection,
        request: fetch.FetchRequest,
        work: Work | None = None,
        *,
        may_wait: bool = False,
    ) -> None:
        """``work``: set for many partitions, so that the reading ends when nobody waits for the answer. ``may_wait``: for the
        object store; otherwise the reading has nothing of what is there, and ``elsewhere`` says so. Topics that the client may
        not read are not looked up."""
        self.results: list[tuple[str | bytes, list[fetch.PartitionData]]] = []
        self.logs: list[Seen] = []
        self.size = 0
        self.files = 0
        self.failed = False
        self.resident = True
        self.elsewhere = False
        self.may_wait = may_wait
        # Logs with entries among the bytes to send, each with its limit of bytes.
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
        of_topic: list[fetch.PartitionData] = []  # of that topic
        for wanted in request.partitions if work is None else work.each(request.partitions):
            topic = wanted.topic
            target = partitions.get((topic, wanted.partition))
            if target is None:
                data = _error(wanted.partition, _why_absent(context, topic, wanted.partition, unauthorized))
                self.failed = True
            else:
                data = read(context, target, wanted, left)
                left -= data.records_size
            if topic != last_topic:
                last_topic, of_topic = topic, []
                self.results.append((topic, of_topic))
            of_topic.append(data)

    def _read(self, context: KafkaContext, target: Log, wanted: fetch.FetchPartition, left: int) -> fetch.PartitionData:
        try:
            epoch = wanted.current_leader_epoch
            if epoch >= 0 and epoch != target.leader_epoch:
                older = epoch < target.leader_epoch
                raise RequestError(ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch)
            most = max(0, min(left, wanted.max_bytes)) if self.files < FILES_MAX else 0
            aborted: list[tuple[int, int]] | None = None
            # KIP-74: the first partition with records sends at least one batch, whatever the limits say.
            if self.committed:
                stable = target.last_stable_offset
                read = target.read(
                    wanted.fetch_offset, most, at_least_one=self.size == 0, up_to=stable, may_wait=self.may_wait
                )
                transactions = target.transactions.aborted(wanted.fetch_offset, read, stable)
                aborted = [(transaction.producer_id, transaction.first_offset) for transaction in transactions]
            else:
                read = target.read(wanted.fetch_offset, most, at_least_one=self.size == 0, may_wait=self.may_wait)
                stable = read.high_watermark if target.state.first_unstable is None else target.last_stable_offset
        except Refusal as error:
            self.failed = True
            return _error(wanted.partition, code_of(error), target.high_watermark, target.log_start_offset)
        except Elsewhere:
            self.elsewhere, self.resident = True, False
            return _error(wanted.partition, ErrorCode.none)  # another reading answers
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
        """Read, and note the times if there are bytes to send."""
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
        """The response can be sent: it has ``min_bytes``, an error or as much as it may have, or the client does not wait."""
        return (
            self.failed
            or self.elsewhere
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
                entry = self.entries.get((topic, data.partition))
                if entry is None:
                    continue
                log, most = entry
                try:
                    translated = translate(log, data.records_parts, min(left, most), at_least_one=not (size or plain))
                    partitions[number] = data._replace(records_size=translated.size, records_parts=translated.parts)
                    size += translated.size
                    # The batches that did not fit were written anew for nothing. Once is enough.
                    left = left - translated.size if translated.whole or most < left else 0
                except StorageError as error:
                    context.complain("read_failed", log.topic, data.partition, error)
                    partitions[number] = _error(data.partition, ErrorCode.kafka_storage_error)

    def warm(self, context: KafkaContext) -> None:
        """Read the bytes to send, so that sendfile finds them in the page cache. It blocks: for handler threads only."""
        for topic, partitions in self.results:
            for number, data in enumerate(partitions):
                if not data.records_size:
                    continue
                began = 0.0 if context.traces is None else context.clock.monotonic()
                try:
                    parts = warm_all(data.records_parts, is_enough=True)
                except OSError as error:
                    partitions[number] = self._unreadable(context, topic, data.partition, error)
                    continue
                size = sum(map(len, parts))  # less if not all of it can be read now
                partitions[number] = data._replace(records_parts=parts, records_size=size)
                if context.traces is not None:
                    self._note("load", topic, data.partition, None, began, context)

    def _unreadable(
        self, context: KafkaContext, topic: str | bytes, partition: int, error: OSError
    ) -> fetch.PartitionData:
        self.failed = True
        for log, wanted, _, _ in self.logs:
            if (wanted.topic, wanted.partition) == (topic, partition):
                failure = log.state.failed("it could not be read", error)
                context.complain("read_failed", log.topic, partition, failure)
        return _error(partition, ErrorCode.kafka_storage_error)


def _unauthorized(context: KafkaContext, connection: Connection, request: fetch.FetchRequest) -> frozenset[str | bytes]:
    """Topics of the request that the client may not read."""
    wanted: Sequence[Any] = request.partitions  # their topics are all names, or all ids
    if len(wanted) == 1:
        topic = name = wanted[0].topic
        if request.by_id:
            info = context.logs.topics_by_id.get(topic)
            if info is None:
                return NO_TOPICS
            name = info.name
        return NO_TOPICS if may(context, connection, _READ, _TOPIC, name) else frozenset((topic,))
    if request.by_id:
        return denied_ids(context, connection, _READ, [partition.topic for partition in wanted])
    return denied(context, connection, _READ, _TOPIC, [partition.topic for partition in wanted])


def _readable(
    partitions: _Partitions, request: fetch.FetchRequest, unauthorized: frozenset[str | bytes]
) -> _Partitions:
    """The partitions of the request that the client may read."""
    keys = ((wanted.topic, wanted.partition) for wanted in request.partitions if wanted.topic not in unauthorized)
    return {key: target for key in keys if (target := partitions.get(key)) is not None}


def _why_absent(
    context: KafkaContext, topic: str | bytes, partition: int, unauthorized: frozenset[str | bytes]
) -> ErrorCode:
    """The error of a partition that does not exist, or that the client may not read."""
    if topic in unauthorized:
        return ErrorCode.topic_authorization_failed
    return context.why_absent(topic, partition)


def _error(partition: int, code: int, high_watermark: int = -1, log_start_offset: int = -1) -> fetch.PartitionData:
    return fetch.PartitionData(partition, code, high_watermark, -1, log_start_offset, None, 0, ())


def send(
    request: KafkaRequest,
    outbox: Outbox,
    topics: Sequence[tuple[str | bytes, list[fetch.PartitionData]]],
    error: int = 0,
) -> None:
    parts = fetch.response_parts(request.correlation_id, request.api_version, 0, error, 0, topics)
    outbox.send(request, parts)


def _hints(context: KafkaContext, request: KafkaRequest, reading: Reading) -> Hints | None:
    if not reading.failed or request.api_version < fetch.FIRST_WITH_LEADERS:
        return None
    failed = [
        (topic, data.partition) for topic, partitions in reading.results for data in partitions if data.error in TELLING
    ]
    return leader_hints.hints(context, request.connection.peer, failed)


def send_records(context: KafkaContext, request: KafkaRequest, outbox: Outbox, reading: Reading, *, warm: bool) -> None:
    """Send the reading's bytes, or nothing if the client has used up its quota. ``warm``: first read them into the page cache,
    which blocks; a reading with entries needs it."""
    if reading.entries:
        reading.translate(context)
    hints = None if context.nodes is None else _hints(context, request, reading)
    parts = fetch.response_parts(request.correlation_id, request.api_version, 0, 0, 0, reading.results, hints)
    if type(outbox) is Metered and not outbox.fetched(sum(map(len, parts)) - 4):
        send(request, outbox, ())
        return
    if warm and not reading.resident:
        reading.warm(context)
        parts = fetch.response_parts(request.correlation_id, request.api_version, 0, 0, 0, reading.results, hints)
    if reading.failed:
        for _, partitions in reading.results:
            for data in partitions:
                if data.error:
                    context.errors.add(request.api.label, data.error)
    if reading.size:
        thread = get_ident()
        for log, _, _, size in reading.logs:
            if size:
                log.state.sent_bytes[thread] += size
    if context.traces is not None:
        request.log_calls = reading.log_calls
    outbox.send(request, parts)


# faster than a named tuple's own __new__


class ParkedFetch:
    """A fetch that waits for bytes or for its deadline. From ``park`` on, everything but ``answer`` runs on the connection's
    processor.

    Most fetches can be answered as soon as one of their logs has grown: they are read again as a whole. Fetches that wait for
    more, or of many logs, count the bytes of their logs, and only look at logs that were appended to.
    """

    def __init__(
        self,
        context: KafkaContext,
        request: KafkaRequest,
        outbox: Outbox,
        parsed: fetch.FetchRequest,
        reading: Reading,
    ) -> None:
        self._context = context
        self._request = request
        self._outbox = outbox
        self._parsed = parsed
        self._logs = reading.logs
        self._limit = reading.limit
        self._committed = reading.committed
        self._size = reading.size  # bytes to send, the sum of the sizes in `_logs`
        self._watches: list[tuple[Log, int]] = []  # each with its token; empty if there was no room for watches
        # Indexes of logs that were appended to since they were read. A dict instead of a set: its operations are atomic.
        self._changed: dict[int, None] = {}
        self._timer: TimerHandle | None = None
        self._looking = False  # `_look` was submitted to the processor and has not run yet
        self._done = False
        count = len(parsed.partitions)
        # The records of an open transaction are no reason for an answer.
        self._accounts = count > INLINE_ENTRIES or (count > 1 and (parsed.min_bytes > 1 or self._committed))

    def park(self) -> None:
        connection = self._request.connection
        connection.data = self
        deadline = self._request.received_at + self._parsed.max_wait_ms / 1000
        count = len(self._logs)
        if self._context.watches.take(count, force=count <= WATCHED_ALWAYS):
            if self._accounts:
                self._watches = [
                    (seen.log, seen.log.watch(partial(self._appended, number)))
                    for number, seen in enumerate(self._logs)
                ]
            else:
                woken = self._woken
                self._watches = [(seen.log, seen.log.watch(woken)) for seen in self._logs]
        self._timer = self._context.timer.at(deadline, self._expired)
        # Appends between the reading and the watching have called no watch.
        for number, seen in enumerate(self._logs):
            if seen.log.high_watermark != seen.end:
                self._appended(number)
        # When the broker began to stop, or the peer finished, parked fetches were told. This fetch was not parked yet.
        if self._context.stopping or connection.finished:
            self._expired()

    def _appended(self, number: int) -> None:
        """Called by the thread that appended, or that deleted the topic."""
        self._changed[number] = None
        self._woken()

    def _woken(self) -> None:
        if self._done:
            return  # answered, or handed over to a handler
        if not self._looking:
            self._looking = True
            self._outbox.call(self._request.connection, self._look)

    def _expired(self) -> None:
        """Called on the timer's thread."""
        self._outbox.call(self._request.connection, self.give_up)

    def _look(self) -> None:
        self._looking = False  # cleared before the logs are read: an append after that submits another look
        if self._done or (self._accounts and not self._has_enough()):
            return
        if self._is_long:
            self._hand_over()
        else:
            reading = Reading(self._context, self._request.connection, self._parsed)
            if reading.enough(self._parsed):
                self._finish(reading)

    def _has_enough(self) -> bool:
        changed, failed = self._changed, False
        while changed:
            failed = not self._account(changed.popitem()[0]) or failed
        return failed or self._size >= self._parsed.min_bytes

    def _account(self, number: int) -> bool:
        """Count the bytes that one log has to send now. False: it cannot be read, so the fetch is answered.

        The count may be higher than the response has room for. Then a fetch of many partitions is answered sooner than
        necessary, and one of few partitions is read again and goes on waiting.
        """
        log, wanted, _, before = self._logs[number]
        try:
            read = log.read(
                wanted.fetch_offset,
                max(0, min(self._limit, wanted.max_bytes)),
                at_least_one=True,
                up_to=log.last_stable_offset if self._committed else None,
                may_wait=False,
            )
        except (Refusal, StorageError, Elsewhere):
            return False
        self._logs[number] = _new(Seen, (log, wanted, read.high_watermark, read.size))
        self._size += read.size - before
        return True

    @property
    def _is_long(self) -> bool:
        return len(self._parsed.partitions) > INLINE_ENTRIES

    def give_up(self) -> None:
        """Answer with the bytes that there are."""
        if self._done:
            return
        if self._is_long:
            self._hand_over()
        else:
            self._finish(Reading(self._context, self._request.connection, self._parsed))

    def _finish(self, reading: Reading) -> None:
        if reading.entries or reading.elsewhere:
            self._hand_over(REMOTE if reading.elsewhere else BULK)
            return
        self.abandon()
        self._request.connection.data = None
        send_records(self._context, self._request, self._outbox, reading, warm=False)

    def _hand_over(self, lane: str = BULK) -> None:
        # The handler ends the watches: for 10,000 logs that takes milliseconds.
        self._done = True
        self._outbox.hand_over(self._request, Handover(lane, self))

    def answer(self) -> None:
        """Called on a handler thread."""
        self.abandon()
        self._request.connection.data = None
        work, may_wait = self._request.work(self._context), self._request.lane == REMOTE
        reading = Reading(self._context, self._request.connection, self._parsed, work, may_wait=may_wait)
        if reading.elsewhere:
            self._outbox.hand_over(self._request, Handover(REMOTE, self))
            return
        send_records(self._context, self._request, self._outbox, reading, warm=True)

    def abandon(self) -> None:
        """Stop waiting without an answer. Called on the processor when the connection has closed, and on a handler for a fetch
        that was handed over, perhaps at the same time: each watch is popped, and ended, by one of the two."""
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
        ended = 0
        try:
            while True:
                log, token = self._watches.pop()
                log.unwatch(token)
                ended += 1
        except IndexError:  # all watches are ended
            pass
        if ended:
            self._context.watches.give_back(ended)
