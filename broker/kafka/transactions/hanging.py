"""Aborts hanging transactions: open transactions in the logs that the coordinator does not know.

They exist if files were put into the data directory, or if the catalogue is an old copy. Nobody would ever end them, and no
record behind them would become stable. They are aborted partition by partition. Any thread may call any method.

Tests: tests/kafka/transactions/test_coordinator.py, tests/kafka/handlers/test_write_txn_markers.py.
"""

from collections.abc import Callable, Set

from broker.kafka.transactions.marker_writer import Markers, MarkerWriter
from broker.kafka.transactions.transaction import Claim, Partition
from broker.log import get_logger
from broker.storage.log_manager import LogManager
from protocol.kafka.errors import ErrorCode

log = get_logger("transactions")

# ``reply(error code of each partition)``.
AbortReply = Callable[[dict[Partition, ErrorCode]], None]


class HangingTransactions:
    def __init__(self, logs: LogManager, markers: MarkerWriter) -> None:
        self._logs = logs
        self._markers = markers

    def abort_all(self, known: Set[tuple[int, Partition]]) -> None:
        """Abort all except these (producer id, partition), which the coordinator knows."""
        for key, target in list(self._logs.partitions.items()):
            for producer_id in [each for each in target.producers.open if (each, key) not in known]:
                producer = target.producers.get(producer_id)
                epoch = 0 if producer is None else producer.epoch
                log.warning("hanging_transaction_aborted", topic=key[0], partition=key[1], producer_id=producer_id)
                self._markers.write(Markers(frozenset([key]), producer_id, epoch, False, _ignore, if_open=True))

    def abort(self, claim: Claim, partitions: frozenset[Partition], reply: AbortReply) -> None:
        """Abort one that an operator has found. ``reply`` is called when the markers are durable."""
        errors = {}
        for topic, partition in sorted(partitions):
            target = self._logs.get(topic, partition)
            producer = None if target is None else target.producers.get(claim.producer_id)
            if target is None:
                errors[topic, partition] = ErrorCode.unknown_topic_or_partition
            elif producer is not None and producer.epoch > claim.epoch:
                errors[topic, partition] = ErrorCode.invalid_producer_epoch

        def done(failed: frozenset[Partition]) -> None:
            written = dict.fromkeys(partitions, ErrorCode.none)
            reply(written | dict.fromkeys(failed, ErrorCode.kafka_storage_error) | errors)

        accepted = partitions - errors.keys()
        self._markers.write(Markers(accepted, claim.producer_id, claim.epoch, False, done, if_open=True))


def _ignore(failed: frozenset[Partition]) -> None:
    """What could not be written is tried again at the next start."""
