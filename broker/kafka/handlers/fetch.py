"""Fetch: read record batches, waiting for enough of them if there are not.

Inline while the records are in the page cache and the partitions few; a cold read goes to the handler pool, which pulls it in
from the disk first, so that no processor waits for one. A fetch that must wait is *parked*: it watches its logs, and whoever
appends has the fetch's own processor look at that log again. When there is enough, a fetch of many partitions is answered by a
handler. Records leave by sendfile; nothing here looks at them.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from broker.errors import Refusal, RequestError, StorageError
from broker.kafka.api import Api, KafkaRequest
from broker.kafka.context import KafkaContext
from broker.kafka.error_codes import code_of
from broker.network.service import Handover, Outbox
from broker.network.work import BULK, INLINE_ENTRIES, REQUEST_ENTRIES_MAX, WATCHED_ALWAYS, Work
from broker.runtime.timers import TimerHandle
from broker.storage.log.log import Log
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import fetch

READ_COMMITTED = 1
# A cold range is pulled into the page cache in pieces of this size (bytes).
_WARM_BYTES = 1024 * 1024
_new = tuple.__new__  # skips the generated __new__


class _Seen(NamedTuple):
    """What a reading saw of one log: its end, and how many bytes there were to send."""

    log: Log
    wanted: fetch.FetchPartition
    end: int
    size: int


class _Reading:
    """One pass over the partitions of a request: what there is to send now."""

    __slots__ = ("committed", "failed", "limit", "logs", "resident", "results", "size")

    def __init__(self, context: KafkaContext, request: fetch.FetchRequest, work: Work | None = None) -> None:
        """``work``: where there are so many partitions that somebody should ask whether the answer is still wanted."""
        self.results: list[tuple[str, list[fetch.PartitionData]]] = []
        self.logs: list[_Seen] = []
        self.size = 0
        self.failed = False
        self.resident = True
        self.committed = request.isolation_level == READ_COMMITTED
        left = self.limit = min(request.max_bytes, context.config.fetch_max_bytes)
        partitions = context.logs.partitions
        last_topic: str | None = None
        for wanted in request.partitions if work is None else work.each(request.partitions):
            target = partitions.get((wanted.topic, wanted.partition))
            if target is None:
                data = _error(wanted.partition, ErrorCode.unknown_topic_or_partition)
                self.failed = True
            else:
                data = self._read(context, target, wanted, left)
                left -= data.records_size
            if wanted.topic != last_topic:
                last_topic = wanted.topic
                self.results.append((wanted.topic, []))
            self.results[-1][1].append(data)

    def _read(self, context: KafkaContext, target: Log, wanted: fetch.FetchPartition, left: int) -> fetch.PartitionData:
        try:
            epoch = wanted.current_leader_epoch
            if epoch >= 0 and epoch != target.leader_epoch:
                older = epoch < target.leader_epoch
                raise RequestError(ErrorCode.fenced_leader_epoch if older else ErrorCode.unknown_leader_epoch)
            most = max(0, min(left, wanted.max_bytes))
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
            context.complain("read_failed", wanted.topic, wanted.partition, error)
            return _error(wanted.partition, ErrorCode.kafka_storage_error)
        self.logs.append(_new(_Seen, (target, wanted, read.high_watermark, read.size)))
        self.size += read.size
        self.resident = self.resident and read.resident
        return fetch.PartitionData(
            wanted.partition,
            0,
            read.high_watermark,
            stable,
            read.log_start_offset,
            aborted,
            read.size,
            read.regions,
        )

    def enough(self, request: fetch.FetchRequest) -> bool:
        """Nothing is gained by waiting."""
        return self.failed or self.size >= request.min_bytes or request.max_wait_ms <= 0 or not request.partitions

    def warm(self) -> None:
        """Read what is to be sent, so that sendfile finds it in memory. Blocks: for handler threads."""
        for _, partitions in self.results:
            for data in partitions:
                for region in data.records_parts:
                    for offset in range(region.offset, region.offset + region.size, _WARM_BYTES):
                        region.file.pread(min(_WARM_BYTES, region.offset + region.size - offset), offset)


def _error(partition: int, code: int, high_watermark: int = -1, log_start_offset: int = -1) -> fetch.PartitionData:
    return fetch.PartitionData(partition, code, high_watermark, -1, log_start_offset, None, 0, ())


def _parse(request: KafkaRequest, max_entries: int) -> fetch.FetchRequest:
    parsed = fetch.parse_request(request.frame, request.api_version, request.body_offset, max_entries)
    if len(parsed.partitions) > 1:
        # Named twice, a partition is answered once, as in Kafka: for what was said last.
        distinct = {(wanted.topic, wanted.partition): wanted for wanted in parsed.partitions}
        if len(distinct) < len(parsed.partitions):
            return parsed._replace(partitions=list(distinct.values()))
    return parsed


_Prepared = tuple[fetch.FetchRequest, _Reading]


def _prepare(context: KafkaContext, request: KafkaRequest) -> _Prepared | Handover:
    parsed = _parse(request, INLINE_ENTRIES)
    reading = _Reading(context, parsed)
    prepared = parsed, reading
    return prepared if reading.resident else Handover(None, prepared)


def _handle(
    context: KafkaContext, request: KafkaRequest, outbox: Outbox, prepared: "_Prepared | _Parked | None"
) -> None:
    if isinstance(prepared, _Parked):
        prepared.answer()
        return
    if prepared is None:  # of many partitions
        parsed = _parse(request, REQUEST_ENTRIES_MAX)
        reading = _Reading(context, parsed, request.work(context))
    else:
        parsed, reading = prepared
    if parsed.session_id != 0:
        # Fetch sessions are not kept: every full fetch is answered with session 0, which clients take as "none".
        _send(request, outbox, (), ErrorCode.fetch_session_id_not_found)
        return
    if parsed.session_epoch > 0:
        _send(request, outbox, (), ErrorCode.invalid_fetch_session_epoch)
        return
    if not reading.resident:
        reading.warm()  # here only on a handler thread
    if reading.enough(parsed):
        _send(request, outbox, reading.results)
    else:
        # On the connection's processor, wherever we are: on a connection that has gone meanwhile, nobody would end the wait.
        outbox.call(request.connection, _Parked(context, request, outbox, parsed, reading).park)


def _send(
    request: KafkaRequest, outbox: Outbox, topics: Sequence[tuple[str, list[fetch.PartitionData]]], error: int = 0
) -> None:
    parts = fetch.response_parts(request.correlation_id, request.api_version, 0, error, 0, topics)
    outbox.send(request, parts)


class _Parked:
    """A fetch that waits for bytes or for its time. From ``park`` on, everything but ``answer`` happens on the connection's
    processor, and only the logs that were appended to are looked at.
    """

    def __init__(
        self,
        context: KafkaContext,
        request: KafkaRequest,
        outbox: Outbox,
        parsed: fetch.FetchRequest,
        reading: _Reading,
    ) -> None:
        self._context = context
        self._request = request
        self._outbox = outbox
        self._parsed = parsed
        self._logs = reading.logs
        self._limit = reading.limit
        self._committed = reading.committed
        self._size = reading.size  # bytes that there are to send, by log as in `_logs` and altogether
        self._watches: list[tuple[Log, int]] = []  # with the token of each; empty: none is watched
        # Numbers of logs that were appended to since they were looked at. A dict: a set whose every operation is one step.
        self._changed: dict[int, None] = {}
        self._timer: TimerHandle | None = None
        self._looking = False  # a look has been asked for and has not happened yet
        self._done = False

    def park(self) -> None:
        self._request.connection.data = self
        deadline = self._request.received_at + self._parsed.max_wait_ms / 1000
        count = len(self._logs)
        if self._context.watches.take(count, force=count <= WATCHED_ALWAYS):
            self._watches = [
                (seen.log, seen.log.watch(partial(self._appended, number))) for number, seen in enumerate(self._logs)
            ]
        self._timer = self._context.timer.at(deadline, self._expired)
        # What was appended between the reading and the watching has rung no bell.
        for number, seen in enumerate(self._logs):
            if seen.log.high_watermark != seen.end:
                self._appended(number)
        # Whoever waited before that has been told already.
        if self._context.stopping or self._request.connection.finished:
            self._expired()

    def _appended(self, number: int) -> None:
        """From the thread that appended (or deleted the topic)."""
        if self._done:
            return  # and on its way to a handler
        self._changed[number] = None
        if not self._looking:
            self._looking = True
            self._outbox.call(self._request.connection, self._look)

    def _expired(self) -> None:
        """From the timer's thread."""
        self._outbox.call(self._request.connection, self.give_up)

    def _look(self) -> None:
        self._looking = False  # before the changes are taken: who comes after that has this called again
        if self._done:
            return
        changed, failed = self._changed, False
        while changed:
            failed = not self._account(changed.popitem()[0]) or failed
        if not failed and self._size < self._parsed.min_bytes:
            return
        if self._is_long:
            self._hand_over()
        else:
            reading = _Reading(self._context, self._parsed)
            if reading.enough(self._parsed):
                self._finish(reading)

    def _account(self, number: int) -> bool:
        """See what there is in one log now. False: it cannot be read, which is reason enough to answer.

        What a log has may be counted in full here although the response has no room for it all, or not as its first batch:
        then the answer comes sooner than it might, or (of few partitions) turns out not to be due yet.
        """
        log, wanted, _, before = self._logs[number]
        try:
            read = log.read(
                wanted.fetch_offset,
                max(0, min(self._limit, wanted.max_bytes)),
                at_least_one=True,
                up_to=log.last_stable_offset if self._committed else None,
            )
        except (Refusal, StorageError):
            return False
        self._logs[number] = _new(_Seen, (log, wanted, read.high_watermark, read.size))
        self._size += read.size - before
        return True

    @property
    def _is_long(self) -> bool:
        return len(self._parsed.partitions) > INLINE_ENTRIES

    def give_up(self) -> None:
        """Answer with what there is."""
        if self._done:
            return
        if self._is_long:
            self._hand_over()
        else:
            self._finish(_Reading(self._context, self._parsed))

    def _finish(self, reading: _Reading) -> None:
        self.abandon()
        self._request.connection.data = None
        _send(self._request, self._outbox, reading.results)

    def _hand_over(self) -> None:
        # The handler lets go of the logs: that of 10,000 takes milliseconds.
        self._done = True
        self._outbox.hand_over(self._request, Handover(BULK, self))

    def answer(self) -> None:
        """On a handler thread."""
        self.abandon()
        self._request.connection.data = None
        reading = _Reading(self._context, self._parsed, self._request.work(self._context))
        if not reading.resident:
            reading.warm()
        _send(self._request, self._outbox, reading.results)

    def abandon(self) -> None:
        """Stop waiting without an answer (the connection is gone). On the processor, and for a fetch that was handed over on a
        handler, maybe at the same time: each watch is taken out by one of them."""
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
        ended = 0
        try:
            while True:
                log, token = self._watches.pop()
                log.unwatch(token)
                ended += 1
        except IndexError:  # none is left
            pass
        if ended:
            self._context.watches.give_back(ended)


API = Api(
    key=ApiKey.FETCH,
    min_version=4,
    max_version=12,
    handle_raw=_handle,
    prepare=_prepare,
)
