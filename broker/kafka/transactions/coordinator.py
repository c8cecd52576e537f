"""The transaction coordinator: the interface for the handlers, joint ends and hanging transactions.

Any thread may call any method. Answers come by callback, on the thread that completes the request: the caller's, the catalogue
writer's, the marker writer's or the flusher's. ``transaction.py`` decides about a request, ``executor.py`` carries it out.

``HangingTransactions`` aborts open transactions in the logs that the coordinator does not know. They exist if files were put
into the data directory, or if the catalogue is an old copy. Nobody would ever end them, and no record behind them would become
stable. They are aborted partition by partition.

``decide`` is pure. It says whether the transactions of several producers may be ended by one decision, and gives their next
states. Each transaction is asked for its answer to an EndTxn of its own (``transaction.py``). Then:

| the transactions                              | the answer                                             |
|-----------------------------------------------|--------------------------------------------------------|
| some Ongoing, the others Empty                | the Ongoing transactions are decided, in one change    |
| some ended as requested, the others Empty     | ``none``: a repeated request                           |
| all Empty                                     | ``none``: nobody has written anything                  |
| some Ongoing, some ended as requested         | INVALID_TXN_STATE and the first that has ended         |
| any refuses (fenced, unknown, ended otherwise)| its error and index; nothing is decided                |

In the fourth case the request is a late copy of an older request and must not decide the transactions that its sender has begun
since. A final refusal takes precedence over CONCURRENT_TRANSACTIONS, after which the client asks again.

Tests: tests/kafka/handlers/test_write_txn_markers.py.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import ExitStack
from functools import partial
from operator import itemgetter

import attrs

from broker.cluster.nodes import transaction_key
from broker.config import BrokerConfig
from broker.errors import StorageError
from broker.kafka.groups.coordinator import GroupCoordinator
from broker.kafka.groups.offset_coordinator import Committer
from broker.kafka.groups.offsets import Offsets
from broker.kafka.transactions.elsewhere import TransactionsElsewhere
from broker.kafka.transactions.executor import TransactionalIdExpiration, TransactionExecutor, log_failure
from broker.kafka.transactions.marker_writer import Markers, MarkerWriter, Sender
from broker.kafka.transactions.neighbours import Decision, Neighbours, Question
from broker.kafka.transactions.pending_offsets import PendingOffsets
from broker.kafka.transactions.registry import Reply, TransactionEntry, TransactionRegistry, committed_of, state_of
from broker.kafka.transactions.transaction import (
    GROUP,
    LAST_EPOCH,
    PREPARED,
    Claim,
    Partition,
    Phase,
    State,
    Transaction,
)
from broker.kafka.transactions.version_2 import TransactionsVersion2
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue, TransactionRow
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer
from broker.storage.log_manager import LogManager
from protocol.kafka.errors import ErrorCode


@attrs.frozen
class Refused:
    error: ErrorCode
    # Index of the transaction that refuses.
    index: int


def decide(
    members: Iterable[tuple[Transaction | None, Claim]], commit: bool, now_ms: int
) -> Sequence[State | None] | Refused:
    """The next state of each, None for no change. The caller makes all of them durable in one change, or none."""
    states: list[State | None] = []
    ended: int | None = None
    wait: Refused | None = None
    for index, (transaction, claim) in enumerate(members):
        result = ErrorCode.invalid_producer_id_mapping
        if transaction is not None:
            result_or_state = transaction.end(claim, commit, now_ms)
            if isinstance(result_or_state, State):
                states.append(result_or_state)
                continue
            result = result_or_state
            if result == ErrorCode.invalid_txn_state and _is_empty(transaction):
                states.append(None)
                continue
        states.append(None)
        if result == ErrorCode.none:
            ended = index if ended is None else ended
        elif result == ErrorCode.concurrent_transactions:
            wait = wait or Refused(result, index)
        else:
            return Refused(result, index)
    if wait is not None:
        return wait
    if ended is not None and any(states):
        return Refused(ErrorCode.invalid_txn_state, ended)
    return states


def _is_empty(transaction: Transaction) -> bool:
    return transaction.state is not None and transaction.state.phase is Phase.EMPTY


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
        """Abort a transaction for an operator. ``reply`` is called when the markers are durable."""
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
    """Failed markers are tried again at the next start."""


# ``reply(error, producer id, epoch)``.
InitReply = Callable[[ErrorCode, int, int], None]
# ``reply(error, index of the transaction that refuses)``; the index is -1 if it concerns none or all.
JointReply = Callable[[ErrorCode, int], None]


class TransactionCoordinator:
    """All transactions of this broker. ``markers`` is the body of the ``marker-writer`` thread, which the assembly runs."""

    def __init__(
        self,
        clock: Clock,
        timer: Timer,
        catalogue: Catalogue,
        config: BrokerConfig,
        logs: LogManager,
        groups: GroupCoordinator,
    ) -> None:
        self._clock = clock
        self._catalogue = catalogue
        self._config = config
        self._logs = logs
        self._groups = groups
        self.markers = MarkerWriter(clock, logs, logs.flusher)
        self._hanging = HangingTransactions(logs, self.markers)
        nodes = self._nodes = logs.nodes
        self._registry = TransactionRegistry(groups, nodes)
        # Where there are several nodes: those that are asked, the partitions of this node in transactions of others, and the
        # offsets that groups of this node commit.
        self.neighbours: Neighbours | None = None
        self.elsewhere: TransactionsElsewhere | None = None
        self.pending_offsets: PendingOffsets | None = None
        write_markers = self.markers.write
        if nodes is not None:
            self.neighbours = Neighbours(nodes, self.markers, lambda topic: logs.topic(topic) is not None)
            self.elsewhere = TransactionsElsewhere(nodes, self._ask)
            self.pending_offsets = PendingOffsets(groups, self._ask)
            self.markers.end_group = self.pending_offsets.end
            write_markers = self.neighbours.write
        self._executor = TransactionExecutor(
            clock, timer, logs, groups, self._registry, write_markers, groups_are_marked=nodes is not None
        )
        self.version_2 = TransactionsVersion2(clock, catalogue, groups, self._registry, self._executor)
        self._expiration = TransactionalIdExpiration(clock, timer, groups.writer, config, self._registry)

    def open(self) -> None:
        """Load the transactions and go on with them. The groups have to be open. Raises StorageError."""
        rows = list(self._catalogue.load_transactions())
        for row in rows:
            if self._registry.is_here(row.transactional_id):
                self._registry.load(row.transactional_id, state_of(row))
        if self.pending_offsets is None:
            self._load_offsets()
        else:
            self._load_offsets_of_groups(self.pending_offsets, rows)
        for entry in self._registry.entries():
            self._executor.resume(entry)
        # Those of all nodes: nobody writes here yet, and no transaction is complete without this node's markers.
        states = [state_of(row) for row in rows]
        self._hanging.abort_all({(state.producer_id, key) for state in states for key in state.partitions})
        self._expiration.start()
        self._registry.is_active = True

    def _load_offsets(self) -> None:
        orphaned: set[str] = set()
        for pending in self._catalogue.load_pending_offsets():
            entry = self._registry.get(pending.transactional_id)
            if entry is None or self._logs.topic(pending.topic) is None:
                orphaned.add(pending.topic)
                continue
            key = (pending.topic, pending.partition)
            entry.put_offsets(pending.group, {key: committed_of(pending)})
            self._executor.make_unstable(entry, pending.group, [key])
        for topic in sorted(orphaned):
            self._executor.delete_topic_offsets(topic)

    def _load_offsets_of_groups(self, pending_offsets: PendingOffsets, rows: Iterable[TransactionRow]) -> None:
        nodes, logs = self._nodes, self._logs
        assert nodes is not None
        producer_ids = {row.transactional_id: row.producer_id for row in rows}
        here = (row for row in self._catalogue.load_pending_offsets() if nodes.coordinates(row.group))
        pending_offsets.load(here, producer_ids, lambda topic: logs.topic(topic) is not None)

    def shut_down(self) -> None:
        """Refuse requests from now on. Decided transactions are carried out, now or after the next start."""
        self._registry.is_active = False
        if self.neighbours is not None:
            self.neighbours.shut_down()
        self._expiration.stop()
        for entry in self._registry.entries():
            with entry.lock:
                if entry.timer is not None:
                    entry.timer.cancel()

    def on_topic_deleted(self, topic: str) -> None:
        self._executor.on_topic_deleted(topic)
        if self.pending_offsets is not None:
            self.pending_offsets.on_topic_deleted(topic)

    def _ask(self, question: Question) -> None:
        """Ask the coordinator of the question's transactional id, which may be this one."""
        assert self._nodes is not None
        assert self.neighbours is not None
        transactional_id, claim, participants = question.transactional_id, question.claim, question.participants
        place = self._nodes.place_of(transaction_key(transactional_id))
        if place != self._nodes.place:
            self.neighbours.ask(place, question)
        elif question.adds:
            self.version_2.add_partitions(
                transactional_id, claim, participants, lambda error: question.done(dict.fromkeys(participants, error))
            )
        else:
            question.done(self.version_2.verify(transactional_id, claim, participants))

    # Requests -------------------------------------------------------------------------------------------------------

    def init(self, transactional_id: str, timeout_ms: int, claim: Claim | None, reply: InitReply) -> None:
        """A producer takes the id: ``reply`` gets its producer id and epoch. Blocks if a new producer id is needed."""
        registry = self._registry
        if not registry.is_active:
            reply(ErrorCode.coordinator_not_available, -1, -1)
            return
        if not registry.is_here(transactional_id):
            reply(ErrorCode.not_coordinator, -1, -1)
            return
        if not 0 < timeout_ms <= self._config.transaction_max_timeout_ms:
            reply(ErrorCode.invalid_transaction_timeout, -1, -1)
            return
        entry = registry.get_or_create(transactional_id)
        if entry is None:
            reply(ErrorCode.coordinator_not_available, -1, -1)
            return

        def begin(state: State) -> None:
            self._executor.change(entry, state, partial(self._initialized, state, reply))

        self._init(entry, timeout_ms, claim, begin, lambda error: reply(error, -1, -1))

    def _init(
        self,
        entry: TransactionEntry,
        timeout_ms: int,
        claim: Claim | None,
        begin: Callable[[State], None],
        refuse: Reply,
    ) -> None:
        """``begin`` gets the next state, with the entry's lock held."""
        registry = self._registry
        state = entry.transaction.state
        new_id = -1
        if state is None or state.epoch >= LAST_EPOCH:
            try:
                new_id = self._catalogue.allocate_producer_ids(1)
            except StorageError as error:
                log_failure(error)
                registry.drop_if_new(entry)
                refuse(ErrorCode.coordinator_not_available)
                return
        with entry.lock:
            # If the id was forgotten a moment ago, it is new when the client asks again.
            result: State | ErrorCode = ErrorCode.not_coordinator
            if not entry.is_forgotten:
                result = entry.transaction.init(timeout_ms, claim, new_id, self._clock.time_ms())
            if isinstance(result, State) and result.producer_id < 0:
                result = ErrorCode.concurrent_transactions  # the last epoch was used meanwhile: ask again
            if isinstance(result, State):
                begin(result)
                return
        refuse(result)

    @staticmethod
    def _initialized(state: State, reply: InitReply, error: ErrorCode) -> None:
        if not error and state.phase is not Phase.EMPTY:
            error = ErrorCode.concurrent_transactions  # its predecessor's transaction is being aborted: ask again
        if error:
            reply(error, -1, -1)
        else:
            reply(error, state.producer_id, state.epoch)

    def add_partitions(
        self, transactional_id: str, claim: Claim, partitions: Iterable[Partition], reply: Reply
    ) -> None:
        self._add(transactional_id, claim, reply, partitions=partitions)

    def add_group(self, transactional_id: str, claim: Claim, group: str, reply: Reply) -> None:
        self._add(transactional_id, claim, reply, groups=[group])

    def _add(
        self,
        transactional_id: str,
        claim: Claim,
        reply: Reply,
        partitions: Iterable[Partition] = (),
        groups: Iterable[str] = (),
    ) -> None:
        entry = self._registry.active(transactional_id, reply)
        if entry is None:
            return
        with entry.lock:
            result = entry.transaction.add(claim, self._clock.time_ms(), partitions=partitions, groups=groups)
            if isinstance(result, State):
                if self._registry.has_memory_to_grow(entry, result):
                    self._executor.change(entry, result, reply)
                    return
                result = ErrorCode.coordinator_not_available
        reply(result)

    def commit_offsets(
        self, transactional_id: str, claim: Claim, group: str, committer: Committer, offsets: Offsets, reply: Reply
    ) -> None:
        """Commit these offsets of the group with the transaction."""
        entry = self._registry.active(transactional_id, reply)
        if entry is None:
            return
        with entry.lock:
            error = entry.transaction.check_group(claim, group)
            error = error or self._groups.offsets.check_in_transaction(group, committer)
            if not error and offsets:
                self._executor.add_offsets(entry, group, offsets, reply)
                return
        reply(error)

    def end(self, transactional_id: str, claim: Claim, commit: bool, reply: Reply) -> None:
        """``reply`` is called when the transaction is committed or aborted and every reader sees that."""
        entry = self._registry.active(transactional_id, reply)
        if entry is None:
            return
        with entry.lock:
            result = entry.transaction.end(claim, commit, self._clock.time_ms())
            if isinstance(result, State):
                self._executor.end([(entry, result)], reply)
                return
        reply(result)

    def end_together(self, members: Sequence[tuple[str, Claim]], commit: bool, reply: JointReply) -> None:
        """``end`` for several transactions by one decision, which is durable for all or for none."""
        registry = self._registry
        if not registry.is_active:
            reply(ErrorCode.coordinator_not_available, -1)
            return
        names = [name for name, _ in members]
        if not members or len(set(names)) < len(names):
            reply(ErrorCode.invalid_request, -1)
            return
        for index, name in enumerate(names):
            if not registry.is_here(name):
                reply(ErrorCode.not_coordinator, index)
                return
        entries = [registry.get(name) for name in names]
        with ExitStack() as locks:
            for entry in sorted(filter(None, entries), key=lambda entry: entry.transaction.transactional_id):
                locks.enter_context(entry.lock)
            asked = [
                (None if entry is None else entry.transaction, claim)
                for entry, (_, claim) in zip(entries, members, strict=True)
            ]
            result = decide(asked, commit, self._clock.time_ms())
            if not isinstance(result, Refused):
                changes = [(entry, state) for entry, state in zip(entries, result, strict=True) if entry and state]
                if changes:
                    self._executor.end(changes, _JointAnswer(len(changes), reply))
                    return
                result = Refused(ErrorCode.none, -1)
        reply(result.error, result.index)

    def may_write(self, transactional_id: str | None, producer_id: int) -> ErrorCode:
        """Whether a transactional batch under this id comes from the producer that owns the id."""
        if transactional_id is None:
            return ErrorCode.transactional_id_authorization_failed  # Kafka's error code
        if self.elsewhere is not None and self.elsewhere.has(transactional_id):
            # Its coordinator was asked a moment ago. If that is forgotten again, the client sends the batch again.
            known = self.elsewhere.knows(transactional_id, producer_id)
            return ErrorCode.none if known else ErrorCode.not_enough_replicas
        entry = self._registry.get(transactional_id)
        if entry is None or not entry.transaction.is_held_by(producer_id):
            return ErrorCode.invalid_producer_id_mapping
        return ErrorCode.none

    def why_refused(self, transactional_id: str | None, claim: Claim) -> ErrorCode:
        """Why a partition refused a batch of this producer's transaction, as an error code of Produce."""
        if self.elsewhere is not None and self.elsewhere.has(transactional_id or ""):
            return (
                ErrorCode.not_enough_replicas
            )  # a marker came in between: when the batch comes again, its coordinator says why
        entry = self._registry.get(transactional_id or "")
        if entry is None:
            return ErrorCode.invalid_producer_id_mapping
        with entry.lock:
            return entry.transaction.why_refused(claim)

    def abort(self, claim: Claim, partitions: frozenset[Partition], reply: AbortReply) -> None:
        """Abort a producer's open transaction in these partitions, for an operator.

        If the coordinator knows the transaction, it is aborted as a whole, since it is atomic. ``reply`` is called when that is
        done.
        """
        registry = self._registry
        if not registry.is_active:
            reply(dict.fromkeys(partitions, ErrorCode.coordinator_not_available))
            return
        entry = registry.holder(claim.producer_id)
        if entry is not None:
            with entry.lock:
                held = entry.transaction.is_held_by(claim.producer_id)
                result = entry.transaction.abort(claim, partitions, self._clock.time_ms())
                if isinstance(result, State):
                    self._executor.abort(entry, result, lambda error: reply(dict.fromkeys(partitions, error)))
                    return
            if held:
                reply(dict.fromkeys(partitions, result))
                return
        if self._nodes is not None and self._have_aborted_elsewhere(claim, partitions, reply):
            return
        self._hanging.abort(claim, partitions, reply)

    def _have_aborted_elsewhere(self, claim: Claim, partitions: frozenset[Partition], reply: AbortReply) -> bool:
        """False if no other node coordinates the producer. May wait for the catalogue."""
        assert self._nodes is not None
        assert self.neighbours is not None
        assert self.elsewhere is not None
        transactional_id = self.elsewhere.holder(claim.producer_id)
        if transactional_id is None:
            try:
                rows = self._catalogue.load_transactions()
                holders = (row.transactional_id for row in rows if row.producer_id == claim.producer_id)
                transactional_id = next(holders, None)
            except StorageError as error:
                log_failure(error)
                reply(dict.fromkeys(partitions, ErrorCode.broker_not_available))
                return True
        if transactional_id is None or self._registry.is_here(transactional_id):
            return False

        def done(errors: Mapping[Partition, ErrorCode]) -> None:
            reply(dict.fromkeys(partitions, ErrorCode.none) | dict(errors))

        decision = Decision(claim.producer_id, claim.epoch, False, sorted(partitions), done)
        self.neighbours.ask(self._nodes.place_of(transaction_key(transactional_id)), decision)
        return True

    def carry_out(
        self, sender: Sender, claim: Claim, commit: bool, participants: frozenset[Partition], reply: AbortReply
    ) -> None:
        """Another node has decided, or it passes on that an operator wants one of this node's own producers aborted. Write
        the markers of this node's partitions, and end the transaction in its groups. ``reply`` is called when all that is
        durable."""
        if not commit and self._registry.holder(claim.producer_id) is not None:
            self.abort(claim, participants, reply)
            return
        errors = {key: error for key in participants if (error := self._why_not_here(key))}

        def done(failed: frozenset[Partition]) -> None:
            written = dict.fromkeys(participants, ErrorCode.none)
            reply(written | dict.fromkeys(failed, ErrorCode.kafka_storage_error) | errors)

        accepted = participants - errors.keys()
        self.markers.write(Markers(accepted, claim.producer_id, claim.epoch, commit, done, if_open=True, sender=sender))

    def _why_not_here(self, participant: Partition) -> ErrorCode:
        nodes, (name, number) = self._nodes, participant
        assert nodes is not None
        if number == GROUP:
            return ErrorCode.none if nodes.coordinates(name) else ErrorCode.not_coordinator
        if self._logs.get(name, number) is not None:
            return ErrorCode.none
        info = self._logs.topic(name)
        if info is None or not 0 <= number < info.partitions:
            return ErrorCode.unknown_topic_or_partition
        return ErrorCode.kafka_storage_error if nodes.has_partition(name, number) else ErrorCode.not_leader_or_follower

    # As if something had happened to the producer ---------------------------------------------------------------------

    def fence(self, transactional_id: str, reply: Reply) -> None:
        """What ``init`` by another producer does to the present one: its open transaction is aborted, and its epoch no longer
        counts. ``reply`` is called when that is done. Blocks as ``init`` does."""
        entry = self._registry.active(transactional_id, reply)
        state = None if entry is None else entry.transaction.state
        if entry is None:
            return
        if state is None:
            reply(ErrorCode.invalid_producer_id_mapping)
            return
        owner = entry

        def begin(state: State) -> None:
            if state.phase in PREPARED:
                self._executor.abort(owner, state, reply)
            else:
                self._executor.change(owner, state, reply)

        self._init(entry, state.timeout_ms, None, begin, reply)

    def time_out(self, transactional_id: str, reply: Reply) -> None:
        """Abort the open transaction as at its timeout. ``reply`` is called when that is done. INVALID_TXN_STATE if none is
        open."""
        entry = self._registry.active(transactional_id, reply)
        if entry is None:
            return
        with entry.lock:
            result = entry.transaction.time_out(self._clock.time_ms())
            if isinstance(result, State):
                self._executor.time_out(entry, result, reply)
                return
        reply(result)

    # Administration -------------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> tuple[ErrorCode, State | None]:
        if not self._registry.is_active:
            return ErrorCode.coordinator_not_available, None
        if not self._registry.is_here(transactional_id):
            return ErrorCode.not_coordinator, None
        entry = self._registry.get(transactional_id)
        if entry is None or entry.transaction.state is None:
            return ErrorCode.transactional_id_not_found, None
        return ErrorCode.none, entry.transaction.state

    def holder_of(self, producer_id: int) -> tuple[str, int] | None:
        """The transactional id that owns this producer id, and the start (ms) of its open transaction, or -1."""
        entry = self._registry.holder(producer_id)
        state = None if entry is None else entry.transaction.state
        if entry is None or state is None:
            return None
        return entry.transaction.transactional_id, state.started_ms

    def list(self) -> tuple[ErrorCode, list[tuple[str, State]]]:
        """Every transactional id with its state."""
        if not self._registry.is_active:
            return ErrorCode.coordinator_not_available, []
        states = [
            (entry.transaction.transactional_id, state)
            for entry in self._registry.entries()
            if (state := entry.transaction.state) is not None
        ]
        return ErrorCode.none, sorted(states, key=itemgetter(0))


class _JointAnswer:
    """Collects the answers of several transactions, and replies when the last of them has come."""

    def __init__(self, left: int, reply: JointReply) -> None:
        self._left = left
        self._reply = reply
        self._error = ErrorCode.none
        self._lock = Lock()

    def __call__(self, error: ErrorCode) -> None:
        with self._lock:
            self._error = self._error or error
            self._left -= 1
            if self._left:
                return
        self._reply(self._error, -1)
