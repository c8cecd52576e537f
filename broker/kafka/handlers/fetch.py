"""Fetch: read record batches, waiting for enough of them if there are not.

Inline while the records are in the page cache; a cold read goes to the handler pool, which pulls it in from the disk first, so
that no processor waits for one. A fetch that must wait is *parked*: it watches its logs, and whoever appends has the fetch's
own processor look again. Records leave by sendfile; nothing here looks at them.
"""

from collections.abc import Sequence
from typing import Any

from broker.errors import RequestError, StorageError
from broker.kafka.api import Api, KafkaRequest
from broker.kafka.broker import KafkaBroker
from broker.network.service import Outbox
from broker.network.timers import TimerHandle
from broker.storage.log import Log
from protocol.kafka import fetch
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode

READ_COMMITTED = 1
# A cold range is pulled into the page cache in pieces of this size (bytes).
_WARM_BYTES = 1024 * 1024


class _Reading:
    """One pass over the partitions of a request: what there is to send now."""

    __slots__ = ("committed", "failed", "logs", "resident", "results", "size")

    def __init__(self, broker: KafkaBroker, request: fetch.FetchRequest) -> None:
        self.results: list[tuple[str, list[fetch.PartitionData]]] = []
        self.logs: list[tuple[Log, int]] = []  # with the end each had when it was read
        self.size = 0
        self.failed = False
        self.resident = True
        self.committed = request.isolation_level == READ_COMMITTED
        left = min(request.max_bytes, broker.config.fetch_max_bytes)
        partitions = broker.logs.partitions
        last_topic: str | None = None
        for wanted in request.partitions:
            target = partitions.get((wanted.topic, wanted.partition))
            if target is None:
                data = _error(wanted.partition, ErrorCode.unknown_topic_or_partition)
                self.failed = True
            else:
                data = self._read(broker, target, wanted, left)
                left -= data.records_size
            if wanted.topic != last_topic:
                last_topic = wanted.topic
                self.results.append((wanted.topic, []))
            self.results[-1][1].append(data)

    def _read(self, broker: KafkaBroker, target: Log, wanted: fetch.FetchPartition, left: int) -> fetch.PartitionData:
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
                stable = read.high_watermark if target.first_unstable is None else target.last_stable_offset
        except RequestError as error:
            self.failed = True
            return _error(wanted.partition, error.code, target.high_watermark, target.log_start_offset)
        except StorageError as error:
            self.failed = True
            broker.complain("read_failed", wanted.topic, wanted.partition, error)
            return _error(wanted.partition, ErrorCode.kafka_storage_error)
        self.logs.append((target, read.high_watermark))
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


def _prepare(broker: KafkaBroker, request: KafkaRequest) -> bool:
    parsed = fetch.parse_request(request.body, request.api_version)
    reading = _Reading(broker, parsed)
    request.prepared = (parsed, reading)
    return reading.resident


def _handle(broker: KafkaBroker, request: KafkaRequest, outbox: Outbox) -> None:
    parsed, reading = request.prepared
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
        outbox.call(request.connection, _Parked(broker, request, outbox, parsed, reading).park)


def _send(
    request: KafkaRequest, outbox: Outbox, topics: Sequence[tuple[str, list[fetch.PartitionData]]], error: int = 0
) -> None:
    parts = fetch.response_parts(request.correlation_id, request.api_version, 0, error, 0, topics)
    outbox.send(request, parts)


class _Parked:
    """A fetch that waits for bytes or for its time. From ``park`` on everything happens on the connection's processor."""

    def __init__(
        self,
        broker: KafkaBroker,
        request: KafkaRequest,
        outbox: Outbox,
        parsed: fetch.FetchRequest,
        reading: _Reading,
    ) -> None:
        self._broker = broker
        self._request = request
        self._outbox = outbox
        self._parsed = parsed
        self._logs = reading.logs
        self._watches: list[tuple[Log, Any]] = []
        self._timer: TimerHandle | None = None
        self._looking = False  # a look has been asked for and has not happened yet
        self._done = False

    def park(self) -> None:
        self._request.connection.data = self
        deadline = self._request.received_at + self._parsed.max_wait_ms / 1000
        for entry, _ in self._logs:
            self._watches.append((entry, entry.watch(self._appended)))
        self._timer = self._broker.timer.at(deadline, self._expired)
        # What was appended between the reading and the watching has rung no bell.
        if any(entry.high_watermark != end for entry, end in self._logs):
            self._appended()
        # Whoever waited before that has been told already.
        if self._broker.stopping or self._request.connection.finished:
            self._expired()

    def _appended(self) -> None:
        """From the thread that appended (or deleted the topic)."""
        if not self._looking:
            self._looking = True
            self._outbox.call(self._request.connection, self._look)

    def _expired(self) -> None:
        """From the timer's thread."""
        self._outbox.call(self._request.connection, self.give_up)

    def _look(self) -> None:
        self._looking = False
        if self._done:
            return
        reading = _Reading(self._broker, self._parsed)
        if reading.enough(self._parsed):
            self._finish(reading)

    def give_up(self) -> None:
        """Answer with what there is. On the connection's processor."""
        if not self._done:
            self._finish(_Reading(self._broker, self._parsed))

    def _finish(self, reading: _Reading) -> None:
        self.abandon()
        self._request.connection.data = None
        _send(self._request, self._outbox, reading.results)

    def abandon(self) -> None:
        """Stop waiting without an answer (the connection is gone)."""
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
        for entry, token in self._watches:
            entry.unwatch(token)
        self._watches = []


API = Api(
    key=ApiKey.FETCH,
    min_version=4,
    max_version=12,
    handle_raw=_handle,
    prepare=_prepare,
)
