"""Requests about committed offsets: to commit, fetch and delete them, in a transaction or outside; and their expiration.

Part of the ``GroupCoordinator``. Any thread may call any method. Commits and deletions are answered by callback, on the catalogue
writer's thread, when they are durable.

``OffsetExpiration`` deletes committed offsets that are too old (KIP-211), or whose topic is deleted. A sweep checks all groups,
on the catalogue writer's thread, a part at a time. ``offsets.py`` has the rule.

Tests: tests/kafka/groups/test_bounds.py.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import attrs

from broker.errors import StorageError
from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.consumer import ConsumerGroup
from broker.kafka.groups.group import Group, GroupType
from broker.kafka.groups.offsets import CommittedOffset, Offsets, Partition, delete_offsets, retention_of, rows_of
from broker.kafka.groups.registry import LOCKED_MAX, GroupEntry, GroupRegistry, error_of, log_failure, send
from broker.kafka.groups.values import CONSUMER
from broker.runtime.timers import TimerHandle
from protocol.kafka.errors import ErrorCode

Errors = dict[Partition, ErrorCode]
# A topic, and its partitions with the committed offset of each, if any.
FetchedTopic = tuple[str, list[tuple[int, CommittedOffset | None]]]


@attrs.frozen
class Committer:
    """The author of a commit: a member in a generation, or (generation -1) a consumer that is not a member.

    ``generation`` is the member epoch where the coordinator assigns the partitions (KIP-848). ``knows_epochs``: such members use
    this version of the request.
    """

    member_id: str
    group_instance_id: str | None
    generation: int
    knows_epochs: bool = False


class OffsetCoordinator:
    def __init__(self, registry: GroupRegistry) -> None:
        self._registry = registry

    def commit(self, group_id: str, committer: Committer, offsets: Offsets, reply: Callable[[Errors], None]) -> None:
        """``reply`` gets an error code for each partition when the commit is durable, or is refused."""
        registry = self._registry
        error = registry.refusal(group_id, may_be_empty=True)
        entry = registry.get(group_id)
        if not error and entry is None:
            if committer.generation >= 0:
                error = ErrorCode.group_id_not_found if committer.knows_epochs else ErrorCode.illegal_generation
            elif registry.has_memory_for_group(group_id):
                entry = registry.get_or_create(group_id)  # a group with offsets only
            else:
                error = ErrorCode.coordinator_not_available
        if error or entry is None:
            reply(dict.fromkeys(offsets, error))
            return
        metadata_max = registry.config.offset_metadata_max_bytes
        accepted = {key: committed for key, committed in offsets.items() if len(committed.metadata) <= metadata_max}
        rows = rows_of(accepted)
        with entry.lock:
            group = entry.group
            error = group.check_commit(
                committer.member_id, committer.group_instance_id, committer.generation, registry.clock.monotonic()
            )
            if not committer.knows_epochs and group.type is GroupType.CONSUMER:
                error = _error_before_epochs(group, committer, error)
            registry.arm(entry)
            if (
                not error
                and accepted
                and (growth := entry.offsets.growth(accepted)) > 0
                and not registry.has_memory_for(growth)
            ):
                error = ErrorCode.coordinator_not_available
            if not error and accepted:
                entry.offsets.stage(accepted)
                registry.count(entry)
                # Under the lock, so that commits of a partition are written in the order in which they were staged.
                done = partial(self._committed, entry, offsets, accepted, reply)
                registry.writer.commit(group_id, rows, done)
                return
            registry.drop_if_unused(entry)
        reply(dict.fromkeys(offsets, error or ErrorCode.offset_metadata_too_large))

    def _committed(
        self,
        entry: GroupEntry,
        offsets: Offsets,
        written: Offsets,
        reply: Callable[[Errors], None],
        failure: StorageError | None,
    ) -> None:
        registry = self._registry
        log_failure(failure)
        with entry.lock:
            if failure is None:
                entry.offsets.publish(written)
            else:
                entry.offsets.unstage(written)
                registry.drop_if_unused(entry)
            registry.count(entry)
        outcome = error_of(failure)
        errors = {key: outcome if key in written else ErrorCode.offset_metadata_too_large for key in offsets}
        send([partial(reply, errors)])

    def check_in_transaction(self, group_id: str, committer: Committer) -> ErrorCode:
        """Whether this member may commit offsets in a transaction. As in Kafka, a client that names no member may, unless the
        group has members and the coordinator assigns its partitions."""
        registry = self._registry
        error = registry.refusal(group_id)
        entry = registry.get(group_id)
        if error:
            return error
        names_nobody = committer.generation < 0 and not committer.member_id and committer.group_instance_id is None
        if names_nobody and (entry is None or entry.group.type is not GroupType.CONSUMER):
            return ErrorCode.none
        if entry is None:
            return ErrorCode.illegal_generation
        with entry.lock:
            error = entry.group.check_commit(
                committer.member_id, committer.group_instance_id, committer.generation, registry.clock.monotonic()
            )
            registry.arm(entry)
        # TxnOffsetCommit has no error code for the epoch of a member.
        return ErrorCode.illegal_generation if error is ErrorCode.stale_member_epoch else error

    def make_unstable(self, group_id: str, keys: Sequence[Partition]) -> None:
        """A transaction that has not ended yet commits offsets for these partitions."""
        with self._registry.locked(group_id) as entry:
            entry.offsets.make_unstable(keys)
            self._registry.count(entry)

    def end_transaction(self, group_id: str, keys: Sequence[Partition], committed: Offsets) -> None:
        """The end of a transaction is durable. ``keys`` are stable again; ``committed`` are its new offsets."""
        registry = self._registry
        with registry.locked(group_id) as entry:
            entry.offsets.make_stable(keys)
            for key, offset in committed.items():
                entry.offsets.load(*key, offset)
            registry.count(entry)
            registry.delete_if_finished(entry)

    def check_fetch(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """Whether a client that claims this member id and member epoch may fetch the group's offsets. Only members of the newer
        protocol name themselves; a group that does not exist has no offsets to hide."""
        entry = self._registry.get(group_id)
        if entry is None or (not member_id and epoch < 0):
            return ErrorCode.none
        with entry.lock:
            group = entry.group
            return group.check_fetch(member_id, epoch) if isinstance(group, ConsumerGroup) else ErrorCode.none

    def fetch(
        self, group_id: str, topics: Iterable[tuple[str, Sequence[int]]] | None
    ) -> tuple[ErrorCode, list[FetchedTopic]]:
        """The committed offsets of these (topic, partitions), or of all if None. In any state."""
        error = self._registry.refusal(group_id, may_be_empty=True)
        if error:
            return error, []
        entry = self._registry.get(group_id)
        if entry is None:
            return ErrorCode.none, [
                (topic, [(index, None) for index in partitions]) for topic, partitions in topics or ()
            ]
        get = entry.offsets.get
        if topics is None:
            with entry.lock:
                return ErrorCode.none, [(topic, list(partitions.items())) for topic, partitions in entry.offsets]
        fetched: list[FetchedTopic] = []
        for part in _parts(topics):
            with entry.lock:
                for topic, partitions, continues in part:
                    committed = [(index, get(topic, index)) for index in partitions]
                    if continues:
                        fetched[-1][1].extend(committed)
                    else:
                        fetched.append((topic, committed))
        return ErrorCode.none, fetched

    def unstable(self, group_id: str, topics: Iterable[tuple[str, Sequence[int]]]) -> set[Partition]:
        """The partitions among these for which an open transaction commits an offset."""
        entry = self._registry.get(group_id)
        if entry is None:
            return set()
        is_unstable = entry.offsets.is_unstable
        unstable: set[Partition] = set()
        for part in _parts(topics):
            with entry.lock:
                for topic, partitions, _ in part:
                    unstable.update((topic, index) for index in partitions if is_unstable(topic, index))
        return unstable

    def delete(
        self, group_id: str, partitions: Sequence[Partition], reply: Callable[[ErrorCode, Errors], None]
    ) -> None:
        """``reply`` gets the error code of the whole request, or else an error code for each partition."""
        registry = self._registry
        error = registry.refusal(group_id)
        entry = registry.get(group_id)
        if error or entry is None:
            reply(error or ErrorCode.group_id_not_found, {})
            return
        errors: Errors = {}
        partitions = list(dict.fromkeys(partitions))
        with entry.lock:
            group = entry.group
            if group.is_dead:
                error = ErrorCode.group_id_not_found
            elif isinstance(group, ClassicGroup) and not group.is_empty and group.protocol_type != CONSUMER:
                error = ErrorCode.non_empty_group  # only consumers say which topics they read
            else:
                errors = {key: self._refusal_to_delete(entry, key[0]) for key in partitions}
                removed = [key for key, refused in errors.items() if not refused]
                if removed:
                    entry.offsets.remove(removed)
                    registry.count(entry)
                    done = partial(_deleted, removed, errors, reply)
                    registry.writer.change(partial(delete_offsets, group_id, removed), done)
                    registry.delete_if_finished(entry)
                    return
        reply(error, errors)

    @staticmethod
    def _refusal_to_delete(entry: GroupEntry, topic: str) -> ErrorCode:
        if entry.group.is_empty:
            return ErrorCode.none
        topics = entry.group.topics
        subscribed = topics is None or topic in topics
        return ErrorCode.group_subscribed_to_topic if subscribed else ErrorCode.none


def _error_before_epochs(group: Group, committer: Committer, error: ErrorCode) -> ErrorCode:
    """The error code for a version of OffsetCommit that only clients of the classic protocol use."""
    # Kafka checks the version before the epoch.
    if isinstance(group, ConsumerGroup) and group.is_of_consumer_protocol(committer.member_id):
        return ErrorCode.unsupported_version
    return ErrorCode.illegal_generation if error is ErrorCode.stale_member_epoch else error


def _parts(topics: Iterable[tuple[str, Sequence[int]]]) -> Iterator[list[tuple[str, Sequence[int], bool]]]:
    """The same partitions in the same order, at most ``LOCKED_MAX`` at a time.

    The bool says that the topic continues from the previous part.
    """
    part: list[tuple[str, Sequence[int], bool]] = []
    left = LOCKED_MAX
    for topic, partitions in topics:
        for start in range(0, len(partitions) or 1, LOCKED_MAX):
            piece = partitions[start : start + LOCKED_MAX]
            if len(piece) + 1 > left and part:
                yield part
                part, left = [], LOCKED_MAX
            part.append((topic, piece, start > 0))
            left -= len(piece) + 1
    if part:
        yield part


def _deleted(
    removed: list[Partition],
    errors: Errors,
    reply: Callable[[ErrorCode, Errors], None],
    failure: StorageError | None,
) -> None:
    log_failure(failure)
    if failure is not None:
        errors |= dict.fromkeys(removed, error_of(failure))
    send([partial(reply, ErrorCode.none, errors)])


# Groups per part of a sweep; commits pass between the parts. Most groups have some hundred offsets at most.
_SWEEP_PART = 100


class OffsetExpiration:
    """Part of the ``GroupCoordinator``. Any thread may call any method."""

    def __init__(self, registry: GroupRegistry) -> None:
        self._registry = registry
        self._next_sweep: TimerHandle | None = None

    def start(self) -> None:
        registry = self._registry
        deadline = registry.clock.monotonic() + registry.config.offsets_retention_check_interval_ms / 1000
        # The timer's thread must not walk all groups: the catalogue writer's thread does.
        self._next_sweep = registry.timer.at(deadline, partial(registry.writer.call_soon, self._begin_sweep))

    def stop(self) -> None:
        if self._next_sweep is not None:
            self._next_sweep.cancel()

    def _begin_sweep(self) -> None:
        self._sweep_part(self._registry.entries())

    def _sweep_part(self, entries: list[GroupEntry]) -> None:
        """Check a part of the entries now, and queue the rest behind everything that then waits for the writer."""
        try:
            self.sweep(entries[:_SWEEP_PART])
        finally:  # an error for one group must not end the sweeps
            if self._registry.is_active:
                if len(entries) > _SWEEP_PART:
                    self._registry.writer.call_soon(partial(self._sweep_part, entries[_SWEEP_PART:]))
                else:
                    self.start()

    def sweep(self, entries: Iterable[GroupEntry] | None = None) -> None:
        """Delete offsets that are too old, and groups without members and offsets: of these entries, or of all."""
        registry = self._registry
        now_ms = registry.clock.time_ms()
        retention_ms = registry.config.offsets_retention_minutes * 60_000
        for entry in registry.entries() if entries is None else entries:
            with entry.lock:
                group = entry.group
                retention = retention_of(group, entry.empty_since_ms, now_ms, retention_ms)
                expired = [] if retention is None else entry.offsets.expired(retention)
                if expired:
                    entry.offsets.remove(expired)
                    registry.count(entry)
                    registry.writer.change(partial(delete_offsets, group.group_id, expired), log_failure)
                registry.delete_if_finished(entry)

    def on_topic_deleted(self, topic: str) -> None:
        """Delete the topic's offsets in all groups. Returns before that is durable; ``GroupRegistry.load`` repeats a failure."""
        registry = self._registry
        for entry in registry.entries():
            if not entry.offsets.may_have(topic):  # the usual case, and there are as many locks as groups
                continue
            with entry.lock:
                removed = entry.offsets.of_topic(topic)
                if removed:
                    entry.offsets.remove(removed)
                    registry.count(entry)
                    # Group by group and under its lock, so that a commit that still arrives is written after this.
                    registry.writer.change(partial(delete_offsets, entry.group.group_id, removed), log_failure)
                    registry.delete_if_finished(entry)
