"""The transaction coordinator: what the handlers call.

Any thread may call any method; answers come by callback, on whatever thread brings them about. What may be is decided by
``transaction.py``, what then happens is done by ``registry.py``.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from operator import itemgetter

from broker.errors import StorageError
from broker.kafka.groups.offset_coordinator import Committer
from broker.kafka.groups.offsets import Offsets
from broker.kafka.transactions import joint_end
from broker.kafka.transactions.entry import Entry, Reply
from broker.kafka.transactions.marker_writer import MarkerWriter
from broker.kafka.transactions.registry import Registry, log_failure
from broker.kafka.transactions.transaction import LAST_EPOCH, Claim, Partition, Phase, State
from broker.kafka.transactions.unknown import AbortReply
from broker.runtime.threads import Lock
from protocol.kafka.errors import ErrorCode

# ``reply(error, producer id, epoch)``.
InitReply = Callable[[ErrorCode, int, int], None]
# ``reply(error, which of them)``; -1 for none or all.
JointReply = Callable[[ErrorCode, int], None]


class TransactionCoordinator:
    """All transactions of this broker. ``markers`` is the body of a thread that the assembly runs."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    @property
    def markers(self) -> MarkerWriter:
        return self._registry.markers

    def open(self) -> None:
        """Go on with what the catalogue has. The groups are open. Raises StorageError."""
        self._registry.open()

    def shut_down(self) -> None:
        self._registry.shut_down()

    def on_topic_deleted(self, topic: str) -> None:
        self._registry.on_topic_deleted(topic)

    # Requests -------------------------------------------------------------------------------------------------------

    def init(self, transactional_id: str, timeout_ms: int, claim: Claim | None, reply: InitReply) -> None:
        """A producer takes the id: ``reply`` gets its producer id and epoch. Blocks where a new producer id is needed."""
        registry = self._registry
        if not registry.active:
            reply(ErrorCode.coordinator_not_available, -1, -1)
            return
        if not 0 < timeout_ms <= registry.config.transaction_max_timeout_ms:
            reply(ErrorCode.invalid_transaction_timeout, -1, -1)
            return
        entry = registry.get_or_create(transactional_id)
        if entry is None:
            reply(ErrorCode.coordinator_not_available, -1, -1)
            return
        state = entry.transaction.state
        new_id = -1
        if state is None or state.epoch >= LAST_EPOCH:
            try:
                new_id = registry.catalogue.allocate_producer_ids(1)
            except StorageError as error:
                log_failure(error)
                registry.drop_if_new(entry)
                reply(ErrorCode.coordinator_not_available, -1, -1)
                return
        with entry.lock:
            result: State | ErrorCode = ErrorCode.not_coordinator  # forgotten just now: asked again, it is a new one
            if not entry.is_gone:
                result = entry.transaction.init(timeout_ms, claim, new_id, registry.clock.time_ms())
            if isinstance(result, State) and result.producer_id < 0:
                result = ErrorCode.concurrent_transactions  # the last epoch was given away since we looked: ask again
            if isinstance(result, State):
                registry.change(entry, result, partial(self._initialized, result, reply))
                return
        reply(result, -1, -1)

    @staticmethod
    def _initialized(state: State, reply: InitReply, error: ErrorCode) -> None:
        if not error and state.phase is not Phase.EMPTY:
            error = ErrorCode.concurrent_transactions  # the predecessor's transaction is being aborted: ask again
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
        entry = self._entry(transactional_id, reply)
        if entry is None:
            return
        with entry.lock:
            result = entry.transaction.add(claim, self._registry.clock.time_ms(), partitions=partitions, groups=groups)
            if isinstance(result, State):
                if self._registry.may_grow_to(entry, result):
                    self._registry.change(entry, result, reply)
                    return
                result = ErrorCode.coordinator_not_available
        reply(result)

    def commit_offsets(
        self, transactional_id: str, claim: Claim, group: str, committer: Committer, offsets: Offsets, reply: Reply
    ) -> None:
        """They count once the transaction is committed."""
        entry = self._entry(transactional_id, reply)
        if entry is None:
            return
        with entry.lock:
            error = entry.transaction.check_group(claim, group)
            error = error or self._registry.groups.offsets.check_in_transaction(group, committer)
            if not error and offsets:
                self._registry.add_offsets(entry, group, offsets, reply)
                return
        reply(error)

    def end(self, transactional_id: str, claim: Claim, commit: bool, reply: Reply) -> None:
        """``reply`` when the transaction is committed or aborted and everybody sees so."""
        entry = self._entry(transactional_id, reply)
        if entry is None:
            return
        with entry.lock:
            result = entry.transaction.end(claim, commit, self._registry.clock.time_ms())
            if isinstance(result, State):
                self._registry.change(entry, result, reply)
                return
        reply(result)

    def end_together(self, members: Sequence[tuple[str, Claim]], commit: bool, reply: JointReply) -> None:
        """As ``end`` for all of them, by one decision: it is durable for all, or taken for none."""
        registry = self._registry
        if not registry.active:
            reply(ErrorCode.coordinator_not_available, -1)
            return
        names = [name for name, _ in members]
        if not members or len(set(names)) < len(names):
            reply(ErrorCode.invalid_request, -1)
            return
        entries = [registry.get(name) for name in names]
        with ExitStack() as locks:
            for entry in sorted(filter(None, entries), key=lambda entry: entry.transaction.transactional_id):
                locks.enter_context(entry.lock)
            asked = [
                (None if entry is None else entry.transaction, claim)
                for entry, (_, claim) in zip(entries, members, strict=True)
            ]
            result = joint_end.decide(asked, commit, registry.clock.time_ms())
            if not isinstance(result, joint_end.Refused):
                changes = [(entry, state) for entry, state in zip(entries, result, strict=True) if entry and state]
                if changes:
                    registry.change_together(changes, _Together(len(changes), reply))
                    return
                result = joint_end.Refused(ErrorCode.none, -1)
        reply(result.error, result.index)

    def may_write(self, transactional_id: str | None, producer_id: int) -> ErrorCode:
        """Is the batch of a transaction that says to come with this id from the producer that has it?"""
        if transactional_id is None:
            return ErrorCode.transactional_id_authorization_failed  # as Kafka says it
        entry = self._registry.get(transactional_id)
        if entry is None or not entry.transaction.is_held_by(producer_id):
            return ErrorCode.invalid_producer_id_mapping
        return ErrorCode.none

    def why_refused(self, transactional_id: str | None, claim: Claim) -> ErrorCode:
        """Why a partition refused a batch of this producer's transaction."""
        entry = self._registry.get(transactional_id or "")
        if entry is None:
            return ErrorCode.invalid_producer_id_mapping
        with entry.lock:
            return entry.transaction.why_refused(claim)

    def abort(self, claim: Claim, partitions: frozenset[Partition], reply: AbortReply) -> None:
        """An operator aborts what a producer has open in these partitions.

        If it is a transaction of ours, all of it is aborted, and ``reply`` comes when it is: half of a transaction is none.
        """
        registry = self._registry
        if not registry.active:
            reply(dict.fromkeys(partitions, ErrorCode.coordinator_not_available))
            return
        entry = registry.holder(claim.producer_id)
        if entry is not None:
            with entry.lock:
                held = entry.transaction.is_held_by(claim.producer_id)
                result = entry.transaction.abort(claim, partitions, registry.clock.time_ms())
                if isinstance(result, State):
                    registry.abort(entry, result, lambda error: reply(dict.fromkeys(partitions, error)))
                    return
            if held:
                reply(dict.fromkeys(partitions, result))
                return
        registry.unknown.abort(claim, partitions, reply)

    # Administration -------------------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> tuple[ErrorCode, State | None]:
        if not self._registry.active:
            return ErrorCode.coordinator_not_available, None
        entry = self._registry.get(transactional_id)
        if entry is None or entry.transaction.state is None:
            return ErrorCode.transactional_id_not_found, None
        return ErrorCode.none, entry.transaction.state

    def list(self) -> tuple[ErrorCode, list[tuple[str, State]]]:
        """Every transactional id with its state."""
        if not self._registry.active:
            return ErrorCode.coordinator_not_available, []
        found = [(entry.transaction.transactional_id, entry.transaction.state) for entry in self._registry.entries()]
        return ErrorCode.none, sorted([(key, state) for key, state in found if state is not None], key=itemgetter(0))

    def _entry(self, transactional_id: str, reply: Reply) -> Entry | None:
        entry = self._registry.get(transactional_id)
        if not self._registry.active:
            reply(ErrorCode.coordinator_not_available)
            return None
        if entry is None:
            reply(ErrorCode.invalid_producer_id_mapping)
        return entry


class _Together:
    """One answer for the ends of several transactions, when the last of them has come."""

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
