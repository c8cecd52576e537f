"""Offsets that groups of this node commit in transactions, where several nodes coordinate the transactions.

A group's node keeps them, because it answers who asks for the group's offsets; the catalogue has the same rows as on a
broker alone. The transaction's coordinator, here or elsewhere, is asked whether the group takes part, as for a partition's
first batch. The decision comes from there as a marker does (``marker_writer.py``): it commits or drops the rows, then the
groups see that, then it is answered. So a transaction is complete only when no group has pending offsets of it.

A guard is put here before the coordinator is asked, and a decision takes it away: an answer that is older adds nothing.

Any thread may call. ``_lock`` guards everything, and a group's lock may be taken under it; answers come on the catalogue writer's
thread, or on that of the coordinator's answer.

Tests: tests/kafka/transactions/test_pending_offsets.py, tests/process/test_nodes_transactions.py.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import attrs

from broker.errors import StorageError
from broker.kafka.groups.coordinator import GroupCoordinator
from broker.kafka.groups.offset_coordinator import Committer
from broker.kafka.groups.offsets import CommittedOffset, Offsets, rows_of
from broker.kafka.groups.registry import send
from broker.kafka.groups.values import OFFSET_BYTES
from broker.kafka.transactions.executor import log_failure
from broker.kafka.transactions.neighbours import Answer, Question
from broker.kafka.transactions.registry import Reply, committed_of
from broker.kafka.transactions.transaction import GROUP, Claim, Partition
from broker.metadata.catalogue import Catalogue, OffsetRow, PendingOffset
from broker.runtime.threads import Lock
from protocol.kafka.errors import ErrorCode

# (producer id, group).
_Key = tuple[int, str]

# What a client is told for the answers of the transaction's coordinator that are not final: it tries again.
_AGAIN = frozenset(
    {
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.concurrent_transactions,
    }
)


@attrs.define(eq=False)
class _Pending:
    """What a producer's transaction commits for a group. ``unstable``: from the request on; ``offsets``: those that are
    durable."""

    transactional_id: str
    unstable: set[Partition] = attrs.Factory(set)
    offsets: Offsets = attrs.Factory(dict)
    counted_bytes: int = 0


class PendingOffsets:
    def __init__(self, groups: GroupCoordinator, ask: Callable[[Question], None]) -> None:
        """``ask``: the coordinator of the question's transactional id."""
        self._groups = groups
        self._writer = groups.writer
        self._ask = ask
        self._pending: dict[_Key, _Pending] = {}
        self._guards: dict[_Key, set[object]] = {}
        self._lock = Lock()

    def load(
        self, rows: Iterable[PendingOffset], producer_ids: Mapping[str, int], topic_exists: Callable[[str], bool]
    ) -> None:
        """At the start: the rows of the groups of this node. ``producer_ids``: of all transactional ids."""
        deleted_topics: set[str] = set()
        for row in rows:
            producer_id = producer_ids.get(row.transactional_id)
            if not topic_exists(row.topic):
                deleted_topics.add(row.topic)
                continue
            if producer_id is None:  # its transactional id was forgotten: nobody will ever commit it
                self._writer.change(partial(_end, row.transactional_id, row.group, False), log_failure)
                continue
            pending = self._pending.setdefault((producer_id, row.group), _Pending(row.transactional_id))
            key = (row.topic, row.partition)
            self._make_unstable(pending, row.group, [key])
            self._put(pending, {key: committed_of(row)})
        for topic in sorted(deleted_topics):
            self._writer.change(partial(_delete_topic, topic), log_failure)

    def commit(
        self,
        transactional_id: str,
        claim: Claim,
        group: str,
        committer: Committer,
        offsets: Offsets,
        reply: Reply,
        *,
        adds: bool,
    ) -> None:
        """Commit these offsets of the group with the transaction. ``adds``: the group becomes a part of it if need be."""
        error = self._groups.offsets.check_in_transaction(group, committer)
        if error:
            reply(error)
            return
        key = (claim.producer_id, group)
        guard = object()
        with self._lock:
            self._guards.setdefault(key, set()).add(guard)

        def answered(answer: Answer) -> None:
            error = ErrorCode.coordinator_not_available if answer is None else answer.get((group, GROUP), _UNANSWERED)
            error = _translated(error)
            with self._lock:
                is_present = self._end_question(key, guard)
                if not error and not is_present:
                    error = ErrorCode.coordinator_not_available  # a decision has come meanwhile: ask again
                if not error and offsets:
                    error = self._add(transactional_id, key, offsets, reply)
                    if not error:
                        return
            reply(error)

        self._ask(Question(transactional_id, claim, [(group, GROUP)], adds, answered))

    def _end_question(self, key: _Key, guard: object) -> bool:
        guards = self._guards.get(key, set())
        is_present = guard in guards
        guards.discard(guard)
        if is_present and not guards:
            del self._guards[key]
        return is_present

    def _add(self, transactional_id: str, key: _Key, offsets: Offsets, reply: Reply) -> ErrorCode:
        """``_lock`` is held. After ``none``, ``reply`` is called when they are durable."""
        pending = self._pending.get(key)
        known: set[Partition] = set() if pending is None else pending.unstable
        added = sum(each not in known for each in offsets)
        size_bytes = sum(committed.size_bytes for committed in offsets.values()) + added * OFFSET_BYTES
        if added and not self._groups.has_memory_for(size_bytes):
            return ErrorCode.coordinator_not_available
        if pending is None:
            pending = self._pending[key] = _Pending(transactional_id)
        self._make_unstable(pending, key[1], offsets)
        write = partial(_add_pending, transactional_id, key[1], rows_of(offsets))
        # Under the lock: what a decision finds here, the catalogue has when the decision's change is its turn.
        self._writer.change(write, partial(self._added, pending, offsets, reply))
        return ErrorCode.none

    def _added(self, pending: _Pending, offsets: Offsets, reply: Reply, failure: StorageError | None) -> None:
        """On the catalogue writer's thread."""
        log_failure(failure)
        if failure is None:
            with self._lock:
                self._put(pending, offsets)
        send([partial(reply, ErrorCode.none if failure is None else ErrorCode.coordinator_not_available)])

    def end(self, producer_id: int, group: str, commit: bool, done: Callable[[StorageError | None], None]) -> None:
        """A decision. ``done`` is called when it is durable and in force. Repeating it changes nothing."""
        key = (producer_id, group)
        with self._lock:
            self._guards.pop(key, None)
            pending = self._pending.get(key)
            if pending is not None:
                write = partial(_end, pending.transactional_id, group, commit)
                self._writer.change(write, partial(self._ended, key, pending, commit, done))
                return
        done(None)

    def _ended(
        self,
        key: _Key,
        pending: _Pending,
        commit: bool,
        done: Callable[[StorageError | None], None],
        failure: StorageError | None,
    ) -> None:
        """On the catalogue writer's thread."""
        if failure is None:
            with self._lock:
                if self._pending.get(key) is pending:  # else a copy of this decision has come before
                    del self._pending[key]
                    self._groups.memory.add(-pending.counted_bytes)
                    offsets: Mapping[Partition, CommittedOffset] = pending.offsets if commit else {}
                    self._groups.offsets.end_transaction(key[1], sorted(pending.unstable), dict(offsets))
        send([partial(done, failure)])

    def on_topic_deleted(self, topic: str) -> None:
        """Groups no longer commit anything for the topic."""
        with self._lock:
            dropped = [
                pending.offsets.pop(key)
                for pending in self._pending.values()
                for key in [key for key in pending.offsets if key[0] == topic]
            ]
        if dropped:
            self._writer.change(partial(_delete_topic, topic), log_failure)

    def _make_unstable(self, pending: _Pending, group: str, keys: Iterable[Partition]) -> None:
        added = [key for key in keys if key not in pending.unstable]
        pending.unstable.update(added)
        self._groups.offsets.make_unstable(group, added)

    def _put(self, pending: _Pending, offsets: Offsets) -> None:
        replaced = sum(pending.offsets[key].size_bytes for key in offsets if key in pending.offsets)
        pending.offsets.update(offsets)
        grown = sum(committed.size_bytes for committed in offsets.values()) - replaced
        pending.counted_bytes += grown
        self._groups.memory.add(grown)


_UNANSWERED = ErrorCode.coordinator_not_available


def _translated(error: ErrorCode) -> ErrorCode:
    if error in _AGAIN:
        return ErrorCode.coordinator_not_available
    return ErrorCode.invalid_txn_state if error == ErrorCode.transaction_abortable else error


def _add_pending(transactional_id: str, group: str, rows: list[OffsetRow], catalogue: Catalogue) -> None:
    catalogue.add_pending_offsets(transactional_id, group, rows)


def _end(transactional_id: str, group: str, commit: bool, catalogue: Catalogue) -> None:
    catalogue.end_pending_offsets(transactional_id, group, commit)


def _delete_topic(topic: str, catalogue: Catalogue) -> None:
    catalogue.delete_topic_offsets(topic)
