"""Who a producer is to the brokers: its producer id and epoch, its sequence numbers, and its open transaction.

The name is that of Java's client. Sequence numbers make writes idempotent: a broker recognizes a batch that it already has.
The states of a transaction are ``transaction_state.py``'s, the requests to the coordinator ``transaction.py``'s.

Tests: tests/client/kafka/test_producer.py, tests/client/kafka/test_faults.py.
"""

from collections.abc import Iterable, Mapping

from broker.client.kafka import transaction
from broker.client.kafka.errors import TransactionError
from broker.client.kafka.routing import Routing
from broker.client.kafka.transaction_state import TransactionEvent, TransactionState, next_state
from broker.client.kafka.values import Identity, OffsetAndMetadata, TopicPartition
from protocol.kafka.records.batch import SEQUENCES, set_producer


class TransactionManager:
    def __init__(self, routing: Routing, transactional_id: str | None, idempotent: bool, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.idempotent = idempotent or transactional_id is not None
        # Partitions that have acknowledged a batch of this producer, so that their broker checks the next sequence number.
        self.acknowledged: set[TopicPartition] = set()
        self._routing = routing
        self._timeout_ms = timeout_ms
        self._producer: tuple[int, int] | None = None  # producer id and epoch
        self._sequences: dict[TopicPartition, int] = {}  # of each partition's next batch
        self._state = TransactionState.NO_TRANSACTION
        self._added: set[TopicPartition] = set()  # partitions of the open transaction

    @property
    def identity(self) -> Identity:
        """Asks the coordinator for a producer id if there is none yet, which fences earlier users of the transactional id."""
        assert self.transactional_id is not None
        producer_id, epoch = self._producer_id_and_epoch()
        return Identity(self.transactional_id, producer_id, epoch)

    def _producer_id_and_epoch(self) -> tuple[int, int]:
        if self._producer is None:
            self._producer = transaction.init_producer_id(self._routing, self.transactional_id, self._timeout_ms)
        return self._producer

    def stamp(self, partition: TopicPartition, data: bytearray, count: int) -> None:
        """Write producer id, epoch and the partition's next sequence number into the header of a batch of ``count`` records."""
        if not self.idempotent:
            return
        producer_id, epoch = self._producer_id_and_epoch()
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = (sequence + count) % SEQUENCES
        set_producer(data, producer_id, epoch, sequence, self.transactional_id is not None)

    def reset(self) -> None:
        """Ask for a new epoch, in which sequence numbers begin at 0, before the next batch."""
        self._producer = None
        self._sequences.clear()
        self.acknowledged.clear()

    # The transaction ------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._state is not TransactionState.NO_TRANSACTION

    def require_open(self) -> None:
        if not self.is_open:
            raise TransactionError("There is no open transaction.")

    def begin(self) -> None:
        self._producer_id_and_epoch()
        self._state = next_state(self._state, TransactionEvent.BEGUN)

    def add_partitions(self, partitions: Iterable[TopicPartition]) -> None:
        """Make the partitions part of the open transaction. Does nothing for a producer without a transactional id."""
        new = set(partitions) - self._added
        if self.transactional_id is not None and new:
            self._state = next_state(self._state, TransactionEvent.ADDED)
            transaction.add_partitions(self._routing, self.identity, sorted(new))
            self._added |= new

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata | int]) -> None:
        self._state = next_state(self._state, TransactionEvent.ADDED)
        transaction.commit_offsets(self._routing, self.identity, group, offsets)

    def end(self, committed: bool) -> None:
        """Have the coordinator commit or abort the transaction, if it has heard of it. ``forget`` is the caller's to call."""
        if self._state is TransactionState.OPEN_AT_COORDINATOR:
            transaction.end(self._routing, self.identity, committed)

    def forget(self) -> None:
        """The transaction has ended, or another client will end it."""
        self._state = next_state(self._state, TransactionEvent.ENDED)
        self._added.clear()
