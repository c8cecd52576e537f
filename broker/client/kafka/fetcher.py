"""Reads the record batches of one partition, in order, as fast as the broker sends them. One thread uses a fetcher.

A fetcher has a connection of its own. Before it returns an answer it sends the next request, for which it finds the end
of the last batch by the batches' headers. Answers are received into one buffer, so each is valid until the caller asks
for the next answer, which meanwhile waits in the kernel. The fetcher handles moves of leaders, broken connections and
throttling, and neither skips nor repeats a batch. The caller gets the next answer, or an error, within
``default.api.timeout.ms`` plus the time that the broker may wait for data.
"""

from typing import Self

from broker.client.kafka.connection import Connection, Retry
from broker.client.kafka.errors import (
    RETRIABLE,
    BrokerAnswerError,
    CorruptRecordError,
    KafkaClientError,
    LinkError,
    OffsetOutOfRangeError,
    RetriableError,
    TimedOutError,
    TopicRecreatedError,
    code_name,
)
from broker.client.kafka.offsets import list_offsets
from broker.client.kafka.routing import Routing
from broker.client.kafka.values import EARLIEST, ISOLATION_LEVELS, LATEST, READ_UNCOMMITTED, Fetched
from broker.runtime.dial import pause
from protocol.errors import ProtocolError
from protocol.frames import DEFAULT_MAX_FRAME
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import fetch
from protocol.kafka.records.batch import whole_batches

# The most bytes to request when a batch does not fit into an answer. Brokers since KIP-74 send such a batch whole.
_MAX_FETCH_BYTES = 1 << 30


class Fetcher:
    """``for fetched in fetcher``. The loop ends, and the connection closes, at ``end``; without an end it goes on.

    At the end of the log the fetcher returns an answer without data after ``max_wait_ms``, so that the caller can stop.
    Raises OffsetOutOfRangeError, UnknownTopicError, TopicRecreatedError, CorruptRecordError, or the error that
    prevented reading.
    """

    def __init__(
        self,
        routing: Routing,
        topic: str,
        partition: int,
        start: int,
        end: int | None,
        *,
        isolation: str,
        max_bytes: int,
        max_wait_ms: int,
        min_bytes: int,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.next_offset = start
        self.end = end
        self._routing = routing
        self._level = ISOLATION_LEVELS[isolation]
        self._max_bytes = max_bytes
        self._max_wait_ms = max_wait_ms
        self._min_bytes = min_bytes
        self._connection: Connection | None = None
        self._version = 0
        self._topic_id = None if (known := routing.known_topic(topic)) is None else known.topic_id
        # The request in flight: its correlation id and the offset that it requests.
        self._request_in_flight: tuple[int, int] | None = None
        self._not_before = 0.0  # throttled by the broker until this time (monotonic, s)
        self._retry: Retry | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Fetched:
        config = self._routing.config
        # The broker may wait for ``max_wait_ms`` if it has no data.
        with self._routing.limit.within(config.api_timeout_ms + self._max_wait_ms):
            return self._next()

    def _next(self) -> Fetched:
        while True:
            if self.end is not None and self.next_offset >= self.end:
                self._drop()
                raise StopIteration
            try:
                fetched = self._fetch()
            except RetriableError as error:
                self._again(error)
            except (LinkError, TimedOutError) as error:
                self._drop()
                self._routing.forget_leader(self.topic, self.partition)
                self._again(error)
            else:
                if fetched is not None:
                    self._retry = None
                    return fetched

    def seek(self, offset: int) -> None:
        """Continue at ``offset``. The answer to the request in flight is dropped when it arrives."""
        self.next_offset = offset

    def close(self) -> None:
        self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # One fetch --------------------------------------------------------------------------------------------------------

    def _fetch(self) -> Fetched | None:
        """The next answer; None if it is for an earlier offset, throttled or too short, so that the caller asks
        again."""
        connection = self._connect()
        if self._request_in_flight is None:
            self._ask(connection)
        assert self._request_in_flight is not None
        correlation_id, offset = self._request_in_flight
        deadline = connection.deadline(self._routing.config.request_timeout_ms + self._max_wait_ms)
        frame = connection.receive(deadline, f"a fetch of {self.topic}-{self.partition}")
        self._request_in_flight = None
        try:
            answer = fetch.parse_response(frame, self._version)
        except ProtocolError as error:
            raise connection.unreadable("FETCH", error) from None
        connection.check_id(answer.correlation_id, correlation_id)
        if answer.throttle_ms > 0:
            self._not_before = self._routing.clock.monotonic() + answer.throttle_ms / 1000
        if offset != self.next_offset:  # the caller has called `seek` since
            return None
        if answer.error:
            self._failed(answer.error)
        if len(answer.partitions) != 1:
            if answer.throttle_ms > 0 and not answer.partitions:
                return None  # throttled: ask again later
            raise BrokerAnswerError(
                f"The broker at {connection.where} answered for {len(answer.partitions)} partitions."
            )
        (data,) = answer.partitions
        if data.error:
            self._failed(data.error)
        return self._take(connection, data)

    def _take(self, connection: Connection, data: fetch.FetchedPartition) -> Fetched | None:
        try:
            size, after = whole_batches(data.records)
        except ProtocolError as error:
            raise CorruptRecordError(
                f"{self.topic}-{self.partition} cannot be read from offset {self.next_offset} on: {error}."
            ) from None
        if not size and len(data.records):
            self._grow(len(data.records))
            return None
        if size:
            if after <= self.next_offset:
                raise CorruptRecordError(
                    f"The broker at {connection.where} sent records of {self.topic}-{self.partition} up to offset"
                    f" {after} where those from {self.next_offset} on were asked for."
                )
            self.next_offset = after
        if self.end is None or self.next_offset < self.end:
            self._ask_ahead(connection)
        return Fetched(
            data.records[:size],
            data.aborted if self._level else None,
            data.high_watermark,
            data.last_stable_offset,
            data.log_start_offset,
            self.next_offset,
        )

    def _grow(self, received: int) -> None:
        """Ask for more bytes: a broker before KIP-74 cuts off a first batch larger than the requested bytes."""
        if self._max_bytes >= _MAX_FETCH_BYTES:
            raise CorruptRecordError(
                f"A record batch at offset {self.next_offset} of {self.topic}-{self.partition} does not fit into"
                f" {received} bytes."
            )
        self._max_bytes = min(2 * self._max_bytes, _MAX_FETCH_BYTES)
        self._drop()  # the connection's largest frame depends on `_max_bytes`

    def _ask(self, connection: Connection) -> None:
        until = min(self._not_before, connection.deadline(self._routing.config.request_timeout_ms))
        pause(until - self._routing.clock.monotonic())
        topic = self._topic_id if self._version >= fetch.FIRST_WITH_TOPIC_ID else self.topic
        assert topic is not None
        correlation_id = connection.next_id()
        request = fetch.request(
            correlation_id,
            self._routing.config.client_id,
            self._version,
            topic,
            self.partition,
            self.next_offset,
            max_wait_ms=self._max_wait_ms,
            min_bytes=self._min_bytes,
            max_bytes=self._max_bytes,
            isolation_level=self._level,
        )
        connection.send([request], connection.deadline(self._routing.config.request_timeout_ms))
        self._request_in_flight = (correlation_id, self.next_offset)

    def _ask_ahead(self, connection: Connection) -> None:
        # A login would overwrite the records, which are still in the connection's buffer; so the next call logs in.
        if self._not_before > self._routing.clock.monotonic() or connection.login_due:
            return
        try:
            self._ask(connection)
        except (LinkError, TimedOutError):  # the received answer is valid; the next call opens a connection
            self._drop()

    # Leaders and errors -----------------------------------------------------------------------------------------------

    def _connect(self) -> Connection:
        if self._connection is None or not self._connection.is_open:
            self._request_in_flight = None
            address = self._routing.leader(self.topic, self.partition)
            self._check_topic_id()
            # The records, which exceed the requested bytes by at most one batch, and the fields around them.
            limit = max(DEFAULT_MAX_FRAME, 2 * self._max_bytes)
            self._connection = self._routing.dial(address, limit)
            highest = fetch.CLIENT_MAX_VERSION if self._topic_id else fetch.FIRST_WITH_TOPIC_ID - 1
            self._version = self._connection.version(ApiKey.FETCH, fetch.CLIENT_MIN_VERSION, highest)
        return self._connection

    def _check_topic_id(self) -> None:
        known = self._routing.known_topic(self.topic)
        if known is None or known.topic_id is None:
            return
        if self._topic_id is not None and known.topic_id != self._topic_id:
            raise TopicRecreatedError(
                f"The topic {self.topic!r} was deleted and made again while it was read:"
                f" offset {self.next_offset} means another record now."
            )
        self._topic_id = known.topic_id

    def _failed(self, code: int) -> None:
        where = f"{self.topic}-{self.partition}"
        if code == ErrorCode.offset_out_of_range:
            self._out_of_range()
        if code in RETRIABLE:
            self._drop()
            self._routing.forget_leader(self.topic, self.partition)
            raise RetriableError(f"{where} cannot be read: {code_name(code)}.", code)
        self._drop()
        raise BrokerAnswerError(f"{where} cannot be read: {code_name(code)}.", code)

    def _out_of_range(self) -> None:
        """Raises OffsetOutOfRangeError, or RetriableError if the offset exists by now (after a change of leader)."""
        self._drop()
        key = (self.topic, self.partition)
        start = list_offsets(self._routing, {key: EARLIEST}, READ_UNCOMMITTED)[key]
        end = list_offsets(self._routing, {key: LATEST}, READ_UNCOMMITTED)[key]
        assert start is not None
        assert end is not None
        if start <= self.next_offset <= end:
            raise RetriableError(
                f"{self.topic}-{self.partition} does not have offset {self.next_offset} yet.",
                ErrorCode.offset_not_available,
            )
        raise OffsetOutOfRangeError.of(self.topic, self.partition, self.next_offset, start, end)

    def _again(self, failure: KafkaClientError) -> None:
        if self._retry is None:
            self._retry = self._routing.retry()
        self._routing.after_failure(failure, self._retry)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._request_in_flight = None
        if connection is not None:
            connection.close()
