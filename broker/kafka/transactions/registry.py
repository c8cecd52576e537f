"""All transactional ids of this broker, each with its lock and its timer, and what is done once one has decided something.

Decides nothing. Every change of a transaction is handed to the groups' catalogue writer, which keeps the order: offsets that were
added to a transaction are durable before its decision is. Then:

1. the decision is durable;
2. the markers are written into the partitions and durable (``marker_writer.py``);
3. in one change of the catalogue, the offsets of the transaction are committed and it is complete;
4. groups see the offsets, and whoever ended the transaction is answered.

A start finds every transaction in one of these steps and goes on with the next one (``open``). Any thread may call any method.
"""

from collections.abc import Iterable, Sequence
from functools import partial

from broker.config import BrokerConfig
from broker.errors import Refusal, StorageError
from broker.kafka.groups.coordinator import GroupCoordinator
from broker.kafka.groups.coordinator_memory import OFFSET_BYTES, PARTICIPANT_BYTES, TRANSACTION_BYTES
from broker.kafka.groups.offsets import Offsets, rows_of
from broker.kafka.groups.registry import send
from broker.kafka.transactions.entry import Entry, Reply
from broker.kafka.transactions.marker_writer import Markers, MarkerWriter
from broker.kafka.transactions.rows import committed_of, row_of, state_of
from broker.kafka.transactions.transaction import PREPARED, Partition, Phase, State, Transaction
from broker.kafka.transactions.unknown import Unknown
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue, OffsetRow, TransactionRow
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer, TimerHandle
from broker.storage.log_manager import LogManager
from protocol.kafka.errors import ErrorCode

log = get_logger("transactions")

# What could not be written is tried again after this long (s): a full disk, a log that is offline.
_RETRY_S = 1.0
# Transactional ids that a sweep looks at before it lets other changes pass.
_SWEEP_AT_A_TIME = 1000


class Registry:
    """``markers`` is the body of a thread that the assembly runs."""

    def __init__(
        self,
        clock: Clock,
        timer: Timer,
        catalogue: Catalogue,
        config: BrokerConfig,
        logs: LogManager,
        groups: GroupCoordinator,
    ) -> None:
        self.clock = clock
        self.config = config
        self.catalogue = catalogue
        self.groups = groups
        self.markers = MarkerWriter(clock, logs, logs.flusher)
        self.unknown = Unknown(logs, self.markers)
        self.active = False
        self._timer = timer
        self._logs = logs
        self._writer = groups.writer
        self._entries: dict[str, Entry] = {}
        self._holders: dict[int, Entry] = {}  # by producer id
        self._lock = Lock()  # for changes of the dicts; may be taken under an entry's lock
        self._sweep: TimerHandle | None = None

    # Life -----------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Load the transactions and go on with them. The groups are open. Raises StorageError."""
        for row in self.catalogue.load_transactions():
            entry = Entry(Transaction(row.transactional_id, state_of(row)))
            self._entries[row.transactional_id] = self._holders[row.producer_id] = entry
        self._load_offsets()
        for entry in self.entries():
            self._count(entry)
            state = entry.transaction.state
            assert state is not None
            if state.phase is Phase.ONGOING:
                self._allow(state)
                self._arm(entry, state)
            elif state.phase in PREPARED:
                log.info(
                    "transaction_resumed", transactional_id=entry.transaction.transactional_id, phase=state.phase.value
                )
                self._carry_out(entry, state, state.partitions, if_open=True)
        known = [entry.transaction.state for entry in self.entries()]
        self.unknown.abort_all({(one.producer_id, key) for one in known if one is not None for key in one.partitions})
        self._start_sweeping()
        self.active = True

    def _load_offsets(self) -> None:
        gone: set[str] = set()
        for pending in self.catalogue.load_pending_offsets():
            entry = self._entries.get(pending.transactional_id)
            if entry is None or self._logs.topic(pending.topic) is None:
                gone.add(pending.topic)
                continue
            key = (pending.topic, pending.partition)
            entry.put(pending.group, {key: committed_of(pending)})
            self._make_unstable(entry, pending.group, [key])
        for topic in sorted(gone):
            self._writer.change(partial(_delete_topic_offsets, topic), log_failure)

    def shut_down(self) -> None:
        """Refuse requests from now on. What has been decided is carried out, or will be after the next start."""
        self.active = False
        if self._sweep is not None:
            self._sweep.cancel()
        for entry in self.entries():
            with entry.lock:
                if entry.timer is not None:
                    entry.timer.cancel()

    # Finding ----------------------------------------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        with self._lock:
            return list(self._entries.values())

    def get(self, transactional_id: str) -> Entry | None:
        return self._entries.get(transactional_id)

    def get_or_create(self, transactional_id: str) -> Entry | None:
        """None where there is no room for one more."""
        entry = self._entries.get(transactional_id)
        if entry is None and self.groups.has_memory_for(TRANSACTION_BYTES + 2 * len(transactional_id)):
            with self._lock:
                entry = self._entries.setdefault(transactional_id, Entry(Transaction(transactional_id)))
        return entry

    def holder(self, producer_id: int) -> Entry | None:
        """Whose producer id this is, or was a moment ago."""
        return self._holders.get(producer_id)

    def may_grow_to(self, entry: Entry, state: State) -> bool:
        """Is there room for what this state adds?"""
        present = entry.transaction.state
        before = 0 if present is None else len(present.partitions) + len(present.groups)
        growth = (len(state.partitions) + len(state.groups) - before) * PARTICIPANT_BYTES
        return growth <= 0 or self.groups.has_memory_for(growth)

    def drop_if_new(self, entry: Entry) -> None:
        """Forget one that was made for a request and got no state."""
        with entry.lock:
            if entry.transaction.state is None and entry.transaction.pending is None and not entry.is_gone:
                self.remove(entry)

    def remove(self, entry: Entry) -> None:
        """Forget it; its lock is held."""
        entry.is_gone = True
        state = entry.transaction.state
        with self._lock:
            del self._entries[entry.transaction.transactional_id]
            if state is not None and self._holders.get(state.producer_id) is entry:
                del self._holders[state.producer_id]
        self._count(entry)

    def _count(self, entry: Entry) -> None:
        """Something of it has changed: how much room does it take now? Its lock is held."""
        size = 0 if entry.is_gone else entry.size_bytes
        self.groups.memory.add(size - entry.counted_bytes)
        entry.counted_bytes = size

    # Changes ----------------------------------------------------------------------------------------------------------

    def change(self, entry: Entry, state: State, reply: Reply) -> None:
        """Make ``state`` durable and go on from there; the entry's lock is held."""
        self.change_together([(entry, state)], reply)

    def abort(self, entry: Entry, state: State, reply: Reply) -> None:
        """As ``change``, for an end that takes the epoch from its producer too: ``reply`` when it is carried out."""

        def changed(error: ErrorCode) -> None:
            with entry.lock:
                if not error and entry.transaction.state == state:
                    entry.ended.append(reply)
                    return
            reply(error)

        self.change(entry, state, changed)

    def change_together(self, changes: Sequence[tuple[Entry, State]], reply: Reply) -> None:
        """The same with all of them in one durable change; all their locks are held. ``reply`` is called once for each."""
        rows = []
        for entry, state in changes:
            entry.transaction.begin(state)
            self._count(entry)
            rows.append(row_of(entry.transaction.transactional_id, state))
        entries = [entry for entry, _ in changes]
        self._writer.change(partial(_save, rows), partial(self._all_changed, entries, reply))

    def _all_changed(self, entries: list[Entry], reply: Reply, failure: StorageError | None) -> None:
        """On the writer's thread."""
        log_failure(failure)
        for entry in entries:
            self._changed(entry, reply, failure)

    def _changed(self, entry: Entry, reply: Reply, failure: StorageError | None) -> None:
        answers = []
        with entry.lock:
            transaction = entry.transaction
            if failure is not None:
                transaction.undone()
                answers.append(partial(reply, _error_of(failure)))
                if transaction.state is None:
                    self.remove(entry)
                if transaction.state is not None and transaction.state.phase is Phase.ONGOING and entry.timer is None:
                    self._arm(entry, transaction.state, _RETRY_S)  # its time was over
            else:
                before = transaction.state
                transaction.done()
                state = transaction.state
                assert state is not None
                if before is None or before.producer_id != state.producer_id:
                    self._hold(entry, before, state)
                if state.phase is Phase.ONGOING:
                    self._allow(state, frozenset() if before is None else before.partitions)
                    if entry.timer is None:
                        self._arm(entry, state)
                    answers.append(partial(reply, ErrorCode.none))
                elif state.phase in PREPARED:
                    self._disarm(entry)
                    if before is not None and before.epoch != state.epoch:  # fenced: nobody waits for the end of it
                        answers.append(partial(reply, ErrorCode.none))
                    else:
                        entry.ended.append(reply)
                    self._carry_out(entry, state, state.partitions)
                else:
                    answers.append(partial(reply, ErrorCode.none))
            self._count(entry)
        send(answers)

    def _hold(self, entry: Entry, before: State | None, state: State) -> None:
        """It has another producer id now."""
        with self._lock:
            if before is not None and self._holders.get(before.producer_id) is entry:
                del self._holders[before.producer_id]
            self._holders[state.producer_id] = entry

    def _allow(self, state: State, known: frozenset[Partition] = frozenset()) -> None:
        """Let the producer append to these partitions."""
        for topic, partition in sorted(state.partitions - known):
            target = self._logs.get(topic, partition)
            if target is not None:
                try:
                    target.allow_transaction(state.producer_id, state.epoch)
                except (Refusal, StorageError) as error:  # its appends will say so, too
                    log.warning("transaction_not_allowed", topic=topic, partition=partition, error=str(error))

    def _make_unstable(self, entry: Entry, group: str, keys: Iterable[Partition]) -> None:
        new = [key for key in keys if (group, key) not in entry.unstable]
        entry.unstable.update((group, key) for key in new)
        self.groups.offsets.make_unstable(group, new)

    def add_offsets(self, entry: Entry, group: str, offsets: Offsets, reply: Reply) -> None:
        """Make it durable that the transaction commits these; the entry's lock is held.

        COORDINATOR_NOT_AVAILABLE where there is no room for them.
        """
        new = sum((group, key) not in entry.unstable for key in offsets)
        # Each is kept here and, until the transaction ends, in its group.
        if new and not self.groups.has_memory_for(sum(one.size_bytes for one in offsets.values()) + new * OFFSET_BYTES):
            send([partial(reply, ErrorCode.coordinator_not_available)])
            return
        self._make_unstable(entry, group, offsets)
        write = partial(_add_pending_offsets, entry.transaction.transactional_id, group, rows_of(offsets))
        self._writer.change(write, partial(self._offsets_added, entry, group, offsets, reply))

    def _offsets_added(
        self, entry: Entry, group: str, offsets: Offsets, reply: Reply, failure: StorageError | None
    ) -> None:
        log_failure(failure)
        if failure is None:
            with entry.lock:
                entry.put(group, offsets)
                self._count(entry)
        send([partial(reply, _error_of(failure))])

    def on_topic_deleted(self, topic: str) -> None:
        """What groups would commit for it goes with it."""
        found = False
        for entry in self.entries():
            if not entry.offsets:  # most have none; looked at without the lock
                continue
            with entry.lock:
                for offsets in entry.offsets.values():
                    for key in [key for key in offsets if key[0] == topic]:
                        entry.offsets_bytes -= offsets.pop(key).size_bytes
                        found = True
                self._count(entry)
        if found:
            self._writer.change(partial(_delete_topic_offsets, topic), log_failure)

    # Carrying out ---------------------------------------------------------------------------------------------------

    def _carry_out(self, entry: Entry, state: State, partitions: frozenset[Partition], if_open: bool = False) -> None:
        commit = state.phase is Phase.PREPARE_COMMIT
        done = partial(self._marked, entry)
        self.markers.write(Markers(partitions, state.producer_id, state.epoch, commit, done, if_open))

    def _marked(self, entry: Entry, failed: frozenset[Partition]) -> None:
        """On the flusher's or the marker writer's thread."""
        if not failed:
            self._complete(entry)
            return
        with entry.lock:
            answers = [partial(reply, ErrorCode.none) for reply in entry.ended]  # decided it is
            entry.ended.clear()
            state = entry.transaction.state
        send(answers)
        assert state is not None
        # Whether a marker was written that is not durable, its log knows.
        again = partial(self._carry_out, entry, state, failed, True)
        self._timer.at(self.clock.monotonic() + _RETRY_S, again)

    def _complete(self, entry: Entry) -> None:
        with entry.lock:
            transaction = entry.transaction
            assert transaction.state is not None
            commit = transaction.state.phase is Phase.PREPARE_COMMIT
            state = transaction.carried_out(self.clock.time_ms())
            row = row_of(transaction.transactional_id, state)
            self._writer.change(partial(_complete, row, commit), partial(self._completed, entry, state, commit))

    def _completed(self, entry: Entry, state: State, commit: bool, failure: StorageError | None) -> None:
        """On the writer's thread."""
        if failure is not None:
            log_failure(failure)
            self._timer.at(self.clock.monotonic() + _RETRY_S, partial(self._complete, entry))
            return
        with entry.lock:
            by_group: dict[str, list[Partition]] = {}
            for group, key in sorted(entry.unstable):
                by_group.setdefault(group, []).append(key)
            for group, keys in by_group.items():
                self.groups.offsets.end_transaction(group, keys, entry.offsets.get(group, {}) if commit else {})
            entry.unstable.clear()
            entry.offsets.clear()
            entry.offsets_bytes = 0
            entry.transaction.begin(state)
            entry.transaction.done()
            self._count(entry)
            answers = [partial(reply, ErrorCode.none) for reply in entry.ended]
            entry.ended.clear()
        send(answers)

    # Time -----------------------------------------------------------------------------------------------------------

    def _arm(self, entry: Entry, state: State, at_least_s: float = 0.0) -> None:
        assert state.deadline_ms is not None
        left_s = max(at_least_s, (state.deadline_ms - self.clock.time_ms()) / 1000)
        entry.timer = self._timer.at(self.clock.monotonic() + left_s, partial(self._time_over, entry))

    @staticmethod
    def _disarm(entry: Entry) -> None:
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None

    def _time_over(self, entry: Entry) -> None:
        """On the timer's thread, which must not sort some thousand partitions: the writer's does."""
        self._writer.call_soon(partial(self._abort_if_over, entry))

    def _abort_if_over(self, entry: Entry) -> None:
        with entry.lock:
            self._disarm(entry)  # it may have been armed anew since this was due
            transaction = entry.transaction
            state = transaction.state
            if not self.active or state is None or state.phase is not Phase.ONGOING:
                return
            aborted = transaction.expire(self.clock.time_ms())
            if aborted is None:  # a change is on its way, or the clock was set
                self._arm(entry, state, 0.1)
                return
            log.warning(
                "transaction_timed_out", transactional_id=transaction.transactional_id, timeout_ms=state.timeout_ms
            )
            self.change(entry, aborted, _log_timeout)

    def _start_sweeping(self) -> None:
        interval_s = self.config.transaction_remove_expired_transaction_cleanup_interval_ms / 1000
        # The timer's thread must not walk all transactions: the writer's does.
        self._sweep = self._timer.at(
            self.clock.monotonic() + interval_s, partial(self._writer.call_soon, self._begin_sweep)
        )

    def _begin_sweep(self) -> None:
        self._sweep_on(self.entries())

    def _sweep_on(self, entries: list[Entry]) -> None:
        """Some of them; the others at the writer's next turn, after what waits for it by then."""
        self._sweep_some(entries[:_SWEEP_AT_A_TIME])
        if not self.active:
            return
        if len(entries) > _SWEEP_AT_A_TIME:
            self._writer.call_soon(partial(self._sweep_on, entries[_SWEEP_AT_A_TIME:]))
        else:
            self._start_sweeping()

    def _sweep_some(self, entries: Iterable[Entry]) -> None:
        """Forget transactional ids that were unused for long."""
        now_ms = self.clock.time_ms()
        for entry in entries:
            transaction = entry.transaction
            with entry.lock:
                if not transaction.is_unused(now_ms, self.config.transactional_id_expiration_ms):
                    continue
                transaction.forget()
                self.remove(entry)
                self._writer.change(partial(_delete, transaction.transactional_id), log_failure)


def _error_of(failure: StorageError | None) -> ErrorCode:
    """Retriable to every client."""
    return ErrorCode.none if failure is None else ErrorCode.coordinator_not_available


def log_failure(failure: StorageError | None) -> None:
    if failure is not None:
        log.error("transaction_change_not_durable", error=str(failure))


def _log_timeout(error: ErrorCode) -> None:
    """Nobody asked for it; a failure is logged where it happens, and tried again."""


def _save(rows: list[TransactionRow], catalogue: Catalogue) -> None:
    catalogue.save_transactions(rows)


def _complete(row: TransactionRow, commit: bool, catalogue: Catalogue) -> None:
    catalogue.complete_transaction(row, commit)


def _delete(transactional_id: str, catalogue: Catalogue) -> None:
    catalogue.delete_transaction(transactional_id)


def _delete_topic_offsets(topic: str, catalogue: Catalogue) -> None:
    catalogue.delete_topic_offsets(topic)


def _add_pending_offsets(
    transactional_id: str,
    group: str,
    rows: list[OffsetRow],
    catalogue: Catalogue,
) -> None:
    catalogue.add_pending_offsets(transactional_id, group, rows)
