"""What clients ask of committed offsets, and when these are forgotten: too old, or their topic is gone.

Part of the ``GroupCoordinator``. Any thread may call any method; commits and deletions are answered by callback when they are
durable, on the catalogue writer's thread.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import attrs

from broker.errors import StorageError
from broker.kafka.groups.classic_states import ClassicGroupState
from broker.kafka.groups.offsets import CommittedOffset, Offsets, Partition, retention_of, rows_of
from broker.kafka.groups.registry import LOCKED_MAX, GroupEntry, GroupRegistry, error_of, log_failure, send
from broker.kafka.groups.subscription import CONSUMER
from broker.metadata.catalogue import Catalogue
from broker.runtime.timers import TimerHandle
from protocol.kafka.errors import ErrorCode

# Groups that a sweep looks at before it lets commits pass; most of them have some hundred offsets at most.
_SWEEP_AT_A_TIME = 100

Errors = dict[Partition, ErrorCode]
# A topic's partitions with what is committed for each, if anything.
FetchedTopic = tuple[str, list[tuple[int, CommittedOffset | None]]]


@attrs.frozen
class Committer:
    """Who commits: a member in a generation, or (generation -1) a consumer that is no member."""

    member_id: str
    group_instance_id: str | None
    generation: int


class OffsetCoordinator:
    def __init__(self, registry: GroupRegistry) -> None:
        self._registry = registry
        self._sweep: TimerHandle | None = None

    def commit(self, group_id: str, committer: Committer, offsets: Offsets, reply: Callable[[Errors], None]) -> None:
        """``reply`` gets an error code for each partition, when the commit is durable or refused."""
        registry = self._registry
        error = registry.refusal(group_id, may_be_empty=True)
        entry = registry.get(group_id)
        if not error and entry is None:
            if committer.generation >= 0:
                error = ErrorCode.illegal_generation
            elif registry.has_memory_for_group(group_id):
                entry = registry.get_or_create(group_id)  # from now on a group of which only offsets are known
            else:
                error = ErrorCode.coordinator_not_available
        if error or entry is None:
            reply(dict.fromkeys(offsets, error))
            return
        longest = registry.config.offset_metadata_max_bytes
        fitting = {key: committed for key, committed in offsets.items() if len(committed.metadata) <= longest}
        rows = rows_of(fitting)
        with entry.lock:
            error = entry.group.check_commit(
                committer.member_id, committer.group_instance_id, committer.generation, registry.clock.monotonic()
            )
            registry.arm(entry)
            if (
                not error
                and fitting
                and (growth := entry.offsets.growth(fitting)) > 0
                and not registry.has_memory_for(growth)
            ):
                error = ErrorCode.coordinator_not_available
            if not error and fitting:
                entry.offsets.stage(fitting)
                registry.count(entry)
                # Under the lock, so that commits of one partition are written in the order in which they were staged.
                done = partial(self._committed, entry, offsets, fitting, reply)
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
        """May this member commit offsets in a transaction? As in Kafka, who does not say which member it is, may."""
        registry = self._registry
        error = registry.refusal(group_id)
        if error or (committer.generation < 0 and not committer.member_id and committer.group_instance_id is None):
            return error
        entry = registry.get(group_id)
        if entry is None:
            return ErrorCode.illegal_generation
        with entry.lock:
            error = entry.group.check_commit(
                committer.member_id, committer.group_instance_id, committer.generation, registry.clock.monotonic()
            )
            registry.arm(entry)
        return error

    def make_unstable(self, group_id: str, keys: Sequence[Partition]) -> None:
        """A transaction that is not decided yet commits offsets for these partitions."""
        with self._registry.locked(group_id) as entry:
            entry.offsets.make_unstable(keys)
            self._registry.count(entry)

    def end_transaction(self, group_id: str, keys: Sequence[Partition], committed: Offsets) -> None:
        """It is decided and that is durable: of the partitions that were unstable these have a new offset."""
        registry = self._registry
        with registry.locked(group_id) as entry:
            entry.offsets.make_stable(keys)
            for key, one in committed.items():
                entry.offsets.load(*key, one)
            registry.count(entry)
            registry.bury_if_finished(entry)

    def fetch(
        self, group_id: str, wanted: Iterable[tuple[str, Sequence[int]]] | None
    ) -> tuple[ErrorCode, list[FetchedTopic]]:
        """What is committed for these (topic, partitions), or (None) for all that have something. Any group, in any state."""
        error = self._registry.refusal(group_id, may_be_empty=True)
        if error:
            return error, []
        entry = self._registry.get(group_id)
        if entry is None:
            return ErrorCode.none, [(topic, [(one, None) for one in partitions]) for topic, partitions in wanted or ()]
        get = entry.offsets.get
        if wanted is None:
            with entry.lock:
                return ErrorCode.none, [(topic, list(partitions.items())) for topic, partitions in entry.offsets]
        found: list[FetchedTopic] = []
        for part in _parts(wanted):
            with entry.lock:
                for topic, partitions, goes_on in part:
                    committed = [(one, get(topic, one)) for one in partitions]
                    if goes_on:
                        found[-1][1].extend(committed)
                    else:
                        found.append((topic, committed))
        return ErrorCode.none, found

    def unstable(self, group_id: str, wanted: Iterable[tuple[str, Sequence[int]]]) -> set[Partition]:
        """Those for which a transaction that is not decided yet commits an offset."""
        entry = self._registry.get(group_id)
        if entry is None:
            return set()
        is_unstable = entry.offsets.is_unstable
        found: set[Partition] = set()
        for part in _parts(wanted):
            with entry.lock:
                found.update((topic, one) for topic, some, _ in part for one in some if is_unstable(topic, one))
        return found

    def delete(
        self, group_id: str, partitions: Sequence[Partition], reply: Callable[[ErrorCode, Errors], None]
    ) -> None:
        """``reply`` gets the error of the whole request, or else one for each partition."""
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
            if group.state is ClassicGroupState.DEAD:
                error = ErrorCode.group_id_not_found
            elif group.state is not ClassicGroupState.EMPTY and group.protocol_type != CONSUMER:
                error = ErrorCode.non_empty_group  # nobody can tell what its members read
            else:
                errors = {key: self._refusal_to_delete(entry, key[0]) for key in partitions}
                removed = [key for key, refused in errors.items() if not refused]
                if removed:
                    entry.offsets.remove(removed)
                    registry.count(entry)
                    done = partial(_deleted, removed, errors, reply)
                    registry.writer.change(partial(_delete_offsets, group_id, removed), done)
                    registry.bury_if_finished(entry)
                    return
        reply(error, errors)

    @staticmethod
    def _refusal_to_delete(entry: GroupEntry, topic: str) -> ErrorCode:
        if entry.group.state is ClassicGroupState.EMPTY:
            return ErrorCode.none
        topics = entry.group.topics
        subscribed = topics is None or topic in topics
        return ErrorCode.group_subscribed_to_topic if subscribed else ErrorCode.none

    # Forgetting -------------------------------------------------------------------------------------------------------

    def on_topic_deleted(self, topic: str) -> None:
        """Its offsets go with it, in every group. Returns before that is durable; ``GroupRegistry.load`` does the rest."""
        registry = self._registry
        for entry in registry.entries():
            if not entry.offsets.may_have(topic):  # most have not, and there are as many locks as groups
                continue
            with entry.lock:
                removed = entry.offsets.of_topic(topic)
                if removed:
                    entry.offsets.remove(removed)
                    registry.count(entry)
                    # Group by group and under its lock: whoever still commits there is written after this.
                    registry.writer.change(partial(_delete_offsets, entry.group.group_id, removed), log_failure)
                    registry.bury_if_finished(entry)

    def start_sweeping(self) -> None:
        registry = self._registry
        deadline = registry.clock.monotonic() + registry.config.offsets_retention_check_interval_ms / 1000
        # The timer's thread must not walk all groups: the writer's does.
        self._sweep = registry.timer.at(deadline, partial(registry.writer.call_soon, self._begin_sweep))

    def stop_sweeping(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()

    def _begin_sweep(self) -> None:
        self._sweep_on(self._registry.entries())

    def _sweep_on(self, entries: list[GroupEntry]) -> None:
        """Some of them; the others at the writer's next turn, after what waits for it by then."""
        self.sweep(entries[:_SWEEP_AT_A_TIME])
        if not self._registry.active:
            return
        if len(entries) > _SWEEP_AT_A_TIME:
            self._registry.writer.call_soon(partial(self._sweep_on, entries[_SWEEP_AT_A_TIME:]))
        else:
            self.start_sweeping()

    def sweep(self, entries: Iterable[GroupEntry] | None = None) -> None:
        """Forget what is too old, and groups of which nothing is left: among these, or among all."""
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
                    registry.writer.change(partial(_delete_offsets, group.group_id, expired), log_failure)
                registry.bury_if_finished(entry)


def _parts(wanted: Iterable[tuple[str, Sequence[int]]]) -> Iterator[list[tuple[str, Sequence[int], bool]]]:
    """The same partitions in the same order, so many at a time; True where a topic goes on that the part before ended with."""
    part: list[tuple[str, Sequence[int], bool]] = []
    room = LOCKED_MAX
    for topic, partitions in wanted:
        for start in range(0, len(partitions) or 1, LOCKED_MAX):
            piece = partitions[start : start + LOCKED_MAX]
            if len(piece) + 1 > room and part:
                yield part
                part, room = [], LOCKED_MAX
            part.append((topic, piece, start > 0))
            room -= len(piece) + 1
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


def _delete_offsets(group_id: str, partitions: list[Partition], catalogue: Catalogue) -> None:
    catalogue.delete_offsets(group_id, partitions)
