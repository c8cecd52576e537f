"""Writes record batches, each once if the broker supports that (idempotence), in transactions if there is a
transactional id.

One thread uses a producer: ``send`` hands over a batch and returns, unless enough requests are in flight already; then
it receives answers first. ``sender.py`` sends batches and sends them again; ``transaction.py`` keeps the producer's
identity for brokers. ``send`` and ``flush`` each take ``delivery.timeout.ms`` at most, whatever the broker does;
``commit`` takes at most that and ``default.api.timeout.ms``, ``abort`` the latter and ``request.timeout.ms``.

The first error is final: ``send``, ``flush`` and ``commit`` raise it from then on. A transaction can then only be
aborted.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, Self

from broker.client.kafka.errors import (
    KafkaClientError,
    ProducerFencedError,
    RecordTooLargeError,
    TransactionError,
)
from broker.client.kafka.routing import Routing
from broker.client.kafka.sender import Batch, Sender, split_batch
from broker.client.kafka.transaction import TransactionManager
from broker.client.kafka.values import Identity, OffsetAndMetadata, TopicPartition
from broker.errors import ConfigError

_ACKS = {"all": -1, "1": 1, "0": 0}


class Producer:
    """Created by ``Cluster.producer``. Use: ``send`` ..., ``flush``; in transactions ``begin`` ... ``commit`` or
    ``abort``.

    The producer writes its id and a sequence number into the batches that it gets: the caller must not change them or
    send them again.
    """

    def __init__(
        self,
        routing: Routing,
        *,
        acks: str | None = None,
        idempotent: bool | None = None,
        transactional_id: str | None = None,
        transaction_timeout_ms: int | None = None,
    ) -> None:
        config = routing.config
        acks = acks or config.acks
        idempotent = config.enable_idempotence if idempotent is None else idempotent
        if acks != "all" and (idempotent or transactional_id is not None):
            what = "transactional.id" if transactional_id is not None else "enable.idempotence=true"
            raise ConfigError(f"{what} needs acks=all, not acks={acks}.")
        self._routing = routing
        self._transactions = TransactionManager(
            routing,
            transactional_id,
            idempotent if idempotent is not None else acks == "all",
            transaction_timeout_ms or config.transaction_timeout_ms,
        )
        self._sender = Sender(routing, self._transactions, _ACKS[acks])
        self._failure: KafkaClientError | None = None

    # Writing --------------------------------------------------------------------------------------------------------

    def send(self, topic: str, partition: int, data: bytearray, count: int) -> None:
        """``data``: one record batch of ``count`` records. Raises the error of this batch or of an earlier batch."""
        self._check_usable()
        if self._transactions.transactional_id is not None and not self._transactions.is_open:
            raise TransactionError("Begin a transaction before sending.")
        most = self._routing.config.max_request_size
        parts = self._fitting(topic, data, count)
        longest = max(len(part) for part, _ in parts)
        if longest > most:
            raise RecordTooLargeError(
                f"A record for {topic}-{partition} takes {longest} bytes, which is more than max.request.size={most}."
            )
        try:
            with self._routing.limit.within(self._routing.config.delivery_timeout_ms):
                for part, records in parts:
                    self._transactions.stamp((topic, partition), part, records)
                    self._sender.enqueue(Batch(topic, partition, part, records))
        except KafkaClientError as error:
            self._fail(error)

    def largest(self, topic: str) -> int:
        """The size in bytes up to which a batch of several records is sent unchanged; a larger batch is split.

        It decreases when the topic refuses a batch for its size.
        """
        return self._sender.largest(topic)

    @property
    def acknowledged(self) -> Mapping[TopicPartition, int]:
        """How many records of each partition are acknowledged, counted from the first record sent to it. Empty with
        acks=0."""
        return self._sender.acknowledged

    @property
    def refused(self) -> TopicPartition | None:
        """The partition for which a broker has refused a batch for good. The batch begins with the partition's first
        record that is not acknowledged."""
        return self._sender.refused

    def _fitting(self, topic: str, data: bytearray, count: int) -> Sequence[tuple[bytearray, int]]:
        largest = self.largest(topic)
        if count == 1 or len(data) <= largest:
            return ((data, count),)
        pieces = split_batch(topic, data, largest)
        return [part for piece in pieces for part in self._fitting(topic, *piece)]

    def transmit(self) -> None:
        """Send requests that are not full at once, without waiting for their acknowledgement. Raises as ``flush``
        does."""
        self._deliver(self._sender.transmit)

    def flush(self) -> None:
        """Return when every sent batch is acknowledged. Raises the first error."""
        self._deliver(self._sender.flush)

    def _deliver(self, send: Callable[[], None]) -> None:
        self._check_usable()
        try:
            with self._routing.limit.within(self._routing.config.delivery_timeout_ms):
                send()
        except KafkaClientError as error:
            self._fail(error)

    def close(self) -> None:
        """Close the connections. A batch that was not flushed may or may not be written; a transaction stays open."""
        self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # Transactions ---------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        """The producer's id and epoch. The first use asks the broker for them, which fences earlier users of the
        transactional id."""
        return self._transactions.identity

    def begin(self) -> None:
        transactional_id = self._transactions.transactional_id
        if transactional_id is None:
            raise TransactionError("A producer without a transactional id has no transactions.")
        if self._transactions.is_open:
            raise TransactionError(f"A transaction of {transactional_id!r} is open already.")
        self._check_usable()
        self._transactions.begin()

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        """Commit offsets for the group together with the records of this transaction, or not at all."""
        self._transactions.require_open()
        self._transactions.commit_offsets(group, offsets)

    def commit(self) -> None:
        """When this returns, every reader sees the transaction's records. Also raises the first error of a send."""
        self._transactions.require_open()
        self.flush()
        self._transactions.end(committed=True)
        self._transactions.forget()

    def abort(self) -> None:
        """Discard the transaction: no reader of committed records sees its records. Also possible after an error."""
        self._transactions.require_open()
        with self._routing.limit.within(self._routing.config.request_timeout_ms):
            self._sender.settle()
        self.close()
        try:
            self._transactions.end(committed=False)
        except ProducerFencedError as error:
            self._transactions.forget()
            self._fail(error)  # for good: a new epoch would fence the newer producer
        # A batch that was stamped and not sent leaves a gap in the sequence numbers, and a batch still in
        # flight must not become part of the next transaction. So the next transaction has a new epoch; its numbers
        # begin at 0.
        self._transactions.reset()
        self._failure = None
        self._transactions.forget()

    def hand_over(self) -> Identity:
        """Flush, and leave the open transaction to the client that will end it, perhaps with others
        (``end_together``)."""
        self._transactions.require_open()
        self.flush()
        self.close()
        self._transactions.forget()
        return self.identity

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: KafkaClientError) -> NoReturn:
        self._failure = error
        raise error
