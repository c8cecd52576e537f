"""All groups of this broker, each with its lock, its timer and its place in the catalogue.

Carries out a group's effects (``settle``): sets timers, has changes saved, and returns the answers, which the caller sends
without holding a lock. Decides nothing. Any thread may call any method; nothing under a lock blocks.

Groups are of several kinds (``kinds.py``), and an id has one group at a time. A group may be replaced by a group of another kind:
an empty group when a client of the other protocol comes (``admit``), another group when it is converted (``replace``). Its
offsets stay. The replaced group's state in the catalogue is deleted together with the first save of the new group, so that a
restart finds one of the two.

Tests: tests/kafka/groups/test_registry.py, tests/kafka/groups/test_coordinator.py, tests/kafka/groups/test_bounds.py,
tests/kafka/groups/test_threads.py.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any, Protocol, TypeVar

import attrs

from broker.cluster.nodes import Nodes
from broker.config import BrokerConfig
from broker.errors import StorageError
from broker.kafka.groups import kinds as group_rows
from broker.kafka.groups import kinds as snapshots
from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.group import Group, GroupKind, GroupType, SaveRows
from broker.kafka.groups.kinds import classic_limits
from broker.kafka.groups.offsets import CommittedOffset, GroupOffsets
from broker.kafka.groups.values import GROUP_BYTES, CoordinatorMemory, GroupSnapshot, Save
from broker.log import EventLimit, get_logger
from broker.metadata.catalogue import Catalogue
from broker.metadata.writer import CatalogueWriter
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer, TimerHandle
from protocol.kafka.errors import ErrorCode

log = get_logger("groups")

# An answer that is ready to be sent.
Send = Callable[[], None]
R = TypeVar("R")

# Members or partitions of one request that are processed under a group's lock at a time, which takes some ms. Heartbeats and
# commits take that lock on processors, which must not wait for a request that names a million.
LOCKED_MAX = 5000

# Groups that are told of a change before commits may pass.
_PART = 100

# Shortest time between two log events about exhausted memory.
_COMPLAIN_EVERY_S = 60.0


@attrs.define(eq=False)
class GroupEntry:
    """A group with its lock, which guards all fields, its offsets and its timer."""

    group: Group
    offsets: GroupOffsets = attrs.Factory(GroupOffsets)
    lock: Lock = attrs.Factory(Lock)
    # Wall clock. Only valid while the group is empty.
    empty_since_ms: int = 0
    # The catalogue may still have a group of this kind that the present group has replaced. Classic groups are stored apart from
    # the others, so the present group does not overwrite it.
    replaced: GroupType | None = None
    timer: TimerHandle | None = None
    # When `timer` fires (monotonic s).
    armed_for: float = inf
    # The part of the coordinator's memory that is counted for this entry.
    counted_bytes: int = 0
    # Number of generations, or group epochs, that this process has begun.
    rebalances: int = 0
    generation_seen: int = 0
    # No longer in the registry. A thread that still holds the entry gets or makes another.
    is_removed: bool = False


class SaveWhole(Protocol):
    """An effect that makes a generation of a classic group durable."""

    @property
    def snapshot(self) -> GroupSnapshot: ...


class GroupRegistry:
    def __init__(
        self,
        clock: Clock,
        timer: Timer,
        catalogue: Catalogue,
        config: BrokerConfig,
        kinds: Iterable[GroupKind],
        nodes: Nodes | None = None,
    ) -> None:
        """``nodes``: set if other nodes coordinate a part of the groups."""
        self._nodes = nodes
        self.clock = clock
        self.timer = timer
        self.config = config
        self.writer = CatalogueWriter(catalogue)
        self.memory = CoordinatorMemory(config.coordinator_max_bytes)
        # False before ``load`` and once the broker stops: requests are refused.
        self.is_active = False
        self._catalogue = catalogue
        self._kinds = {kind.type: kind for kind in kinds}
        # Handlers of effects by class, called with the entry's lock held. Other effects are answers: ``to`` gets the ``result``.
        self.carry_out: dict[type, Callable[[GroupEntry, Any], Sequence[Send]]] = {
            Save: self.save,
            SaveRows: self._save_rows,
        }
        # Groups with rows in the catalogue that this process cannot read.
        self._unreadable: set[str] = set()
        self._complaints = EventLimit(1, _COMPLAIN_EVERY_S)  # about exhausted memory
        self._entries: dict[str, GroupEntry] = {}
        self._lock = Lock()  # for changes of the dict; may be taken under an entry's lock, never the other way round

    # Start and stop -------------------------------------------------------------------------------------------------

    def load(self, topic_exists: Callable[[str], bool]) -> None:
        """Read the catalogue. Offsets of topics that no longer exist are deleted."""
        now = self.clock.monotonic()
        limits = classic_limits(self.config)
        for group_id, stored in self._catalogue.load_groups():
            if not self._is_here(group_id):
                continue
            try:
                saved = snapshots.decode(group_id, stored)
            except StorageError as error:
                log.error("group_load_failed", group=group_id, error=str(error))
                continue  # its members join anew; its offsets are stored apart
            group = ClassicGroup.restore(group_id, limits, saved.snapshot, now)
            self._entries[group_id] = GroupEntry(group, empty_since_ms=saved.since_ms, generation_seen=group.generation)
        self._load_rows(now)
        deleted_topics: set[str] = set()
        for row in self._catalogue.load_offsets():
            if not self._is_here(row.group):
                continue
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

    def _load_rows(self, now: float) -> None:
        """Load the groups of the newer protocols."""
        for group_id, rows in group_rows.by_group(self._catalogue.load_documents(group_rows.KIND)):
            if not self._is_here(group_id):
                continue
            since_ms = group_rows.take_since_ms(rows)
            try:
                group = self._restore(group_id, rows, now)
            except StorageError as error:
                # Its members join anew and get other epochs; its offsets are stored apart.
                log.error("group_load_failed", group=group_id, error=str(error))
                if group_id in self._entries:
                    self._entries[group_id].replaced = GroupType.CONSUMER
                else:
                    self._unreadable.add(group_id)
                continue
            if since_ms is None and group.is_empty:
                since_ms = self.clock.time_ms()
            self._entries[group_id] = GroupEntry(group, empty_since_ms=since_ms or 0, generation_seen=group.epoch)

    def _restore(self, group_id: str, rows: group_rows.Rows, now: float) -> Group:
        kind = self._kinds.get(group_rows.type_of(group_id, rows))
        if kind is None:
            raise StorageError(f"group {group_id!r} is of a kind that this broker does not serve")
        if group_id in self._entries:
            raise StorageError(
                f"the catalogue has a classic group {group_id!r} and rows of another kind; the first counts"
            )
        return kind.restore(group_id, rows, now)

    def shut_down(self) -> None:
        """Refuse requests from now on, and answer parked requests."""
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
        """Why no request of that group can be served; ``none`` if it can. Kafka allows the group id "" for offsets."""
        if not group_id and not may_be_empty:
            return ErrorCode.invalid_group_id
        if not self.is_active:
            return ErrorCode.coordinator_not_available
        return ErrorCode.none if self._is_here(group_id) else ErrorCode.not_coordinator

    def _is_here(self, group_id: str) -> bool:
        return self._nodes is None or self._nodes.coordinates(group_id)

    def get(self, group_id: str) -> GroupEntry | None:
        return self._entries.get(group_id)

    def get_or_create(self, group_id: str, type: GroupType = GroupType.CLASSIC) -> GroupEntry:
        """The entry of the group, of any kind; a new entry if there is none. Check ``admit`` under its lock."""
        entry = self._entries.get(group_id)
        if entry is None:
            with self._lock:
                entry = self._entries.setdefault(group_id, GroupEntry(self._kinds[type].make(group_id)))
                if group_id in self._unreadable:
                    self._unreadable.remove(group_id)
                    self.writer.change(group_rows.Delete(group_id, GroupType.CONSUMER), log_failure)
        return entry

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self, type: GroupType | None = None) -> list[GroupEntry]:
        """All entries, or those of one kind of group."""
        with self._lock:
            entries = list(self._entries.values())
        return entries if type is None else [entry for entry in entries if entry.group.type is type]

    @contextmanager
    def locked(self, group_id: str, type: GroupType = GroupType.CLASSIC) -> Iterator[GroupEntry]:
        """The group's entry with its lock held. A new entry if there is none, or if it is just being removed; ``type`` is the
        kind of a new group."""
        while True:
            entry = self.get_or_create(group_id, type)
            with entry.lock:
                if not entry.is_removed:
                    yield entry
                    return

    # Memory -----------------------------------------------------------------------------------------------------------

    def has_memory_for_group(self, group_id: str) -> bool:
        """False if the group does not exist and there is no memory for another."""
        return group_id in self._entries or self.has_memory_for(GROUP_BYTES + len(group_id))

    def has_memory_for(self, size_bytes: int) -> bool:
        """False if this no longer fits into ``coordinator_max_bytes``, which is also logged."""
        if size_bytes <= max(0, self.memory.free_bytes):
            return True
        if self._complaints.take(self.clock.monotonic()) is not None:
            max_bytes = self.config.coordinator_max_bytes
            log.warning("coordinator_memory_exhausted", used_bytes=self.memory.used_bytes, max_bytes=max_bytes)
        return False

    # With the entry's lock held ---------------------------------------------------------------------------------------

    def admit(self, entry: GroupEntry, type: GroupType) -> bool:
        """Whether a client of this protocol may join. An empty group of another kind is replaced by a new group. As in Kafka,
        share groups neither replace others nor are replaced: their offsets have another form."""
        group = entry.group
        if group.type is type:
            return True
        if not self.may_admit(group, type):
            return False
        self.replace(entry, self.make(group.group_id, type))  # nobody waits in a group without members
        return True

    @staticmethod
    def may_admit(group: Group, type: GroupType) -> bool:
        """Whether the group may be replaced by an empty group of another kind."""
        return group.is_empty and GroupType.SHARE not in (group.type, type)

    def make(self, group_id: str, type: GroupType) -> Group:
        """A group without members, which is not in the registry."""
        return self._kinds[type].make(group_id)

    def replace(self, entry: GroupEntry, group: Group) -> Sequence[Send]:
        """Replace the entry's group by an empty group, or by the same group converted to another kind. ``settle`` it. Returns the
        answers that the old group still owes."""
        before = entry.group
        if GroupType.CLASSIC in (before.type, group.type):
            entry.replaced = before.type
        else:
            self.writer.change(group_rows.Delete(before.group_id, before.type), log_failure)
        entry.group = group
        entry.generation_seen = max(0, group.epoch)
        log.info("group_replaced", group=group.group_id, before=before.type.value, now=group.type.value)
        return self._last_answers(before)

    def _last_answers(self, group: Group) -> list[Send]:
        """The last answers of a replaced group; its other effects no longer count."""
        effects = (effect for effect in group.take_effects() if type(effect) not in self.carry_out)
        return [partial(effect.to, effect.result) for effect in effects]

    def settle(self, entry: GroupEntry) -> list[Send]:
        """Carry out the group's effects. Returns the answers, for ``send`` after the lock is released."""
        answers: list[Send] = []
        while True:
            group = entry.group
            epoch = group.epoch
            if epoch > entry.generation_seen:
                entry.rebalances += epoch - entry.generation_seen
                entry.generation_seen = epoch
            for effect in group.take_effects():
                carry_out = self.carry_out.get(type(effect))
                if carry_out is None:
                    answers.append(partial(effect.to, effect.result))
                elif not entry.is_removed:  # a deleted group must not be stored again, even if a save of it has failed
                    answers += carry_out(entry, effect)
            if entry.group is group:  # no effect has converted it
                break
        self.arm(entry)
        self.count(entry)
        return answers

    def count(self, entry: GroupEntry) -> None:
        """Update the memory that is counted for an entry after a change."""
        size = 0
        if not entry.is_removed:
            size = GROUP_BYTES + len(entry.group.group_id) + entry.group.size_bytes + entry.offsets.size_bytes
        if size != entry.counted_bytes:
            self.memory.add(size - entry.counted_bytes)
            entry.counted_bytes = size

    def arm(self, entry: GroupEntry) -> None:
        """Set the timer for the group's next deadline. If a deadline has moved back meanwhile, the timer fires too early."""
        wake = entry.group.wake
        if wake < entry.armed_for and not entry.is_removed:
            if entry.timer is not None:
                entry.timer.cancel()
            entry.armed_for = wake
            entry.timer = self.timer.at(wake, partial(self._on_timer, entry))

    def drop_if_unused(self, entry: GroupEntry) -> None:
        """Remove a group that was made for a request and then not needed. The catalogue does not have it."""
        if entry.group.was_never_joined and not entry.offsets and not entry.is_removed:
            entry.group.delete()
            if entry.replaced is None:
                self._remove(entry)
            else:
                self.delete(entry, log_failure)

    def delete_if_finished(self, entry: GroupEntry) -> None:
        """Delete a group without members and offsets, unless a pending member is about to join it. Share groups, which have no
        committed offsets, stay until somebody deletes them, as in Kafka."""
        group = entry.group
        if group.type is GroupType.SHARE:
            return
        if group.is_empty and not entry.offsets and not group.has_pending_members:
            group.delete()
            self.delete(entry, log_failure)

    def delete(self, entry: GroupEntry, done: Callable[[StorageError | None], None]) -> None:
        """Remove a dead group. ``done`` is called when it is deleted from the catalogue."""
        self._remove(entry)
        stored = [entry.group.type] if entry.replaced is None else [entry.group.type, entry.replaced]
        self.writer.change(partial(_delete_group, entry.group.group_id, stored), done)

    def _remove(self, entry: GroupEntry) -> None:
        group_id = entry.group.group_id
        entry.is_removed = True
        self.count(entry)
        if entry.timer is not None:
            entry.timer.cancel()
        with self._lock:
            if self._entries.get(group_id) is entry:
                del self._entries[group_id]

    def save(self, entry: GroupEntry, save: SaveWhole, owner: Group | None = None) -> Sequence[Send]:
        """Make a generation of a classic group durable, then call ``saved`` of ``owner``: by default the group itself, or the
        converted group that has left it the generation."""
        now_ms = self.clock.time_ms()
        group_id, snapshot = entry.group.group_id, save.snapshot
        if not snapshot.members:
            entry.empty_since_ms = now_ms
        # A debug event, because groups rebalance as often as their members come and go.
        log.debug(
            "group_membership_changed",
            group=group_id,
            generation=snapshot.generation,
            members=len(snapshot.members),
        )
        done = partial(self._saved, entry, owner or entry.group, entry.group, save, entry.replaced)
        self.writer.change(partial(_save_group, group_id, snapshot, now_ms, entry.replaced), done)
        return ()

    def _save_rows(self, entry: GroupEntry, save: SaveRows) -> Sequence[Send]:
        group = entry.group
        put = save.put
        if group.is_empty != bool(entry.empty_since_ms):
            entry.empty_since_ms = self.clock.time_ms() if group.is_empty else 0
            put = {**put, group_rows.SINCE: group_rows.since_row(entry.empty_since_ms)}
        log.debug("group_membership_changed", group=group.group_id, generation=group.epoch, members=group.member_count)
        done = partial(self._saved, entry, group, group, save, entry.replaced)
        self.writer.change(group_rows.Save(group.group_id, put, entry.replaced), done)
        return ()

    # Later ------------------------------------------------------------------------------------------------------------

    def step(self, entry: GroupEntry, group: Group, take: Callable[[float], R]) -> R | None:
        """Continue or finish work that was done for the group without its lock: call ``take`` with the time, and carry out the
        group's effects. None if the entry has another group by now. Any thread, with no lock held."""
        with entry.lock:
            if entry.group is not group or entry.is_removed:
                return None
            result = take(self.clock.monotonic())
            answers = self.settle(entry)
        send(answers)
        return result

    def tell(self, entries: list[GroupEntry], change: Callable[[Group, float], bool]) -> None:
        """Tell these groups of a change. ``change`` gets each group, with its lock held, and the time; it returns False if the
        change does not concern the group. Runs on the catalogue writer's thread, where commits pass in between."""
        for entry in entries[:_PART]:
            with entry.lock:
                if entry.is_removed or not change(entry.group, self.clock.monotonic()):
                    continue
                answers = self.settle(entry)
            send(answers)
        if len(entries) > _PART and self.is_active:
            self.writer.call_soon(partial(self.tell, entries[_PART:], change))

    def _saved(
        self,
        entry: GroupEntry,
        owner: Group,
        group: Group,
        save: SaveWhole | SaveRows,
        replaced: GroupType | None,
        failure: StorageError | None,
    ) -> None:
        """Runs on the catalogue writer's thread. ``group`` was the entry's group when it was saved, and the same change has
        deleted ``replaced``."""
        log_failure(failure)
        with entry.lock:
            owner.saved(save, error_of(failure), self.clock.monotonic())
            if entry.group is group and failure is None and replaced is not None:
                entry.replaced = None
            answers = [] if entry.group is owner else self._last_answers(owner)
            answers += self.settle(entry)
        send(answers)

    def _on_timer(self, entry: GroupEntry) -> None:
        """Runs on the timer's thread, which all other deadlines wait for. The end of a large group's rebalance is a few megabytes
        of answers, so the catalogue writer's thread does it."""
        self.writer.call_soon(partial(self._expire, entry))

    def _expire(self, entry: GroupEntry) -> None:
        """Runs on the catalogue writer's thread. If the timer was cancelled too late, nothing is due."""
        with entry.lock:
            if entry.timer is not None:
                entry.timer.cancel()  # it may have been set again meanwhile
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
    """Kafka's error code if its log cannot be written: the client looks for the coordinator and tries again."""
    return ErrorCode.none if failure is None else ErrorCode.not_coordinator


def log_failure(failure: StorageError | None) -> None:
    if failure is not None:
        log.error("group_write_failed", error=str(failure))


def _save_group(
    group_id: str, snapshot: GroupSnapshot, now_ms: int, replaced: GroupType | None, catalogue: Catalogue
) -> None:
    put = partial(_put_group, group_id, snapshot, now_ms)
    if replaced is None:
        put(catalogue)
    else:
        catalogue.together([group_rows.Delete(group_id, replaced), put])


def _put_group(group_id: str, snapshot: GroupSnapshot, now_ms: int, catalogue: Catalogue) -> None:
    catalogue.save_group(group_id, snapshots.encode(snapshot, now_ms))


def _delete_group(group_id: str, stored: Sequence[GroupType], catalogue: Catalogue) -> None:
    catalogue.delete_offsets(group_id, None)
    for type in stored:
        group_rows.Delete(group_id, type)(catalogue)


def _delete_topic_offsets(topic: str, catalogue: Catalogue) -> None:
    catalogue.delete_topic_offsets(topic)
