"""Requests of producers of transactions version 2 (KIP-890), beside the classic flow in ``coordinator.py``.

Such a producer sends no AddPartitionsToTxn and no AddOffsetsToTxn: its first batch for a partition, and its first commit of a
group's offsets, add these to the transaction. The addition is durable before the batch is appended, as with the classic flow.
Requests on several connections may add to a transaction at the same time, while each change of it takes an fsync: additions that
arrive meanwhile wait, and the next change makes all of them.

With each end the producer gets a new epoch, so that no earlier batch can be appended after it. ``transaction.py`` has the table
of the answers.

Any thread may call any method; answers come by callback, on the thread that completes the request. Both kinds of producers may
use a transactional id one after the other, and either kind may end a transaction that the other has begun.

``missing`` and ``FirstBatches`` are Produce's part. A request with the first batch for a partition is parked while the addition
is being made durable, and handled again afterwards; no thread waits. Later batches of the partition are appended like any
others. ``missing`` runs on a processor, the rest on a handler; the answer comes on the catalogue writer's thread.

Tests: tests/kafka/handlers/test_transactions_version_2.py.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from struct import Struct
from typing import Any, TypeVar

import attrs

from broker.errors import StorageError
from broker.kafka.groups.coordinator import GroupCoordinator
from broker.kafka.groups.offset_coordinator import Committer
from broker.kafka.groups.offsets import Offsets
from broker.kafka.groups.registry import send
from broker.kafka.transactions.executor import TransactionExecutor, log_failure
from broker.kafka.transactions.registry import Addition, Reply, TransactionEntry, TransactionRegistry
from broker.kafka.transactions.transaction import GROUP, LAST_EPOCH, NONE, Claim, Partition, Phase, State
from broker.metadata.catalogue import Catalogue
from broker.runtime.clock import Clock
from broker.storage.log.log import Log
from protocol.kafka.errors import ErrorCode
from protocol.kafka.records.batch import HEADER_SIZE, TRANSACTIONAL

# ``reply(error, producer id, epoch)``: the producer's id and epoch after the end of its transaction.
EndReply = Callable[[ErrorCode, int, int], None]


class TransactionsVersion2:
    def __init__(
        self,
        clock: Clock,
        catalogue: Catalogue,
        groups: GroupCoordinator,
        registry: TransactionRegistry,
        executor: TransactionExecutor,
    ) -> None:
        self._clock = clock
        self._catalogue = catalogue
        self._groups = groups
        self._registry = registry
        self._executor = executor
        executor.go_on = self._go_on

    # Additions --------------------------------------------------------------------------------------------------------

    def add_partitions(
        self, transactional_id: str, claim: Claim, partitions: Collection[Partition], reply: Reply
    ) -> None:
        """Add partitions before batches are appended to them. After ``none`` they accept batches until the transaction ends.
        Groups may be among them, with ``GROUP`` as their partition."""
        entry = self._registry.active(transactional_id, reply)
        if entry is not None:
            groups = [name for name, number in partitions if number == GROUP]
            partitions = [key for key in partitions if key[1] != GROUP] if groups else partitions
            self._add(entry, Addition(claim, partitions, groups, reply))

    def commit_offsets(
        self, transactional_id: str, claim: Claim, group: str, committer: Committer, offsets: Offsets, reply: Reply
    ) -> None:
        """Add the group, and commit these offsets of it with the transaction."""
        entry = self._registry.active(transactional_id, reply)
        if entry is None:
            return

        def commit(error: ErrorCode) -> None:
            with entry.lock:
                error = error or entry.transaction.check_group(claim, group)
                if not error and offsets:
                    self._executor.add_offsets(entry, group, offsets, reply)
                    return
            reply(error)

        error = self._groups.offsets.check_in_transaction(group, committer)
        if error:
            reply(error)
        else:
            self._add(entry, Addition(claim, (), (group,), commit))

    def _add(self, entry: TransactionEntry, addition: Addition) -> None:
        with entry.lock:
            pending = entry.transaction.pending
            if pending is not None and pending.phase is Phase.ONGOING and pending.successor == addition.claim:
                entry.additions.append(addition)
                return
            answers = self._make(entry, [addition])
        send(answers)

    def _go_on(self, entry: TransactionEntry) -> None:
        """The change that these additions have waited for is over. Runs on the catalogue writer's thread."""
        with entry.lock:
            pending = entry.transaction.pending
            if pending is not None and pending.phase is Phase.ONGOING:
                return  # another change of the same producer came first: wait for that
            additions, entry.additions = entry.additions, []
            answers = self._make(entry, additions) if additions else []
        send(answers)

    def _make(self, entry: TransactionEntry, additions: list[Addition]) -> list[partial[None]]:
        """Make additions of a producer as one change. Returns the answers that are known already."""
        claim = additions[0].claim
        partitions = {key for addition in additions for key in addition.partitions}
        groups = {group for addition in additions for group in addition.groups}
        result = entry.transaction.add(claim, self._clock.time_ms(), partitions=partitions, groups=groups)
        if isinstance(result, State):
            if self._registry.has_memory_to_grow(entry, result):
                self._executor.change(entry, result, partial(_answer_all, additions))
                return []
            result = ErrorCode.coordinator_not_available
        elif not result:
            # All of them take part already, but a log that was made again since, or was offline, may not know it.
            state = entry.transaction.state
            assert state is not None
            self._executor.allow(state, partitions)
        return [partial(addition.reply, result) for addition in additions]

    # The end ----------------------------------------------------------------------------------------------------------

    def end(self, transactional_id: str, claim: Claim, commit: bool, reply: EndReply) -> None:
        """``reply`` is called when the transaction is committed or aborted and every reader sees that. Blocks if a new producer
        id is needed."""
        entry = self._registry.active(transactional_id, lambda error: reply(error, NONE, NONE))
        if entry is None:
            return
        state = entry.transaction.state
        new_id = NONE
        if state is not None and state.epoch >= LAST_EPOCH:
            try:
                new_id = self._catalogue.allocate_producer_ids(1)
            except StorageError as error:
                log_failure(error)
                reply(ErrorCode.coordinator_not_available, NONE, NONE)
                return
        successor = Claim(NONE, NONE)
        with entry.lock:
            result = entry.transaction.end_and_bump(claim, commit, new_id, self._clock.time_ms())
            if isinstance(result, State):
                if result.successor.epoch <= LAST_EPOCH:
                    self._executor.end([(entry, result)], partial(_ended, result.successor, reply))
                    return
                result = ErrorCode.concurrent_transactions  # the last epoch was used meanwhile: ask again
            state = entry.transaction.state
            if not result and state is not None:
                successor = state.successor
            if result == ErrorCode.invalid_txn_state and state is not None and claim == state.successor != entry.hasty:
                # Java's producer (4.3) sometimes asks to commit before it has sent the first batch, which no request precedes
                # any longer. Asked again, it sends its batches first. A producer without batches is refused the second time.
                entry.hasty = claim
                result = ErrorCode.concurrent_transactions
        reply(result, successor.producer_id, successor.epoch)

    # Verification -----------------------------------------------------------------------------------------------------

    def verify(
        self, transactional_id: str, claim: Claim, partitions: Collection[Partition]
    ) -> dict[Partition, ErrorCode]:
        """Whether each of these takes part in the open transaction of this producer."""
        answers: list[ErrorCode] = []
        entry = self._registry.active(transactional_id, answers.append)
        if entry is None:
            return dict.fromkeys(partitions, answers[0])
        with entry.lock:
            return entry.transaction.verify(claim, partitions)


def _answer_all(additions: list[Addition], error: ErrorCode) -> None:
    for addition in additions:
        addition.reply(error)


def _ended(successor: Claim, reply: EndReply, error: ErrorCode) -> None:
    if error:
        reply(error, NONE, NONE)
    else:
        reply(error, successor.producer_id, successor.epoch)


K = TypeVar("K")

# The first version of Produce whose batches add partitions: clients use it only where transaction.version is 2.
FIRST_VERSION = 12

# Offsets of these fields in a batch header. The header is not verified here; an append does that.
_ATTRIBUTES = 22
_PRODUCER = Struct(">qh")
_PRODUCER_AT = 43

# Produce's error codes by those of the coordinator.
_TRANSLATED = {
    ErrorCode.producer_fenced: ErrorCode.invalid_producer_epoch,
    ErrorCode.coordinator_not_available: ErrorCode.not_enough_replicas,
    ErrorCode.invalid_txn_state: ErrorCode.transaction_abortable,
}


def missing(
    batches: Iterable[tuple[K, Log | None, memoryview | None]],
    is_known: Callable[[int], bool] = lambda _producer_id: True,
) -> dict[K, tuple[Claim, Log]]:
    """The batches of transactions whose partitions do not take part yet, by key. ``is_known``: whether this producer is that
    of the request's transactional id, as far as this node knows."""
    claims = {}
    for key, log, records in batches:
        if log is None or records is None or len(records) < HEADER_SIZE or not records[_ATTRIBUTES] & TRANSACTIONAL:
            continue
        producer_id, epoch = _PRODUCER.unpack_from(records, _PRODUCER_AT)
        if not (log.transactions.allows(producer_id, epoch) and is_known(producer_id)):
            claims[key] = Claim(producer_id, epoch), log
    return claims


@attrs.define(eq=False)
class FirstBatches:
    """The result of a request's additions: the errors of the batches that must not be appended."""

    errors: dict[Any, ErrorCode] = attrs.Factory(dict)

    def add(
        self,
        transactions: TransactionsVersion2,
        transactional_id: str,
        wanted: Mapping[Any, tuple[Claim, Log]],
        done: Callable[[], None],
    ) -> None:
        """``wanted``: the result of ``missing``. ``done`` is called when it is known whether the batches may be appended."""
        claim = next(iter(wanted.values()))[0]
        logs = {key: log for key, (of_batch, log) in wanted.items() if of_batch == claim}
        # A request has one transactional id, which has one producer.
        self.errors = dict.fromkeys(wanted.keys() - logs.keys(), ErrorCode.invalid_producer_id_mapping)

        def answered(error: ErrorCode) -> None:
            if error:
                self.errors.update(dict.fromkeys(logs, _TRANSLATED.get(error, error)))
            done()

        transactions.add_partitions(
            transactional_id, claim, [(log.topic, log.partition) for log in logs.values()], answered
        )
