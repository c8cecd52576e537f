"""The first batch for a partition adds it to the transaction of its producer (KIP-890): what Produce does for that.

A request with such a batch is parked while the addition is being made durable, and handled again afterwards; no thread waits.
The batches of the same partition that follow are appended like any others.

``missing`` runs on a processor, the rest on a handler; the answer comes on the catalogue writer's thread.

Tests: tests/kafka/handlers/test_transactions_version_2.py.
"""

from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from typing import Any, TypeVar

import attrs

from broker.kafka.transactions.transaction import Claim
from broker.kafka.transactions.version_2 import TransactionsVersion2
from broker.storage.log.log import Log
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import HEADER_SIZE, TRANSACTIONAL

K = TypeVar("K")

# The first version of Produce whose batches may do that: clients use it only where transaction.version is 2.
FIRST_VERSION = 12

# Where the header of a batch has these. It is not verified here; an append does that.
_ATTRIBUTES = 22
_PRODUCER = Struct(">qh")
_PRODUCER_AT = 43

# Kafka's codes for a producer, by those of the coordinator.
_TRANSLATED = {
    ErrorCode.producer_fenced: ErrorCode.invalid_producer_epoch,
    ErrorCode.coordinator_not_available: ErrorCode.not_enough_replicas,
    ErrorCode.invalid_txn_state: ErrorCode.transaction_abortable,
}


def missing(batches: Iterable[tuple[K, Log | None, memoryview | None]]) -> dict[K, tuple[Claim, Log]]:
    """The batches of transactions that their partitions do not take part in yet, each by the key that came with it."""
    found = {}
    for key, log, records in batches:
        if log is None or records is None or len(records) < HEADER_SIZE or not records[_ATTRIBUTES] & TRANSACTIONAL:
            continue
        producer_id, epoch = _PRODUCER.unpack_from(records, _PRODUCER_AT)
        if not log.allows_transaction(producer_id, epoch):
            found[key] = Claim(producer_id, epoch), log
    return found


@attrs.define(eq=False)
class FirstBatches:
    """What came of the additions that one request needs: the errors of those batches that must not be appended."""

    errors: dict[Any, ErrorCode] = attrs.Factory(dict)

    def add(
        self,
        transactions: TransactionsVersion2,
        transactional_id: str,
        wanted: Mapping[Any, tuple[Claim, Log]],
        done: Callable[[], None],
    ) -> None:
        """``wanted``: what ``missing`` has found. ``done`` is called when it is known whether the batches may be appended."""
        claim = next(iter(wanted.values()))[0]
        logs = {key: log for key, (of_batch, log) in wanted.items() if of_batch == claim}
        # A request has one transactional id, and that has one producer.
        self.errors = dict.fromkeys(wanted.keys() - logs.keys(), ErrorCode.invalid_producer_id_mapping)

        def answered(error: ErrorCode) -> None:
            if error:
                self.errors.update(dict.fromkeys(logs, _TRANSLATED.get(error, error)))
            done()

        transactions.add_partitions(
            transactional_id, claim, [(log.topic, log.partition) for log in logs.values()], answered
        )
