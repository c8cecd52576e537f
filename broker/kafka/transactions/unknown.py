"""Transactions in the logs that no coordinator knows: files were put there, or the catalogue is an old copy.

Nobody would ever end them, and nothing behind them would become stable. They are aborted, partition by partition. Any thread.
"""

from collections.abc import Callable, Set

from broker.kafka.transactions.marker_writer import Markers, MarkerWriter
from broker.kafka.transactions.transaction import Claim, Partition
from broker.log import get_logger
from broker.storage.log_manager import LogManager
from protocol.kafka.errors import ErrorCode

log = get_logger("transactions")

# ``reply(what became of each)``.
AbortReply = Callable[[dict[Partition, ErrorCode]], None]


class Unknown:
    def __init__(self, logs: LogManager, markers: MarkerWriter) -> None:
        self._logs = logs
        self._markers = markers

    def abort_all(self, known: Set[tuple[int, Partition]]) -> None:
        """All but these (producer id, partition)."""
        for key, target in list(self._logs.partitions.items()):
            for producer_id in [one for one in target.producers.open if (one, key) not in known]:
                producer = target.producers.get(producer_id)
                epoch = 0 if producer is None else producer.epoch
                log.warning("unknown_transaction_aborted", topic=key[0], partition=key[1], producer_id=producer_id)
                self._markers.write(Markers(frozenset([key]), producer_id, epoch, False, _nothing_more, if_open=True))

    def abort(self, claim: Claim, partitions: frozenset[Partition], reply: AbortReply) -> None:
        """One that an operator has found; ``reply`` when the markers are durable."""
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

        wanted = partitions - errors.keys()
        self._markers.write(Markers(wanted, claim.producer_id, claim.epoch, False, done, if_open=True))


def _nothing_more(failed: frozenset[Partition]) -> None:
    """The next start will try again."""
