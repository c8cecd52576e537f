"""All groups of this broker, each with its lock, its timer and its place in the catalogue.

Carries out what a group asks for (``settle``): sets timers, has generations saved, and hands back the answers, which the caller
sends once it holds no lock. Decides nothing. Any thread may call any method; nothing under a lock blocks.

Tests: tests/kafka/groups/test_coordinator.py, tests/kafka/groups/test_bounds.py, tests/kafka/groups/test_threads.py.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf

import attrs

from broker.config import BrokerConfig
from broker.errors import StorageError
from broker.kafka.groups import snapshots
from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.classic_states import ClassicGroupState
from broker.kafka.groups.coordinator_memory import GROUP_BYTES, CoordinatorMemory
from broker.kafka.groups.offsets import CommittedOffset, GroupOffsets
from broker.kafka.groups.rebalancer import GroupLimits
from broker.kafka.groups.values import Save
from broker.log import get_logger
from broker.metadata.catalogue import Catalogue
from broker.metadata.writer import CatalogueWriter
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer, TimerHandle
from protocol.kafka.errors import ErrorCode

log = get_logger("groups")

# An answer that is ready to be sent.
Send = Callable[[], None]

# How many members or partitions of one request are processed under a group's lock at a time, which takes some ms. Heartbeats and
# commits take that lock on processors, which must not wait for a request that names a million.
LOCKED_MAX = 5000

# That there is no memory left is logged at most once in this time.
_COMPLAIN_EVERY_S = 60.0


@attrs.define(eq=False)
class GroupEntry:
    """One group. All fields are guarded by ``lock``."""

    group: ClassicGroup
    offsets: GroupOffsets = attrs.Factory(GroupOffsets)
    lock: Lock = attrs.Factory(Lock)
    # Wall clock. Only valid while the group is empty.
    empty_since_ms: int = 0
    timer: TimerHandle | None = None
    # When `timer` fires (monotonic s).
    armed_for: float = inf
    # The part of the coordinator's memory that is counted for this entry.
    counted_bytes: int = 0
    # How many generations this process has begun.
    rebalances: int = 0
    generation_seen: int = 0
    # No longer in the registry. A thread that still has the entry gets or makes another one.
    is_removed: bool = False


class GroupRegistry:
    def __init__(self, clock: Clock, timer: Timer, catalogue: Catalogue, config: BrokerConfig) -> None:
        self.clock = clock
        self.timer = timer
        self.config = config
        self.writer = CatalogueWriter(catalogue)
        self.memory = CoordinatorMemory(config.coordinator_max_bytes)
        # False before ``load`` and once the broker stops: requests are refused.
        self.is_active = False
        self._catalogue = catalogue
        self._limits = GroupLimits(
            config.group_max_size, config.group_initial_rebalance_delay_ms, config.group_max_bytes
        )
        # monotonic() s before which it is not logged again that there is no memory left.
        self._quiet_until = 0.0
        self._entries: dict[str, GroupEntry] = {}
        self._lock = Lock()  # for changes of the dict; may be taken under an entry's lock, never the other way round

    # Start and stop -------------------------------------------------------------------------------------------------

    def load(self, topic_exists: Callable[[str], bool]) -> None:
        """Read the catalogue. Offsets of topics that do not exist any more are deleted."""
        now = self.clock.monotonic()
        for group_id, stored in self._catalogue.load_groups():
            try:
                saved = snapshots.decode(group_id, stored)
            except StorageError as error:
                log.error("group_load_failed", group=group_id, error=str(error))
                continue  # its members join anew; its offsets are stored apart
            group = ClassicGroup.restore(group_id, self._limits, saved.snapshot, now)
            self._entries[group_id] = GroupEntry(group, empty_since_ms=saved.since_ms, generation_seen=group.generation)
        deleted_topics: set[str] = set()
        for row in self._catalogue.load_offsets():
            if topic_exists(row.topic):
                committed = CommittedOffset(
                    row.offset, row.leader_epoch, row.metadata or "", row.commit_ms, row.expire_ms
                )
                self.get_or_create(row.group).offsets.load(row.topic, row.partition, committed)
            else:
                deleted_topics.add(row.topic)  # the broker stopped before the deletion was complete
        for topic in deleted_topics:
            self.writer.change(partial(_delete_topic_offsets, topic), log_failure)
        for entry in self.entries():
            with entry.lock:
                self.arm(entry)
                self.count(entry)
        self.is_active = True

    def shut_down(self) -> None:
        """Refuse requests from now on, and answer those that are parked."""
        self.is_active = False
        for entry in self.entries():
            with entry.lock:
                entry.group.shut_down()
                if entry.timer is not None:
                    entry.timer.cancel()
                answers = self.settle(entry)
            send(answers)

    # Entries ----------------------------------------------------------------------------------------------------------

    def refusal(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode:
        """Why no request of that group can be served; ``none`` if it can. For offsets Kafka allows the group id ""."""
        if not group_id and not may_be_empty:
            return ErrorCode.invalid_group_id
        return ErrorCode.none if self.is_active else ErrorCode.coordinator_not_available

    def get(self, group_id: str) -> GroupEntry | None:
        return self._entries.get(group_id)

    def get_or_create(self, group_id: str) -> GroupEntry:
        entry = self._entries.get(group_id)
        if entry is None:
            with self._lock:
                entry = self._entries.setdefault(group_id, GroupEntry(ClassicGroup(group_id, self._limits)))
        return entry

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> list[GroupEntry]:
        with self._lock:
            return list(self._entries.values())

    @contextmanager
    def locked(self, group_id: str) -> Iterator[GroupEntry]:
        """The group's entry with its lock held. A new one if there is none, or if it is being removed at this moment."""
        while True:
            entry = self.get_or_create(group_id)
            with entry.lock:
                if not entry.is_removed:
                    yield entry
                    return

    # Memory -----------------------------------------------------------------------------------------------------------

    def has_memory_for_group(self, group_id: str) -> bool:
        """False if the group does not exist and there is no memory for another one."""
        return group_id in self._entries or self.has_memory_for(GROUP_BYTES + len(group_id))

    def has_memory_for(self, size_bytes: int) -> bool:
        """False if this does not fit into ``coordinator_max_bytes`` any more, which is also logged."""
        if size_bytes <= max(0, self.memory.free_bytes):
            return True
        now = self.clock.monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + _COMPLAIN_EVERY_S
            max_bytes = self.config.coordinator_max_bytes
            log.warning("coordinator_memory_exhausted", used_bytes=self.memory.used_bytes, max_bytes=max_bytes)
        return False

    # With the entry's lock held ---------------------------------------------------------------------------------------

    def settle(self, entry: GroupEntry) -> list[Send]:
        """Do what the group asks for. Returns the answers, for ``send`` after the lock is released."""
        answers: list[Send] = []
        generation = entry.group.generation
        if generation > entry.generation_seen:
            entry.rebalances += generation - entry.generation_seen
            entry.generation_seen = generation
        for effect in entry.group.take_effects():
            if isinstance(effect, Save):
                self._save(entry, effect)
            else:
                answers.append(partial(effect.to, effect.result))  # type: ignore[arg-type]
        self.arm(entry)
        self.count(entry)
        return answers

    def count(self, entry: GroupEntry) -> None:
        """Something about the entry has changed: count the memory that it takes now."""
        size = 0
        if not entry.is_removed:
            size = GROUP_BYTES + len(entry.group.group_id) + entry.group.size_bytes + entry.offsets.size_bytes
        if size != entry.counted_bytes:
            self.memory.add(size - entry.counted_bytes)
            entry.counted_bytes = size

    def arm(self, entry: GroupEntry) -> None:
        """Set the timer for the group's next deadline. If a deadline has moved back since, the timer fires too early."""
        wake = entry.group.wake
        if wake < entry.armed_for:
            if entry.timer is not None:
                entry.timer.cancel()
            entry.armed_for = wake
            entry.timer = self.timer.at(wake, partial(self._on_timer, entry))

    def drop_if_unused(self, entry: GroupEntry) -> None:
        """Remove a group that was made for a request and then not needed. The catalogue does not have it."""
        if entry.group.was_never_joined and not entry.offsets and not entry.is_removed:
            entry.group.delete()
            self._remove(entry)

    def delete_if_finished(self, entry: GroupEntry) -> None:
        """Delete a group without members and offsets, unless a pending member is about to join it."""
        group = entry.group
        if group.state is ClassicGroupState.EMPTY and not entry.offsets and not group.has_pending_members:
            group.delete()
            self.delete(entry, log_failure)

    def delete(self, entry: GroupEntry, done: Callable[[StorageError | None], None]) -> None:
        """Remove a group that is dead. ``done`` is called when it is deleted from the catalogue."""
        self._remove(entry)
        self.writer.change(partial(_delete_group, entry.group.group_id), done)

    def _remove(self, entry: GroupEntry) -> None:
        group_id = entry.group.group_id
        entry.is_removed = True
        self.count(entry)
        if entry.timer is not None:
            entry.timer.cancel()
        with self._lock:
            if self._entries.get(group_id) is entry:
                del self._entries[group_id]

    def _save(self, entry: GroupEntry, save: Save) -> None:
        now_ms = self.clock.time_ms()
        group_id, snapshot = entry.group.group_id, save.snapshot
        if not snapshot.members:
            entry.empty_since_ms = now_ms
        # Groups rebalance as often as their members come and go.
        log.debug(
            "group_membership_changed",
            group=group_id,
            generation=snapshot.generation,
            members=len(snapshot.members),
        )
        self.writer.change(partial(_save_group, group_id, save, now_ms), partial(self._saved, entry, save))

    # Later ------------------------------------------------------------------------------------------------------------

    def _saved(self, entry: GroupEntry, save: Save, failure: StorageError | None) -> None:
        """On the catalogue writer's thread."""
        log_failure(failure)
        with entry.lock:
            entry.group.saved(save, error_of(failure), self.clock.monotonic())
            answers = self.settle(entry)
        send(answers)

    def _on_timer(self, entry: GroupEntry) -> None:
        """On the timer's thread, which all other deadlines wait for. The end of a large group's rebalance is a few megabytes of
        answers, so the catalogue writer's thread does it."""
        self.writer.call_soon(partial(self._expire, entry))

    def _expire(self, entry: GroupEntry) -> None:
        """On the catalogue writer's thread. If the timer was cancelled too late, nothing is due."""
        with entry.lock:
            if entry.timer is not None:
                entry.timer.cancel()  # it may have been set again since this was due
            entry.timer = None
            entry.armed_for = inf
            entry.group.expire(self.clock.monotonic())
            answers = self.settle(entry)
            self.drop_if_unused(entry)
        send(answers)


def send(answers: Sequence[Send]) -> None:
    """Send answers, with no lock held. An answer that fails must not hold up the others or end the thread."""
    for answer in answers:
        try:
            answer()
        except Exception as error:
            log.error("coordinator_reply_failed", error=repr(error))


def error_of(failure: StorageError | None) -> ErrorCode:
    """What Kafka answers if its log cannot be written: the client looks for the coordinator and tries again."""
    return ErrorCode.none if failure is None else ErrorCode.not_coordinator


def log_failure(failure: StorageError | None) -> None:
    if failure is not None:
        log.error("group_write_failed", error=str(failure))


def _save_group(group_id: str, save: Save, now_ms: int, catalogue: Catalogue) -> None:
    catalogue.save_group(group_id, snapshots.encode(save.snapshot, now_ms))


def _delete_group(group_id: str, catalogue: Catalogue) -> None:
    catalogue.delete_offsets(group_id, None)
    catalogue.delete_group(group_id)


def _delete_topic_offsets(topic: str, catalogue: Catalogue) -> None:
    catalogue.delete_topic_offsets(topic)
