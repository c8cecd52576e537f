"""What the handlers ask of share groups. Part of the ``GroupCoordinator``.

Any thread may call any method, and none waits for the catalogue. A request that changes something is answered by callback, on the
catalogue writer's thread, when the change is durable. That thread also computes the assignments: at most a tenth of its time goes
into those of one group, so that a client that keeps changing its subscription keeps nobody else waiting.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol
from uuid import UUID

from broker.config import BrokerConfig
from broker.errors import StorageError
from broker.kafka.configs.group_settings import GroupConfigs
from broker.kafka.groups.group import Group, GroupKind, GroupType
from broker.kafka.groups.group_rows import Rows
from broker.kafka.groups.registry import GroupEntry, GroupRegistry, error_of, log_failure, send
from broker.kafka.groups.share.settings_in_force import SettingsInForce
from broker.kafka.groups.share.share_group import ShareGroup
from broker.kafka.groups.share.values import (
    JOIN_EPOCH,
    AssignmentDue,
    HeartbeatRequest,
    HeartbeatResult,
    Initialise,
    MemberGone,
    NewPartitions,
    Reply,
    ShareEffect,
    ShareGroupDescription,
    ShareGroupLimits,
    Topics,
)
from broker.storage.log_manager import LogManager
from protocol.kafka.errors import ErrorCode

# After a run a group waits for this many times the time that the run took, and not longer than the second.
_IDLE_FACTOR = 10
_IDLE_MAX_S = 1.0

Done = Callable[[StorageError | None], None]


class ShareState(Protocol):
    """What groups have read: start offsets, what is acquired, what is acknowledged. No method blocks."""

    def initialise(self, group_id: str, partitions: Sequence[NewPartitions], done: Done) -> None:
        """Give each partition that has none a start offset in this group, by the group's settings and as the log is now. ``done``
        is called, on any thread and perhaps at once, when that is durable."""

    def member_left(self, group_id: str, member_id: str) -> None:
        """Release what this member has acquired."""

    def forget(self, group_id: str, topic_ids: Iterable[UUID] | None, done: Done) -> None:
        """Delete what the group has read of these topics, or (None) of all. ``done`` as above."""


class _NoState:
    """Until there is one. Start offsets are not kept."""

    def initialise(self, group_id: str, partitions: Sequence[NewPartitions], done: Done) -> None:
        done(None)

    def member_left(self, group_id: str, member_id: str) -> None:
        pass

    def forget(self, group_id: str, topic_ids: Iterable[UUID] | None, done: Done) -> None:
        done(None)


class LogTopics:
    """The topics of the log manager."""

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs

    def topic(self, name: str) -> tuple[UUID, int] | None:
        info = self._logs.topic(name)
        return None if info is None else (info.topic_id, info.partitions)


class _NoTopics:
    def topic(self, name: str) -> None:
        return None


def _share_kind(config: BrokerConfig, carry_out: Callable[[ShareEffect], None]) -> GroupKind:
    limits = ShareGroupLimits(
        config.group_share_max_size, config.group_max_bytes, config.group_share_max_session_timeout_ms / 1000
    )

    def make(group_id: str) -> Group:
        return ShareGroup(group_id, limits, carry_out)

    def restore(group_id: str, rows: Rows, now: float) -> Group:
        return ShareGroup.restore(group_id, limits, carry_out, rows, now)

    return GroupKind(GroupType.SHARE, make, restore)


class ShareGroups:
    """``kind`` goes into the registry, which is then attached. ``topics`` and ``state`` are set by the assembly. All of that is
    before ``start``."""

    _registry: GroupRegistry

    def __init__(self, config: BrokerConfig, configs: GroupConfigs) -> None:
        self.kind = _share_kind(config, self.carry_out)
        self.topics: Topics = _NoTopics()
        self.state: ShareState = _NoState()
        self.settings = SettingsInForce(configs)

    def attach(self, registry: GroupRegistry) -> None:
        self._registry = registry

    def start(self) -> None:
        """After the registry has loaded the groups: topics may have changed while the broker was down."""
        self.settings.load()
        for entry in self._registry.entries():
            if entry.group.type is GroupType.SHARE:
                with entry.lock:
                    answers = self._registry.settle(entry)
                send(answers)

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

    def topics_changed(self, name: str) -> None:
        """A topic was created or deleted, or has more partitions."""
        registry = self._registry
        for entry in registry.entries():
            if entry.group.type is not GroupType.SHARE:
                continue
            with entry.lock:
                group = entry.group
                if not isinstance(group, ShareGroup) or name not in group.topics:
                    continue
                group.topics_changed(self.topics, registry.clock.monotonic())
                answers = registry.settle(entry)
            send(answers)

    # What groups ask for --------------------------------------------------------------------------------------------

    def carry_out(self, effect: ShareEffect) -> None:
        """No lock is held."""
        if isinstance(effect, AssignmentDue):
            self._schedule_run(effect.group_id)
        elif isinstance(effect, Initialise):
            self.state.initialise(effect.group_id, effect.partitions, partial(self._initialised, effect))
        elif isinstance(effect, MemberGone):
            self.state.member_left(effect.group_id, effect.member_id)

    def _schedule_run(self, group_id: str) -> None:
        entry = self._share_entry(group_id)
        if entry is None:
            return
        group = entry.group
        assert isinstance(group, ShareGroup)
        run = partial(self._registry.writer.call_soon, partial(self._run, group_id))
        if self._registry.clock.monotonic() >= group.next_run_at:
            run()
        else:
            self._registry.timer.at(group.next_run_at, run)

    def _run(self, group_id: str) -> None:
        """On the catalogue writer's thread."""
        self._with_group(group_id, lambda group, now: group.assign(self.topics, now))

    def _initialised(self, effect: Initialise, failure: StorageError | None) -> None:
        """On any thread."""
        log_failure(failure)
        step = partial(self._finish, effect.group_id, effect.partitions, error_of(failure))
        self._registry.writer.call_soon(step)

    def _finish(self, group_id: str, partitions: tuple[NewPartitions, ...], error: ErrorCode) -> None:
        """On the catalogue writer's thread."""
        self._with_group(group_id, lambda group, now: group.initialised(partitions, error, now))

    def _with_group(self, group_id: str, step: Callable[[ShareGroup, float], None]) -> None:
        """A step of a run. The next run of the group waits in proportion to the time that this has taken."""
        registry = self._registry
        entry = self._share_entry(group_id)
        if entry is None:
            return
        with entry.lock:
            group = entry.group
            if not isinstance(group, ShareGroup):
                return
            begun = registry.clock.monotonic()
            step(group, begun)
            ended = registry.clock.monotonic()
            group.next_run_at = ended + min(_IDLE_MAX_S, _IDLE_FACTOR * (ended - begun))
            answers = registry.settle(entry)
        send(answers)

    def _share_entry(self, group_id: str) -> GroupEntry | None:
        entry = self._registry.get(group_id)
        return entry if entry is not None and isinstance(entry.group, ShareGroup) else None
