"""Sends record batches to the leaders of their partitions: several requests in flight to each broker, in order.

A batch that a broker refuses temporarily, or with an unknown outcome after a broken connection, is *recovered* at
once: all batches of the partitions concerned are sent again one by one, in order, each on a connection of its own,
until ``delivery.timeout.ms`` is over. The broker recognizes a batch that it already has by its sequence number; without
idempotence such a batch is written twice.

A batch that exceeds its topic's ``max.message.bytes`` is split during the recovery, as in Java's producer. Records are
copied one by one, which costs about 10 us each; so ``largest`` has later batches made smaller before they are sent, and
only batches that were already in flight are split.

All work runs on the producer's thread. The name is that of Java's client, where the sender is a thread.

Tests: tests/client/kafka/test_producer.py,
tests/client/kafka/test_faults.py,
tests/client/kafka/test_other_brokers.py.
"""

import contextlib
from collections import deque
from collections.abc import Collection, Iterator, Mapping

import attrs

from broker.client.kafka import transaction
from broker.client.kafka.config import Address
from broker.client.kafka.connection import Connection
from broker.client.kafka.errors import (
    RETRIABLE,
    BrokerAnswerError,
    KafkaClientError,
    LinkError,
    ProducerFencedError,
    RecordTooLargeError,
    RetriableError,
    TimedOutError,
    TransactionError,
    code_name,
)
from broker.client.kafka.routing import Routing
from broker.client.kafka.transaction import TransactionManager
from broker.client.kafka.values import TopicPartition
from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import produce
from protocol.kafka.records.batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    SEQUENCES,
    TRANSACTIONAL,
    read_header,
    set_producer,
)
from protocol.kafka.records.records import MAX_RECORDS_SIZE, Record, build_batch, records

# The most bytes of a record beside key, value and headers: seven fields of up to five bytes, and a time of ten.
_RECORD_OVERHEAD = 40


def split(data: bytearray, most: int) -> list[tuple[bytearray, int]]:
    """Batches of about ``most`` bytes, at least two, each with its number of records. ``data`` must have two or more
    records.

    Times, headers, codec and producer are kept. The sequence numbers continue from batch to batch, so that the batches
    together use the numbers of ``data``. Raises ProtocolError if ``data`` cannot be read.
    """
    header = read_header(data)
    assert header.record_count > 1, "one record cannot be split"
    unpacked = list(records(data, max_size=MAX_RECORDS_SIZE))
    total = sum(map(_size, unpacked))
    # `most` counts compressed bytes: scale it to the bytes before compression.
    packed = max(1, header.size - HEADER_SIZE)
    group_bytes = min(max(1, most - HEADER_SIZE) * total // packed, total - 1)
    pieces: list[tuple[bytearray, int]] = []
    before = 0
    for group in _groups(unpacked, group_bytes):
        piece = build_batch(
            ((record.key, record.value, record.headers, record.timestamp) for record in group),
            compression=header.compression,
            attributes=header.attributes & LOG_APPEND_TIME,
        )
        if header.has_producer:
            sequence = (header.base_sequence + before) % SEQUENCES
            transactional = bool(header.attributes & TRANSACTIONAL)
            set_producer(piece, header.producer_id, header.producer_epoch, sequence, transactional)
        pieces.append((piece, len(group)))
        before += len(group)
    return pieces


def _groups(unpacked: list[Record], group_bytes: int) -> Iterator[list[Record]]:
    group: list[Record] = []
    size = 0
    for record in unpacked:
        if group and size + _size(record) > group_bytes:
            yield group
            group, size = [], 0
        group.append(record)
        size += _size(record)
    yield group


def _size(record: Record) -> int:
    size = _RECORD_OVERHEAD + len(record.key or b"") + len(record.value or b"")
    return size + sum(10 + len(name) + len(value or b"") for name, value in record.headers)


_WRITTEN = frozenset({ErrorCode.none, ErrorCode.duplicate_sequence_number})
_TOO_LARGE = frozenset({ErrorCode.message_too_large, ErrorCode.record_list_too_large})

# From version 12 on, Produce itself adds partitions to the transaction (KIP-890); this client adds them explicitly.
_HIGHEST_IN_TRANSACTION = 11

# A request is sent when half of this is queued for it, even if `max.request.size` allows a larger single record.
_REQUEST_BYTES = 4 * 1024 * 1024


@attrs.define(eq=False)
class Batch:
    topic: str
    partition: int
    data: bytearray
    count: int
    too_large: bool = False  # a broker has refused it for its size: it is certainly not written, and may be split

    @property
    def key(self) -> TopicPartition:
        return self.topic, self.partition


@attrs.define(eq=False)
class _Lane:
    """The requests to one broker. ``in_flight``: those that wait for answers, oldest first, as (correlation id,
    batches)."""

    address: Address
    connection: Connection | None = None
    in_flight: deque[tuple[int, list[Batch]]] = attrs.Factory(deque)
    queued: dict[TopicPartition, Batch] = attrs.Factory(dict)
    queued_bytes: int = 0

    def take_queued(self) -> list[Batch]:
        batches = list(self.queued.values())
        self.queued.clear()
        self.queued_bytes = 0
        return batches

    def take_all(self) -> list[Batch]:
        batches = [batch for _, sent in self.in_flight for batch in sent] + self.take_queued()
        self.in_flight.clear()
        return batches


class Sender:
    """``enqueue`` batches, then ``flush``. Raises the first error that another try does not overcome."""

    def __init__(self, routing: Routing, transactions: TransactionManager, acks: int) -> None:
        self._routing = routing
        self._transactions = transactions
        self._acks = acks
        self._lanes: dict[Address, _Lane] = {}
        self._last_lane: dict[TopicPartition, _Lane] = {}  # the lane of each partition's last batch
        self._largest: dict[str, int] = {}  # by topic that has refused a batch for its size
        # How many records of each partition are acknowledged, counted from the first record sent to it.
        self.acknowledged: dict[TopicPartition, int] = {}
        # The partition of the batch that a broker has refused for good.
        self.refused: TopicPartition | None = None

    def largest(self, topic: str) -> int:
        return self._largest.get(topic, self._routing.config.max_request_size)

    def enqueue(self, batch: Batch) -> None:
        """Put the batch into the next request to its leader, and send that request when it is half full or would
        overflow."""
        most = min(self._routing.config.max_request_size, _REQUEST_BYTES)
        lane = self._lane(batch)
        if batch.key in lane.queued or lane.queued_bytes + len(batch.data) > most:
            self._transmit(lane)
        lane.queued[batch.key] = batch
        lane.queued_bytes += len(batch.data)
        if 2 * lane.queued_bytes >= most:
            self._transmit(lane)

    def transmit(self) -> None:
        """Send requests that are not full."""
        for lane in list(self._lanes.values()):
            self._transmit(lane)

    def flush(self) -> None:
        """Return when every batch is acknowledged."""
        self.transmit()
        for lane in list(self._lanes.values()):
            while lane.in_flight:
                self._receive(lane)

    def settle(self, missing: Collection[TopicPartition] = ()) -> None:
        """Wait for the answers to all requests in flight: no batch arrives after this returns. Refusals are not raised,
        and nothing is sent again. ``missing``: partitions of which an earlier batch is not written."""
        refused = set(missing)
        for lane in self._lanes.values():
            connection = lane.connection
            while lane.in_flight and connection is not None and connection.is_open:
                correlation_id, batches = lane.in_flight.popleft()
                try:
                    results = self._answer(connection, correlation_id)
                except KafkaClientError:
                    connection.close()
                    continue
                for batch in batches:
                    result = results.get(batch.key)
                    if result is None or result.error not in _WRITTEN:
                        refused.add(batch.key)
                    elif (
                        batch.key not in refused
                    ):  # without idempotence, later batches are written after a refused batch
                        self._count(batch)

    def close(self) -> None:
        """Close the connections. Batches that are queued or in flight may or may not be written."""
        for lane in self._lanes.values():
            if lane.connection is not None:
                lane.connection.close()
            lane.take_all()
        self._lanes.clear()
        self._last_lane.clear()

    # In flight ------------------------------------------------------------------------------------------------------

    def _lane(self, batch: Batch) -> _Lane:
        address = self._routing.retrying(lambda: self._routing.leader(*batch.key))
        lane = self._lanes.get(address)
        if lane is None:
            lane = self._lanes[address] = _Lane(address)
        last = self._last_lane.get(batch.key)
        if last is not None and last is not lane:
            # The partition has moved: first settle the batches that went to its old leader.
            self._transmit(last)
            while last.in_flight:
                self._receive(last)
        self._last_lane[batch.key] = lane
        return lane

    def _transmit(self, lane: _Lane) -> None:
        """Send the queued batches as one request."""
        if not lane.queued:
            return
        while len(lane.in_flight) >= self._routing.config.max_in_flight or self._must_wait(lane):
            self._receive(lane)
        if not lane.queued:  # a recovery has sent them
            return
        self._transactions.add_partitions(lane.queued)
        try:
            connection = lane.connection
            if connection is None or not connection.is_open:
                connection = lane.connection = self._routing.dial(lane.address)
            correlation_id = self._request(connection, list(lane.queued.values()))
        except (LinkError, TimedOutError) as error:
            self._recover(lane, lane.take_all(), error)
            return
        batches = lane.take_queued()
        if self._acks:
            lane.in_flight.append((correlation_id, batches))

    def _must_wait(self, lane: _Lane) -> bool:
        """Whether the request must wait: a partition's first batch must be in flight alone, and a login must wait for
        all answers.

        A partition accepts any sequence number as the first of a producer that it does not know. If the first batch
        were refused and the second accepted, the first could never be written.
        """
        if lane.in_flight and lane.connection is not None and lane.connection.login_due:
            return True
        new = lane.queued.keys() - self._transactions.acknowledged
        return self._transactions.idempotent and any(batch.key in new for _, sent in lane.in_flight for batch in sent)

    def _request(self, connection: Connection, batches: list[Batch]) -> int:
        config = self._routing.config
        correlation_id = connection.next_id()
        parts = produce.request_parts(
            correlation_id,
            config.client_id,
            self._version(connection),
            self._transactions.transactional_id,
            self._acks,
            config.request_timeout_ms,
            [(batch.topic, batch.partition, batch.data) for batch in batches],
        )
        connection.send(parts, connection.deadline(config.request_timeout_ms))
        return correlation_id

    def _version(self, connection: Connection) -> int:
        in_transaction = self._transactions.transactional_id is not None
        highest = _HIGHEST_IN_TRANSACTION if in_transaction else produce.CLIENT_MAX_VERSION
        return connection.version(ApiKey.PRODUCE, produce.CLIENT_MIN_VERSION, highest)

    def _answer(
        self, connection: Connection, correlation_id: int
    ) -> dict[tuple[str | bytes, int], produce.PartitionResult]:
        # With acks=all, the broker itself may take as long as request.timeout.ms.
        deadline = connection.deadline(2 * self._routing.config.request_timeout_ms)
        frame = connection.receive(deadline, ApiKey.PRODUCE.name)
        try:
            answered, results = produce.parse_response(frame, self._version(connection))
        except ProtocolError as error:
            raise connection.unreadable(ApiKey.PRODUCE.name, error) from None
        connection.check_id(answered, correlation_id)
        return {(result.topic, result.partition): result for result in results}

    def _receive(self, lane: _Lane) -> None:
        """Receive the answer to the oldest request."""
        assert lane.connection is not None
        correlation_id, batches = lane.in_flight[0]
        try:
            results = self._answer(lane.connection, correlation_id)
        except (LinkError, TimedOutError) as error:
            self._recover(lane, lane.take_all(), error)
            return
        lane.in_flight.popleft()
        refused: list[Batch] = []
        first_refusal: KafkaClientError | None = None
        final: tuple[KafkaClientError, TopicPartition | None] | None = None
        for batch in batches:
            try:
                refusal = self._refusal(batch, results)
            except KafkaClientError as error:
                final = final or (error, self.refused)
                refused.append(batch)
                continue
            if refusal is not None:
                refused.append(batch)
                first_refusal = first_refusal or refusal
        if final is not None:
            # Batches of other partitions that were written count as acknowledged, also those of the requests in flight.
            with self._routing.limit.within(self._routing.config.request_timeout_ms):
                self.settle({batch.key for batch in refused})
            self.refused = final[1]
            raise final[0]
        if first_refusal is not None:
            self._recover(lane, refused + self._drain(lane, {batch.key for batch in refused}), first_refusal)

    def _drain(self, lane: _Lane, refused: set[TopicPartition]) -> list[Batch]:
        """Receive all answers. Returns the other batches to send again, in order: all later batches of ``refused``
        partitions."""
        resend: list[Batch] = []
        assert lane.connection is not None
        while lane.in_flight:
            correlation_id, batches = lane.in_flight[0]
            try:
                results = self._answer(lane.connection, correlation_id)
            except (LinkError, TimedOutError):
                return resend + lane.take_all()
            lane.in_flight.popleft()
            for batch in batches:
                try:
                    is_refused = self._refusal(batch, results) is not None
                except KafkaClientError:
                    if batch.key not in refused:
                        raise
                    self.refused = None
                    is_refused = True  # its sequence number is out of order, because an earlier batch is missing
                if is_refused:
                    refused.add(batch.key)
                    resend.append(batch)
        for key in [key for key in lane.queued if key in refused]:
            queued = lane.queued.pop(key)
            lane.queued_bytes -= len(queued.data)
            resend.append(queued)
        return resend

    def _refusal(
        self, batch: Batch, results: Mapping[tuple[str | bytes, int], produce.PartitionResult]
    ) -> KafkaClientError | None:
        """None if the batch is written, a RetriableError if another try may help, a RecordTooLargeError if it must be split.

        Raises any other error.
        """
        where = f"{batch.topic}-{batch.partition}"
        result = results.get(batch.key)
        if result is None:
            raise BrokerAnswerError(f"The broker said nothing about a batch for {where}.")
        code = result.error
        if code in _WRITTEN:
            self._count(batch)
            return None
        message = f": {result.error_message}" if result.error_message else ""
        if code in RETRIABLE and code != ErrorCode.corrupt_message:
            return RetriableError(f"{where} cannot be written: {code_name(code)}{message}.", code)
        if code in _TOO_LARGE and batch.count > 1:
            batch.too_large = True
            # More than half: each of the two halves has a header, so it is larger than half.
            smaller = len(batch.data) * 5 // 8
            self._largest[batch.topic] = min(smaller, self.largest(batch.topic))
            return RecordTooLargeError(f"A batch of {len(batch.data)} bytes for {where} is too large{message}.", code)
        self.refused = batch.key
        if code in _TOO_LARGE:
            raise RecordTooLargeError(
                f"A record for {where} takes {len(batch.data)} bytes, which is more than the topic takes: make the record"
                f" smaller, or the topic's max.message.bytes larger ({code_name(code)}).",
                code,
            )
        if code in transaction.FENCED:
            raise ProducerFencedError(
                f"{where} cannot be written: a newer producer has the transactional id"
                f" {self._transactions.transactional_id!r} ({code_name(code)}).",
                code,
            )
        if code == ErrorCode.invalid_txn_state:
            raise TransactionError(f"{where} cannot be written in this transaction: {code_name(code)}{message}.", code)
        raise BrokerAnswerError(f"{where} cannot be written: {code_name(code)}{message}.", code)

    def _count(self, batch: Batch) -> None:
        self._transactions.acknowledged.add(batch.key)
        self.acknowledged[batch.key] = self.acknowledged.get(batch.key, 0) + batch.count

    # Recovery -------------------------------------------------------------------------------------------------------

    def _recover(self, lane: _Lane, batches: list[Batch], failure: KafkaClientError) -> None:
        """Send these batches again, one at a time, in their order."""
        assert not lane.in_flight
        if not self._acks:
            return  # with acks=0 a lost batch stays lost
        retry = self._routing.retry(self._routing.config.delivery_timeout_ms)
        if not isinstance(failure, RecordTooLargeError):
            for batch in batches:
                self._routing.forget_leader(*batch.key)
            retry.again(failure)
        waiting = deque(batches)
        while waiting:
            batch = waiting.popleft()
            retry.begin_another()
            if not batch.too_large:
                self._routing.retrying(lambda batch=batch: self._send_alone(batch), retry)  # type: ignore[misc]
            if batch.too_large:
                parts = split_batch(batch.topic, batch.data, self.largest(batch.topic))
                waiting.extendleft(Batch(batch.topic, batch.partition, *part) for part in reversed(parts))

    def _send_alone(self, batch: Batch) -> None:
        """Return when the batch is written, or has been refused as ``too_large``."""
        self._transactions.add_partitions([batch.key])
        leader = self._routing.leader(*batch.key)
        try:
            with contextlib.closing(self._routing.dial(leader)) as connection:
                results = self._answer(connection, self._request(connection, [batch]))
        except (LinkError, TimedOutError):
            self._routing.forget_leader(*batch.key)
            raise
        refusal = self._refusal(batch, results)
        if refusal is not None and not batch.too_large:
            self._routing.forget_leader(*batch.key)
            raise refusal


def split_batch(topic: str, data: bytearray, largest: int) -> list[tuple[bytearray, int]]:
    """``split``, with a RecordTooLargeError for a batch with unreadable records."""
    try:
        return split(data, largest)
    except ProtocolError as error:
        raise RecordTooLargeError(
            f"A batch of {len(data)} bytes for {topic!r} is too large, and it cannot be split: {error}."
        ) from None
