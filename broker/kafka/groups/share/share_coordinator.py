"""Requests about share groups from the handlers. Part of the ``GroupCoordinator``.

Any thread may call any method, and none waits for the catalogue. A request that makes a change is answered by callback, on the
catalogue writer's thread, when the change is durable. The ``GroupWorker`` computes assignments, without the group's lock.

``SettingsInForce`` has the settings of each share group, ready for use with every heartbeat and every fetch. A group without
settings of its own has the broker's, which are one value for all such groups. Any thread reads without a lock; a change of a
group's settings (``GroupConfigs``) replaces its value.

Tests: tests/kafka/handlers/test_share_group_heartbeat.py.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from broker.config.group_settings import reset_ms
from broker.errors import StorageError
from broker.kafka.configs.group_settings import GroupConfigs
from broker.kafka.groups.coordinated import JOIN_EPOCH
from broker.kafka.groups.group import Group, GroupType
from broker.kafka.groups.group_worker import GroupWorker, Task
from broker.kafka.groups.registry import GroupEntry, GroupRegistry, Send, error_of, log_failure, send
from broker.kafka.groups.share.share_group import ShareGroup
from broker.kafka.groups.share.values import (
    AssignmentDue,
    AssignorTask,
    HeartbeatRequest,
    HeartbeatResult,
    Initialise,
    MemberFenced,
    NewPartitions,
    Reply,
    ShareGroupDescription,
)
from broker.kafka.groups.topic_images import TopicImages
from broker.kafka.share.share_partition import ShareSettings
from broker.storage.config import TopicInfo
from protocol.kafka.errors import ErrorCode

# The id of no group, which has no settings of its own.
_NONE = ""


class SettingsInForce:
    def __init__(self, configs: GroupConfigs) -> None:
        self._configs = configs
        self._usual = self._compute(_NONE)
        self._of_groups: dict[str, ShareSettings] = {}
        configs.on_change.append(self._changed)

    def load(self) -> None:
        """At the start, after ``configs`` was loaded."""
        for group_id in self._configs.names():
            self._changed(group_id)

    def of(self, group_id: str) -> ShareSettings:
        return self._of_groups.get(group_id, self._usual)

    def _changed(self, group_id: str) -> None:
        settings = self._compute(group_id)
        if settings == self._usual:
            self._of_groups.pop(group_id, None)
        else:
            self._of_groups[group_id] = settings

    def _compute(self, group_id: str) -> ShareSettings:
        def value(name: str) -> Any:
            return self._configs.value(group_id, "share." + name)

        reset = value("auto.offset.reset")
        return ShareSettings(
            record_lock_duration_ms=value("record.lock.duration.ms"),
            delivery_count_limit=value("delivery.count.limit"),
            max_record_locks=value("partition.max.record.locks"),
            auto_offset_reset=reset,
            reset_duration_ms=reset_ms(reset) or 0,
            isolation_level=value("isolation.level"),
            renew_acknowledge_enable=value("renew.acknowledge.enable"),
            session_timeout_ms=value("session.timeout.ms"),
            heartbeat_interval_ms=value("heartbeat.interval.ms"),
        )


Done = Callable[[StorageError | None], None]
# The next step of a run, with the time. Returns the assignor's task, if any.
Step = Callable[[float], AssignorTask | None]


class ShareState(Protocol):
    """The records of groups: start offsets, acquired and acknowledged records. No method waits for the catalogue."""

    def initialise(self, group_id: str, partitions: Sequence[NewPartitions], done: Done) -> None:
        """Give each partition without a start offset in this group one, by the group's settings and as the log is now. ``done``
        is called, on any thread and perhaps at once, when that is durable. May read the disk."""

    def member_fenced(self, group_id: str, member_id: str) -> None:
        """Release the member's acquired records: it has sent no heartbeat for the session time-out. A member that leaves closes
        its share session itself, and may have sent its last acknowledgements on another connection."""

    def forget(self, group_id: str, topic_ids: Iterable[UUID] | None, done: Done) -> None:
        """Delete the group's state of these topics, or (None) of all. ``done`` as above."""


class NoState:
    """For a broker without records. Start offsets are not kept."""

    def initialise(self, group_id: str, partitions: Sequence[NewPartitions], done: Done) -> None:
        done(None)

    def member_fenced(self, group_id: str, member_id: str) -> None:
        pass

    def forget(self, group_id: str, topic_ids: Iterable[UUID] | None, done: Done) -> None:
        done(None)


class ShareGroups:
    """``topic`` returns the present topic of a name. ``state`` is set by the assembly, before ``start``."""

    def __init__(
        self,
        registry: GroupRegistry,
        topic: Callable[[str], TopicInfo | None],
        topics: TopicImages,
        worker: GroupWorker,
        configs: GroupConfigs,
    ) -> None:
        self.settings = SettingsInForce(configs)
        self.state: ShareState = NoState()
        self._registry = registry
        self._topic = topic
        self._worker = worker
        registry.carry_out[AssignmentDue] = self._begin_run
        registry.carry_out[Initialise] = self._initialise
        registry.carry_out[MemberFenced] = self._member_fenced
        topics.on_change.append(self._topics_changed)

    def start(self) -> None:
        """Called after the registry has loaded the groups: topics may have changed while the broker was down."""
        self.settings.load()
        for entry in self._registry.entries(GroupType.SHARE):
            with entry.lock:
                answers = self._registry.settle(entry)
            send(answers)

    # Requests -------------------------------------------------------------------------------------------------------

    def heartbeat(self, group_id: str, request: HeartbeatRequest, reply: Reply) -> HeartbeatResult | None:
        """The result if it is known now; None if ``reply`` gets it later."""
        registry = self._registry
        error = registry.refusal(group_id)
        entry = registry.get(group_id)
        if entry is None and not error:
            if request.member_epoch != JOIN_EPOCH:
                error = ErrorCode.group_id_not_found
            elif not registry.has_memory_for_group(group_id):
                error = ErrorCode.coordinator_not_available
            else:
                entry = registry.get_or_create(group_id, GroupType.SHARE)
        if entry is None or error:
            return HeartbeatResult(error, request.member_id)
        session_s = self.settings.of(group_id).session_timeout_ms / 1000
        with entry.lock:
            group = entry.group
            if type(group) is not ShareGroup:
                return HeartbeatResult(ErrorCode.group_id_not_found, request.member_id)
            free_bytes = registry.memory.free_bytes
            result = group.heartbeat(request, reply, session_s, registry.clock.monotonic(), free_bytes)
            if result is not None:
                if group.wake < entry.armed_for:
                    registry.arm(entry)
                if result.error:
                    registry.drop_if_unused(entry)
                return result
            answers = registry.settle(entry)
        send(answers)
        return None

    def describe(self, group_id: str) -> tuple[ErrorCode, ShareGroupDescription | None]:
        error = self._registry.refusal(group_id)
        entry = self._registry.get(group_id)
        if error or entry is None:
            return error or ErrorCode.group_id_not_found, None
        with entry.lock:
            group = entry.group
            if not isinstance(group, ShareGroup) or group.is_dead:
                return ErrorCode.group_id_not_found, None
            return ErrorCode.none, group.describe()

    def begin_alter(self, group_id: str) -> ErrorCode:
        """An administrator sets start offsets of a group. A missing group is made."""
        registry = self._registry
        error = registry.refusal(group_id)
        if error or not registry.has_memory_for_group(group_id):
            return error or ErrorCode.coordinator_not_available
        with registry.locked(group_id, GroupType.SHARE) as entry:
            group = entry.group
            if not isinstance(group, ShareGroup):
                return ErrorCode.group_id_not_found
            error = group.begin_alter()
            answers = registry.settle(entry)
        send(answers)
        return error

    def delete_offsets(self, group_id: str, topic_ids: Sequence[UUID], done: Done) -> ErrorCode:
        """Delete the state of a group without members for these topics. ``done`` is called when that is durable, unless an error
        is returned."""
        entry = self._registry.get(group_id)
        error = self._registry.refusal(group_id)
        if error or entry is None:
            return error or ErrorCode.group_id_not_found
        with entry.lock:
            group = entry.group
            if not isinstance(group, ShareGroup) or group.is_dead:
                return ErrorCode.group_id_not_found
            if not group.is_empty:
                return ErrorCode.non_empty_group
            group.forget()
            # With the lock held, so that no member comes in between.
            self.state.forget(group_id, topic_ids, done)
        return ErrorCode.none

    # Effects of groups, with the entry's lock held ---------------------------------------------------------------------

    def _begin_run(self, entry: GroupEntry, _: AssignmentDue) -> Sequence[Send]:
        group = entry.group
        assert isinstance(group, ShareGroup)
        self._submit(entry, group, lambda now: group.begin_run(self._look_up))
        return ()

    def _initialise(self, entry: GroupEntry, effect: Initialise) -> Sequence[Send]:
        group, partitions = entry.group, effect.partitions
        assert isinstance(group, ShareGroup)

        def done(failure: StorageError | None) -> None:
            log_failure(failure)
            self._submit(entry, group, lambda now: group.initialised(partitions, error_of(failure), now))

        return [partial(self.state.initialise, group.group_id, partitions, done)]

    def _member_fenced(self, entry: GroupEntry, effect: MemberFenced) -> Sequence[Send]:
        return [partial(self.state.member_fenced, entry.group.group_id, effect.member_id)]

    # Runs ---------------------------------------------------------------------------------------------------------------

    def _submit(self, entry: GroupEntry, group: ShareGroup, step: Step) -> None:
        """Have the worker take this step of a run."""
        run = partial(self._run, entry, group, step)
        self._worker.submit(Task(group.group_id, 10 * (len(group.members) + 1), run, lambda: None))

    def _run(self, entry: GroupEntry, group: ShareGroup, step: Step) -> bool:
        """Runs on the worker's thread."""
        task = self._registry.step(entry, group, step)
        if task is not None:
            try:
                task.run()
            finally:
                self._registry.step(entry, group, lambda now: group.assigned(task, now))
        return True

    def _look_up(self, name: str) -> tuple[UUID, int] | None:
        info = self._topic(name)
        return None if info is None else (info.topic_id, info.partitions)

    # Changes of topics ------------------------------------------------------------------------------------------------

    def _topics_changed(self, names: frozenset[str]) -> None:
        """Runs on the catalogue writer's thread."""

        def change(group: Group, now: float) -> bool:
            if not isinstance(group, ShareGroup) or names.isdisjoint(group.topics):
                return False
            group.topics_changed(self._look_up, names)
            return True

        self._registry.tell(self._registry.entries(GroupType.SHARE), change)
