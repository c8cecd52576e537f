"""Writes record batches: several requests in flight to each broker, in order, each once if the broker can tell (idempotence).

One thread: ``send`` hands a batch over and returns, unless enough is in flight already; then it takes answers first. Whatever a
broker refuses for the moment, or a broken connection leaves in doubt, is *recovered* at once: all batches of the partitions
concerned go again one by one, in order, on a connection of their own, until ``delivery.timeout.ms`` is over. The broker knows a
batch that it has already by its sequence number; without idempotence such a batch is written twice. A batch that is larger than
its topic takes is split on that way (``split.py``), and such batches are split before they are sent from then on.

``send`` and ``flush`` each take ``delivery.timeout.ms`` at most, whatever the broker does; ``commit`` that and
``default.api.timeout.ms``, ``abort`` the latter and ``request.timeout.ms``.

The first error is final: ``send``, ``flush`` and ``commit`` raise it from then on. A transaction can then only be aborted.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn, Self

import attrs

from broker.client.kafka import transaction
from broker.client.kafka.cluster import RetriableError
from broker.client.kafka.config import Address
from broker.client.kafka.connection import Connection
from broker.client.kafka.errors import (
    RETRIABLE,
    BrokerAnswerError,
    KafkaClientError,
    LinkError,
    ProducerFencedError,
    RecordTooLargeError,
    TimedOutError,
    TransactionError,
    code_name,
)
from broker.client.kafka.split import split
from broker.client.kafka.values import Identity, OffsetAndMetadata, TopicPartition
from broker.errors import ConfigError
from protocol.errors import ProtocolError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages import client_produce, produce
from protocol.kafka.records import batch as record_batch

if TYPE_CHECKING:
    from broker.client.kafka.cluster import Cluster

_ACKS = {"all": -1, "1": 1, "0": 0}
_TOO_LARGE = frozenset({ErrorCode.message_too_large, ErrorCode.record_list_too_large})
_SEQUENCES = 2**31  # sequence numbers go on with 0 after 2^31 - 1

# Produce from version 12 on lets a broker take a transaction's partitions as added (KIP-890); they are added explicitly here.
_HIGHEST_IN_TRANSACTION = 11


@attrs.define(eq=False)
class _Batch:
    topic: str
    partition: int
    data: bytearray
    count: int
    too_large: bool = False  # so the broker has said: it is certain that it was not written, and it may be split

    @property
    def key(self) -> TopicPartition:
        return self.topic, self.partition


@attrs.define(eq=False)
class _Lane:
    """To one broker. ``in_flight``: the batches of each request that waits for its answer, by correlation id, in order."""

    address: Address
    connection: Connection | None = None
    in_flight: deque[tuple[int, list[_Batch]]] = attrs.Factory(deque)
    queued: dict[TopicPartition, _Batch] = attrs.Factory(dict)
    queued_bytes: int = 0

    def take_queued(self) -> list[_Batch]:
        batches = list(self.queued.values())
        self.queued.clear()
        self.queued_bytes = 0
        return batches

    def take_all(self) -> list[_Batch]:
        batches = [one for _, sent in self.in_flight for one in sent] + self.take_queued()
        self.in_flight.clear()
        return batches


class Producer:
    """``Cluster.producer`` makes one. Use: ``send`` ..., ``flush``; in transactions ``begin`` ... ``commit`` or ``abort``.

    Batches are given over: they are written into (producer, sequence number) and must not be changed or sent again.
    """

    def __init__(
        self,
        cluster: "Cluster",
        *,
        acks: str | None = None,
        idempotent: bool | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int | None = None,
    ) -> None:
        config = cluster.config
        acks = acks or config.acks
        wanted = config.enable_idempotence if idempotent is None else idempotent
        if acks != "all" and (wanted or transactional_id is not None):
            what = "transactional.id" if transactional_id is not None else "enable.idempotence=true"
            raise ConfigError(f"{what} needs acks=all, not acks={acks}.")
        self._cluster = cluster
        self._acks = _ACKS[acks]
        self._idempotent = transactional_id is not None or (wanted if wanted is not None else acks == "all")
        self._transactional_id = transactional_id
        self._timeout_ms = transaction_timeout_ms or config.transaction_timeout_ms
        self._producer: tuple[int, int] | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._known_to: set[TopicPartition] = set()  # partitions that have a batch of this producer
        self._lanes: dict[Address, _Lane] = {}
        self._lane_of: dict[TopicPartition, _Lane] = {}  # where each partition's last batch went
        self._largest: dict[str, int] = {}  # of topics that have refused a batch for its size
        self._failure: KafkaClientError | None = None
        self._in_transaction = False
        self._added: set[TopicPartition] = set()  # partitions of the present transaction
        self._anything_added = False

    # Writing --------------------------------------------------------------------------------------------------------

    def send(self, topic: str, partition: int, data: bytearray, count: int) -> None:
        """``data``: one record batch of ``count`` records. Raises what is wrong with this or an earlier one."""
        self._check_usable()
        if self._transactional_id is not None and not self._in_transaction:
            raise TransactionError("Begin a transaction before sending.")
        most = self._cluster.config.max_request_size
        parts = self._fitting(topic, data, count)
        longest = max(len(part) for part, _ in parts)
        if longest > most:
            raise RecordTooLargeError(
                f"A record for {topic}-{partition} takes {longest} bytes, which is more than max.request.size={most}."
            )
        try:
            with self._cluster.limit.within(self._cluster.config.delivery_timeout_ms):
                for part, records in parts:
                    batch = _Batch(topic, partition, part, records)
                    self._stamp(batch)
                    self._queue(batch, most)
        except KafkaClientError as error:
            self._fail(error)

    def largest(self, topic: str) -> int:
        """The bytes of a batch of several records that is sent as it is; a larger one is split. Less than before once the
        topic has refused one."""
        return self._largest.get(topic, self._cluster.config.max_request_size)

    def _fitting(self, topic: str, data: bytearray, count: int) -> Sequence[tuple[bytearray, int]]:
        largest = self.largest(topic)
        if count == 1 or len(data) <= largest:
            return ((data, count),)
        return [one for part in _split(topic, data, largest) for one in self._fitting(topic, *part)]

    def _queue(self, batch: _Batch, most: int) -> None:
        lane = self._lane(batch)
        if batch.key in lane.queued or lane.queued_bytes + len(batch.data) > most:
            self._transmit(lane)
        lane.queued[batch.key] = batch
        lane.queued_bytes += len(batch.data)
        if 2 * lane.queued_bytes >= most:
            self._transmit(lane)

    def flush(self) -> None:
        """Returns when everything that was sent is acknowledged. Raises the first error."""
        self._check_usable()
        try:
            with self._cluster.limit.within(self._cluster.config.delivery_timeout_ms):
                for lane in list(self._lanes.values()):
                    self._transmit(lane)
                for lane in list(self._lanes.values()):
                    while lane.in_flight:
                        self._receive(lane)
        except KafkaClientError as error:
            self._fail(error)

    def close(self) -> None:
        """Close the connections. What was not flushed may or may not be written; a transaction stays open (``hand_over``)."""
        for lane in self._lanes.values():
            if lane.connection is not None:
                lane.connection.close()
            lane.take_all()
        self._lanes.clear()
        self._lane_of.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Transactions ---------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        """Known to the broker from here on: whoever had the transactional id before is fenced."""
        assert self._transactional_id is not None
        producer_id, epoch = self._known_producer()
        return Identity(self._transactional_id, producer_id, epoch)

    def begin(self) -> None:
        if self._transactional_id is None:
            raise TransactionError("A producer without a transactional id has no transactions.")
        if self._in_transaction:
            raise TransactionError(f"A transaction of {self._transactional_id!r} is open already.")
        self._check_usable()
        self._known_producer()
        self._in_transaction = True

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        """Committed for the group together with the records of this transaction, or not at all."""
        self._check_open()
        self._anything_added = True
        transaction.commit_offsets(self._cluster, self.identity, group, offsets)

    def commit(self) -> None:
        """Everybody sees the transaction's records when this returns. Raises the first error of a send, too."""
        self._check_open()
        self.flush()
        if self._anything_added:
            transaction.end(self._cluster, self.identity, committed=True)
        self._ended()

    def abort(self) -> None:
        """Nobody who reads committed records will see the transaction's. Possible after errors, too."""
        self._check_open()
        with self._cluster.limit.within(self._cluster.config.request_timeout_ms):
            self._settle()
        self.close()
        if self._anything_added:
            try:
                transaction.end(self._cluster, self.identity, committed=False)
            except ProducerFencedError as error:
                self._ended()
                self._fail(error)  # never again: it would fence the newer one
        # What was stamped and never sent leaves a gap, and what is on its way all the same must not come into the next
        # transaction: that has a new epoch, in which sequence numbers begin again.
        self._producer = None
        self._sequences.clear()
        self._known_to.clear()
        self._failure = None
        self._ended()

    def hand_over(self) -> Identity:
        """Flush, and leave the open transaction to whoever will end it, perhaps with others (``Cluster.end_together``)."""
        self._check_open()
        self.flush()
        self.close()
        self._ended()
        return self.identity

    def _ended(self) -> None:
        self._in_transaction = False
        self._anything_added = False
        self._added.clear()

    def _check_open(self) -> None:
        if not self._in_transaction:
            raise TransactionError("There is no open transaction.")

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: KafkaClientError) -> NoReturn:
        self._failure = error
        raise error

    def _known_producer(self) -> tuple[int, int]:
        if self._producer is None:
            self._producer = transaction.init_producer_id(self._cluster, self._transactional_id, self._timeout_ms)
        return self._producer

    def _stamp(self, batch: _Batch) -> None:
        if not self._idempotent:
            return
        producer_id, epoch = self._known_producer()
        sequence = self._sequences.get(batch.key, 0)
        self._sequences[batch.key] = (sequence + batch.count) % _SEQUENCES
        record_batch.set_producer(batch.data, producer_id, epoch, sequence, self._transactional_id is not None)

    def _add_to_transaction(self, batches: Iterable[_Batch]) -> None:
        new = {one.key for one in batches} - self._added
        if self._transactional_id is not None and new:
            self._anything_added = True
            transaction.add_partitions(self._cluster, self.identity, sorted(new))
            self._added |= new

    # In flight ------------------------------------------------------------------------------------------------------

    def _lane(self, batch: _Batch) -> _Lane:
        address = self._cluster.retrying(lambda: self._cluster.leader(*batch.key))
        lane = self._lanes.get(address)
        if lane is None:
            lane = self._lanes[address] = _Lane(address)
        before = self._lane_of.get(batch.key)
        if before is not None and before is not lane:
            # The partition has moved: what went to its old leader has to be settled first.
            self._transmit(before)
            while before.in_flight:
                self._receive(before)
        self._lane_of[batch.key] = lane
        return lane

    def _transmit(self, lane: _Lane) -> None:
        """Send what is queued as one request."""
        if not lane.queued:
            return
        while len(lane.in_flight) >= self._cluster.config.max_in_flight or self._must_wait(lane):
            self._receive(lane)
        if not lane.queued:  # a recovery has taken care of it
            return
        self._add_to_transaction(lane.queued.values())
        try:
            connection = lane.connection
            if connection is None or not connection.is_open:
                connection = lane.connection = self._cluster.dial(lane.address)
            correlation_id = self._request(connection, list(lane.queued.values()))
        except (LinkError, TimedOutError) as error:
            self._recover(lane, lane.take_all(), error)
            return
        batches = lane.take_queued()
        if self._acks:
            lane.in_flight.append((correlation_id, batches))

    def _must_wait(self, lane: _Lane) -> bool:
        """A partition takes any sequence number as the first of a producer that it does not know. So the first batch goes alone:
        if it were refused and the second were not, it could never be written."""
        new = lane.queued.keys() - self._known_to
        return self._idempotent and any(one.key in new for _, sent in lane.in_flight for one in sent)

    def _request(self, connection: Connection, batches: list[_Batch]) -> int:
        config = self._cluster.config
        correlation_id = connection.next_id()
        parts = client_produce.request_parts(
            correlation_id,
            config.client_id,
            self._version(connection),
            self._transactional_id,
            self._acks,
            config.request_timeout_ms,
            [(one.topic, one.partition, one.data) for one in batches],
        )
        connection.send(parts, connection.deadline(config.request_timeout_ms))
        return correlation_id

    def _version(self, connection: Connection) -> int:
        highest = _HIGHEST_IN_TRANSACTION if self._transactional_id is not None else client_produce.MAX_VERSION
        return connection.version(ApiKey.PRODUCE, client_produce.MIN_VERSION, highest)

    def _answer(self, connection: Connection, correlation_id: int) -> dict[TopicPartition, produce.PartitionResult]:
        # The broker itself takes as long as request.timeout.ms for acks=all.
        deadline = connection.deadline(2 * self._cluster.config.request_timeout_ms)
        frame = connection.receive(deadline, ApiKey.PRODUCE.name)
        try:
            answered, results = produce.parse_response(frame, self._version(connection))
        except ProtocolError as error:
            raise connection.unreadable(ApiKey.PRODUCE.name, error) from None
        connection.check_id(answered, correlation_id)
        return {(one.topic, one.partition): one for one in results}

    def _receive(self, lane: _Lane) -> None:
        """The answer to the oldest request."""
        assert lane.connection is not None
        correlation_id, batches = lane.in_flight[0]
        try:
            results = self._answer(lane.connection, correlation_id)
        except (LinkError, TimedOutError) as error:
            self._recover(lane, lane.take_all(), error)
            return
        lane.in_flight.popleft()
        failed: list[_Batch] = []
        failure: KafkaClientError | None = None
        for batch in batches:
            refused = self._refusal(batch, results)
            if refused is not None:
                failed.append(batch)
                failure = failure or refused
        if failure is not None:
            self._recover(lane, failed + self._drain(lane, {one.key for one in failed}), failure)

    def _drain(self, lane: _Lane, failed: set[TopicPartition]) -> list[_Batch]:
        """Take all answers. Returns what else is to be sent again, in order: all later batches of partitions that failed."""
        again: list[_Batch] = []
        assert lane.connection is not None
        while lane.in_flight:
            correlation_id, batches = lane.in_flight[0]
            try:
                results = self._answer(lane.connection, correlation_id)
            except (LinkError, TimedOutError):
                return again + lane.take_all()
            lane.in_flight.popleft()
            for batch in batches:
                try:
                    refused = self._refusal(batch, results) is not None
                except KafkaClientError:
                    if batch.key not in failed:
                        raise
                    refused = True  # out of order, as it must be after one that is missing
                if refused:
                    failed.add(batch.key)
                    again.append(batch)
        for key in [key for key in lane.queued if key in failed]:
            queued = lane.queued.pop(key)
            lane.queued_bytes -= len(queued.data)
            again.append(queued)
        return again

    def _settle(self) -> None:
        """Wait for the answers to what is in flight, whatever they are: nothing of it shall come after the abort."""
        for lane in self._lanes.values():
            connection = lane.connection
            while lane.in_flight and connection is not None and connection.is_open:
                correlation_id, _ = lane.in_flight.popleft()
                try:
                    self._answer(connection, correlation_id)
                except KafkaClientError:
                    connection.close()

    def _refusal(
        self, batch: _Batch, results: Mapping[TopicPartition, produce.PartitionResult]
    ) -> KafkaClientError | None:
        """None if the batch is written, a RetriableError if it shall be tried again, a RecordTooLargeError if it shall be split.
        Raises any other error."""
        where = f"{batch.topic}-{batch.partition}"
        result = results.get(batch.key)
        if result is None:
            raise BrokerAnswerError(f"The broker said nothing about a batch for {where}.")
        code = result.error
        if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            self._known_to.add(batch.key)
            return None
        said = f": {result.error_message}" if result.error_message else ""
        if code in RETRIABLE and code != ErrorCode.corrupt_message:
            return RetriableError(f"{where} cannot be written: {code_name(code)}{said}.", code)
        if code in _TOO_LARGE and batch.count > 1:
            batch.too_large = True
            # Not half of it: two halves, each with a header, would be more than that.
            smaller = len(batch.data) * 5 // 8
            self._largest[batch.topic] = min(smaller, self.largest(batch.topic))
            return RecordTooLargeError(f"A batch of {len(batch.data)} bytes for {where} is too large{said}.", code)
        if code in _TOO_LARGE:
            raise RecordTooLargeError(
                f"A record for {where} takes {len(batch.data)} bytes, which is more than the topic takes: make the record"
                f" smaller, or the topic's max.message.bytes larger ({code_name(code)}).",
                code,
            )
        if code in transaction.FENCED:
            raise ProducerFencedError(
                f"{where} cannot be written: a newer producer has the transactional id"
                f" {self._transactional_id!r} ({code_name(code)}).",
                code,
            )
        if code == ErrorCode.invalid_txn_state:
            raise TransactionError(f"{where} cannot be written in this transaction: {code_name(code)}{said}.", code)
        raise BrokerAnswerError(f"{where} cannot be written: {code_name(code)}{said}.", code)

    # Recovery -------------------------------------------------------------------------------------------------------

    def _recover(self, lane: _Lane, batches: list[_Batch], failure: KafkaClientError) -> None:
        """Send these once more, one at a time, in their order."""
        assert not lane.in_flight
        if not self._acks:
            return  # nobody wants to know
        retry = self._cluster.retry(self._cluster.config.delivery_timeout_ms)
        if not isinstance(failure, RecordTooLargeError):
            for batch in batches:
                self._cluster.leader_moved(*batch.key)
            retry.again(failure)
        waiting = deque(batches)
        while waiting:
            batch = waiting.popleft()
            retry.missing = 0
            if not batch.too_large:
                self._cluster.retrying(lambda batch=batch: self._send_alone(batch), retry)  # type: ignore[misc]
            if batch.too_large:
                parts = _split(batch.topic, batch.data, self.largest(batch.topic))
                waiting.extendleft(_Batch(batch.topic, batch.partition, *part) for part in reversed(parts))

    def _send_alone(self, batch: _Batch) -> None:
        """Returns when it is written, or ``too_large``."""
        self._add_to_transaction([batch])
        connection = self._cluster.dial(self._cluster.leader(*batch.key))
        try:
            results = self._answer(connection, self._request(connection, [batch]))
        except (LinkError, TimedOutError):
            self._cluster.leader_moved(*batch.key)
            raise
        finally:
            connection.close()
        refused = self._refusal(batch, results)
        if refused is not None and not batch.too_large:
            self._cluster.leader_moved(*batch.key)
            raise refused


def _split(topic: str, data: bytearray, largest: int) -> list[tuple[bytearray, int]]:
    """Raises RecordTooLargeError for a batch whose records cannot be read."""
    try:
        return split(data, largest)
    except ProtocolError as error:
        raise RecordTooLargeError(
            f"A batch of {len(data)} bytes for {topic!r} is too large, and it cannot be split: {error}."
        ) from None
