"""Carries out the decisions of ``transaction.py``. Decides nothing itself.

Every change of a transaction goes to the catalogue's writer, which keeps the order: offsets that were added to a transaction are
durable before its decision is. The end of a transaction takes these steps:

1. the decision is durable;
2. the markers are written into the partitions and are durable (``marker_writer.py``);
3. one change of the catalogue commits the offsets of the transaction and completes it;
4. the groups see the offsets, and the client that ended the transaction gets its answer.

At the start each transaction is in one of these steps, and ``resume`` continues with the next. A failed step is repeated after a
second. Any thread may call any method.

``TransactionalIdExpiration`` forgets transactional ids that were unused for longer than ``transactional_id_expiration_ms``. A
sweep checks all ids, on the catalogue writer's thread, a part at a time.

Tests: tests/kafka/transactions/test_coordinator.py, tests/kafka/transactions/test_end_together.py.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from broker.config import BrokerConfig
from broker.errors import Refusal, StorageError
from broker.kafka.groups.coordinator import GroupCoordinator
from broker.kafka.groups.offsets import Offsets, rows_of
from broker.kafka.groups.registry import send
from broker.kafka.groups.values import OFFSET_BYTES
from broker.kafka.transactions.marker_writer import Markers
from broker.kafka.transactions.registry import Reply, TransactionEntry, TransactionRegistry, row_of
from broker.kafka.transactions.transaction import GROUP, PREPARED, Partition, Phase, State
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue, OffsetRow, TransactionRow
from broker.metadata.writer import CatalogueWriter
from broker.runtime.clock import Clock
from broker.runtime.timers import Timer, TimerHandle
from broker.storage.log_manager import LogManager
from protocol.kafka.errors import ErrorCode

log = get_logger("transactions")

# Delay before a write that failed, because the disk is full or a log is offline, is repeated.
_RETRY_S = 1.0
# Delay before a transaction whose timeout has passed while a change of it is pending is checked again.
_TIMEOUT_RETRY_S = 0.1


class TransactionExecutor:
    def __init__(
        self,
        clock: Clock,
        timer: Timer,
        logs: LogManager,
        groups: GroupCoordinator,
        registry: TransactionRegistry,
        write_markers: Callable[[Markers], None],
        groups_are_marked: bool = False,
    ) -> None:
        """``groups_are_marked``: groups get a marker as partitions do, because other nodes may coordinate them."""
        self._clock = clock
        self._timer = timer
        self._logs = logs
        self._groups = groups
        self._writer = groups.writer
        self._registry = registry
        self._write_markers = write_markers
        self._groups_are_marked = groups_are_marked
        # Called without the entry's lock when a change is over that additions have waited for.
        self.go_on: Callable[[TransactionEntry], None] = _no_additions

    def resume(self, entry: TransactionEntry) -> None:
        """Go on with a transaction that the catalogue had at the start."""
        self._registry.count(entry)
        state = entry.transaction.state
        assert state is not None
        if state.phase is Phase.ONGOING:
            self._allow_appends(state)
            self._arm(entry, state)
        elif state.phase in PREPARED:
            log.info(
                "transaction_resumed", transactional_id=entry.transaction.transactional_id, phase=state.phase.value
            )
            self._carry_out(entry, state, self._participants(state), if_open=True)

    # Changes ----------------------------------------------------------------------------------------------------------

    def change(self, entry: TransactionEntry, state: State, reply: Reply) -> None:
        """Make ``state`` durable and go on from there. The caller holds the entry's lock.

        ``reply`` is called when the change is durable. If that fences a producer, ``reply`` does not wait for the end of its
        transaction.
        """
        self._begin([(entry, state)], reply, ends=False)

    def end(self, changes: Sequence[tuple[TransactionEntry, State]], reply: Reply) -> None:
        """Make the decisions about several transactions durable in one change. The caller holds all their locks.

        ``reply`` is called for each of them when it is carried out.
        """
        self._begin(changes, reply, ends=True)

    def _begin(self, changes: Sequence[tuple[TransactionEntry, State]], reply: Reply, ends: bool) -> None:
        write = self._addition(*changes[0]) if len(changes) == 1 else None
        if write is None:
            write = partial(_save, [row_of(entry.transaction.transactional_id, state) for entry, state in changes])
        for entry, state in changes:
            entry.transaction.begin_change(state)
            self._registry.count(entry)
        entries = [entry for entry, _ in changes]
        self._writer.change(write, partial(self._all_changed, entries, reply, ends))

    def _addition(self, entry: TransactionEntry, state: State) -> Callable[[Catalogue], None] | None:
        """The change of the catalogue if an open transaction only grows, to avoid rewriting the row for each partition."""
        before = entry.transaction.state
        if before is None or not before.phase is state.phase is Phase.ONGOING:
            return None
        partitions, groups = state.partitions - before.partitions, state.groups - before.groups
        return partial(_add, entry.transaction.transactional_id, sorted(partitions), sorted(groups))

    def abort(self, entry: TransactionEntry, state: State, reply: Reply) -> None:
        """``change`` for an abort that also fences the producer: ``reply`` is called when it is carried out."""

        def changed(error: ErrorCode) -> None:
            with entry.lock:
                if not error and entry.transaction.state == state:
                    entry.end_replies.append(reply)
                    return
            reply(error)

        self.change(entry, state, changed)

    def _all_changed(
        self, entries: list[TransactionEntry], reply: Reply, ends: bool, failure: StorageError | None
    ) -> None:
        """Runs on the catalogue writer's thread."""
        log_failure(failure)
        for entry in entries:
            with entry.lock:
                if failure is None:
                    answers = self._changed(entry, reply, ends)
                else:
                    self._not_changed(entry)
                    answers = [partial(reply, _error_of(failure))]
                self._registry.count(entry)
            if entry.additions:
                self.go_on(entry)
            send(answers)

    def _changed(self, entry: TransactionEntry, reply: Reply, ends: bool) -> list[partial[None]]:
        """The pending change is durable. Returns the answers to send."""
        transaction = entry.transaction
        before = transaction.state
        transaction.finish_change()
        state = transaction.state
        assert state is not None
        if before is None or before.producer_id != state.producer_id:
            self._registry.set_holder(entry, before, state)
        if state.phase is Phase.ONGOING:
            self._allow_appends(state, frozenset() if before is None else before.partitions)
            if entry.timer is None:
                self._arm(entry, state)
        elif state.phase in PREPARED:
            entry.cancel_timer()
            if ends:
                entry.end_replies.append(reply)
            self._carry_out(entry, state, self._participants(state))
            if ends:
                return []
        return [partial(reply, ErrorCode.none)]

    def _not_changed(self, entry: TransactionEntry) -> None:
        transaction = entry.transaction
        transaction.undo_change()
        if transaction.state is None:
            self._registry.remove(entry)
        elif transaction.state.phase is Phase.ONGOING and entry.timer is None:
            self._arm(entry, transaction.state, _RETRY_S)  # its timeout had passed

    def _allow_appends(self, state: State, known: frozenset[Partition] = frozenset()) -> None:
        """Let the producer append to the partitions of the transaction that are not ``known``."""
        self.allow(state, state.partitions - known)

    def allow(self, state: State, partitions: Iterable[Partition]) -> None:
        """Let the producer append to these partitions of its transaction. The caller holds the entry's lock, so that the end of
        the transaction is not decided meanwhile."""
        for topic, partition in sorted(partitions):
            target = self._logs.get(topic, partition)
            if target is not None:
                try:
                    target.transactions.allow(state.producer_id, state.epoch)
                except (Refusal, StorageError) as error:  # the producer's appends will fail, too
                    log.warning("transaction_admission_failed", topic=topic, partition=partition, error=str(error))

    # Offsets ----------------------------------------------------------------------------------------------------------

    def add_offsets(self, entry: TransactionEntry, group: str, offsets: Offsets, reply: Reply) -> None:
        """Make these offsets a durable part of the transaction. The caller holds the entry's lock.

        COORDINATOR_NOT_AVAILABLE if there is no memory for them.
        """
        added = sum((group, key) not in entry.unstable for key in offsets)
        # Each offset is kept here and, until the transaction ends, in its group.
        if added and not self._groups.has_memory_for(
            sum(committed.size_bytes for committed in offsets.values()) + added * OFFSET_BYTES
        ):
            send([partial(reply, ErrorCode.coordinator_not_available)])
            return
        self.make_unstable(entry, group, offsets)
        write = partial(_add_pending_offsets, entry.transaction.transactional_id, group, rows_of(offsets))
        self._writer.change(write, partial(self._offsets_added, entry, group, offsets, reply))

    def make_unstable(self, entry: TransactionEntry, group: str, keys: Iterable[Partition]) -> None:
        """Let readers of stable offsets wait for these from now on. The caller holds the entry's lock."""
        added = [key for key in keys if (group, key) not in entry.unstable]
        entry.unstable.update((group, key) for key in added)
        self._groups.offsets.make_unstable(group, added)

    def _offsets_added(
        self, entry: TransactionEntry, group: str, offsets: Offsets, reply: Reply, failure: StorageError | None
    ) -> None:
        """Runs on the catalogue writer's thread."""
        log_failure(failure)
        if failure is None:
            with entry.lock:
                entry.put_offsets(group, offsets)
                self._registry.count(entry)
        send([partial(reply, _error_of(failure))])

    def on_topic_deleted(self, topic: str) -> None:
        """Groups no longer commit anything for the topic."""
        has_dropped = False
        for entry in self._registry.entries():
            if not entry.offsets:  # the usual case; read without the lock
                continue
            with entry.lock:
                has_dropped |= entry.drop_offsets(topic)
                self._registry.count(entry)
        if has_dropped:
            self.delete_topic_offsets(topic)

    def delete_topic_offsets(self, topic: str) -> None:
        """Delete the topic's offsets from the catalogue."""
        self._writer.change(partial(_delete_topic_offsets, topic), log_failure)

    # Markers and completion -------------------------------------------------------------------------------------------

    def _participants(self, state: State) -> frozenset[Partition]:
        """What gets a marker."""
        if not self._groups_are_marked:
            return state.partitions
        return state.partitions | {(group, GROUP) for group in state.groups}

    def _carry_out(
        self, entry: TransactionEntry, state: State, partitions: frozenset[Partition], if_open: bool = False
    ) -> None:
        commit = state.phase is Phase.PREPARE_COMMIT
        done = partial(self._marked, entry)
        self._write_markers(Markers(partitions, state.producer_id, state.epoch, commit, done, if_open))

    def _marked(self, entry: TransactionEntry, failed: frozenset[Partition]) -> None:
        """The markers are durable, except in the partitions ``failed``. Runs on the thread that has synced the last log, or on
        the marker writer's."""
        if not failed:
            self._complete(entry)
            return
        with entry.lock:
            # The decision is durable, so the clients need not wait for the markers that failed.
            answers = [partial(reply, ErrorCode.none) for reply in entry.end_replies]
            entry.end_replies.clear()
            state = entry.transaction.state
        send(answers)
        assert state is not None
        # if_open: the log knows whether it has a marker that is not durable.
        retry = partial(self._carry_out, entry, state, failed, True)
        self._timer.at(self._clock.monotonic() + _RETRY_S, retry)

    def _complete(self, entry: TransactionEntry) -> None:
        with entry.lock:
            transaction = entry.transaction
            assert transaction.state is not None
            commit = transaction.state.phase is Phase.PREPARE_COMMIT
            state = transaction.complete(self._clock.time_ms())
            row = row_of(transaction.transactional_id, state)
            self._writer.change(partial(_complete, row, commit), partial(self._completed, entry, state, commit))

    def _completed(self, entry: TransactionEntry, state: State, commit: bool, failure: StorageError | None) -> None:
        """Runs on the catalogue writer's thread."""
        if failure is not None:
            log_failure(failure)
            self._timer.at(self._clock.monotonic() + _RETRY_S, partial(self._complete, entry))
            return
        with entry.lock:
            by_group: dict[str, list[Partition]] = {}
            for group, key in sorted(entry.unstable):
                by_group.setdefault(group, []).append(key)
            for group, keys in by_group.items():
                self._groups.offsets.end_transaction(group, keys, entry.offsets.get(group, {}) if commit else {})
            entry.clear_offsets()
            before = entry.transaction.state
            if before is not None and before.producer_id != state.producer_id:
                self._registry.set_holder(entry, before, state)
            entry.transaction.begin_change(state)
            entry.transaction.finish_change()
            self._registry.count(entry)
            answers = [partial(reply, ErrorCode.none) for reply in entry.end_replies]
            entry.end_replies.clear()
        send(answers)

    # Timeouts ---------------------------------------------------------------------------------------------------------

    def _arm(self, entry: TransactionEntry, state: State, at_least_s: float = 0.0) -> None:
        """Set the timer for the end of the transaction's timeout."""
        assert state.deadline_ms is not None
        left_s = max(at_least_s, (state.deadline_ms - self._clock.time_ms()) / 1000)
        entry.timer = self._timer.at(self._clock.monotonic() + left_s, partial(self._on_timer, entry))

    def _on_timer(self, entry: TransactionEntry) -> None:
        """Runs on the timer's thread, which must not sort thousands of partitions: the catalogue writer's thread does."""
        self._writer.call_soon(partial(self._abort_if_timed_out, entry))

    def _abort_if_timed_out(self, entry: TransactionEntry) -> None:
        with entry.lock:
            entry.cancel_timer()  # it may have been set again meanwhile
            transaction = entry.transaction
            state = transaction.state
            if not self._registry.is_active or state is None or state.phase is not Phase.ONGOING:
                return
            aborted = transaction.expire(self._clock.time_ms())
            if aborted is None:  # a change is pending, or the wall clock was set back
                self._arm(entry, state, _TIMEOUT_RETRY_S)
                return
            self.time_out(entry, aborted, _ignore)

    def time_out(self, entry: TransactionEntry, aborted: State, reply: Reply) -> None:
        """Abort a transaction at its timeout. The caller holds the entry's lock. ``reply`` as for ``abort``."""
        log.warning(
            "transaction_timed_out",
            transactional_id=entry.transaction.transactional_id,
            timeout_ms=aborted.timeout_ms,
        )
        self.abort(entry, aborted, reply)


def _error_of(failure: StorageError | None) -> ErrorCode:
    """COORDINATOR_NOT_AVAILABLE after a failed write: every client tries again after this code."""
    return ErrorCode.none if failure is None else ErrorCode.coordinator_not_available


def log_failure(failure: StorageError | None) -> None:
    if failure is not None:
        log.error("transaction_write_failed", error=str(failure))


def _no_additions(entry: TransactionEntry) -> None:
    """Nobody adds to transactions before the coordinator is assembled."""


def _ignore(error: ErrorCode) -> None:
    """The reply of a timeout, which no client has requested. A failure is logged where it happens, and tried again."""


def _save(rows: list[TransactionRow], catalogue: Catalogue) -> None:
    catalogue.save_transactions(rows)


def _add(transactional_id: str, partitions: list[Partition], groups: list[str], catalogue: Catalogue) -> None:
    catalogue.add_to_transaction(transactional_id, partitions, groups)


def _complete(row: TransactionRow, commit: bool, catalogue: Catalogue) -> None:
    catalogue.complete_transaction(row, commit)


def _delete_topic_offsets(topic: str, catalogue: Catalogue) -> None:
    catalogue.delete_topic_offsets(topic)


def _add_pending_offsets(transactional_id: str, group: str, rows: list[OffsetRow], catalogue: Catalogue) -> None:
    catalogue.add_pending_offsets(transactional_id, group, rows)


# Transactional ids per part of a sweep; other changes of the catalogue pass between the parts.
_SWEEP_PART = 1000


class TransactionalIdExpiration:
    def __init__(
        self, clock: Clock, timer: Timer, writer: CatalogueWriter, config: BrokerConfig, registry: TransactionRegistry
    ) -> None:
        self._clock = clock
        self._timer = timer
        self._writer = writer
        self._config = config
        self._registry = registry
        self._next_sweep: TimerHandle | None = None

    def start(self) -> None:
        interval_s = self._config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000
        # The timer's thread must not walk all transactional ids: the catalogue writer's thread does.
        self._next_sweep = self._timer.at(
            self._clock.monotonic() + interval_s, partial(self._writer.call_soon, self._begin_sweep)
        )

    def stop(self) -> None:
        if self._next_sweep is not None:
            self._next_sweep.cancel()

    def _begin_sweep(self) -> None:
        self._sweep(self._registry.entries())

    def _sweep(self, entries: list[TransactionEntry]) -> None:
        """Check a part of the entries now, and queue the rest behind everything that then waits for the writer."""
        try:
            self._forget_unused(entries[:_SWEEP_PART])
        finally:  # an error for one id must not end the sweeps
            if self._registry.is_active:
                if len(entries) > _SWEEP_PART:
                    self._writer.call_soon(partial(self._sweep, entries[_SWEEP_PART:]))
                else:
                    self.start()

    def _forget_unused(self, entries: Iterable[TransactionEntry]) -> None:
        now_ms = self._clock.time_ms()
        for entry in entries:
            transaction = entry.transaction
            with entry.lock:
                if not transaction.is_unused(now_ms, self._config.transactional_id_expiration_ms):
                    continue
                transaction.forget()
                self._registry.remove(entry)
                self._writer.change(partial(_delete, transaction.transactional_id), log_failure)


def _delete(transactional_id: str, catalogue: Catalogue) -> None:
    catalogue.delete_transaction(transactional_id)
