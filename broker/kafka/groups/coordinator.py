"""The group coordinator: the interface for the handlers.

Any thread may call any method. No method waits for the catalogue, so processors may call them inline. A request that cannot be
answered at once is answered by callback, on the thread that completes it: a processor's, a handler's or the catalogue writer's.

Committed offsets are durable before the commit is answered. A generation is durable, with its assignment, once it is stable or
empty. After a restart of the broker the members of the last stable generation simply continue with their heartbeats.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from broker.cluster.nodes import Nodes
from broker.config import BrokerConfig
from broker.errors import StorageError
from broker.kafka.configs.group_settings import GroupConfigs
from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.classic_states import ClassicGroupState
from broker.kafka.groups.consumer import ConsumerGroup
from broker.kafka.groups.consumer_coordinator import ConsumerCoordinator
from broker.kafka.groups.group import Group, GroupType
from broker.kafka.groups.group_worker import GroupWorker, pause
from broker.kafka.groups.kinds import kinds_of
from broker.kafka.groups.offset_coordinator import OffsetCoordinator, OffsetExpiration
from broker.kafka.groups.offsets import CommittedOffset
from broker.kafka.groups.registry import LOCKED_MAX, GroupRegistry, error_of, log_failure, send
from broker.kafka.groups.share.share_coordinator import ShareGroups
from broker.kafka.groups.topic_images import TopicImages
from broker.kafka.groups.values import (
    CONSUMER,
    UNKNOWN_MEMBER,
    CoordinatorMemory,
    GroupDescription,
    GroupFigures,
    GroupOverview,
    JoinReply,
    JoinRequest,
    JoinResult,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from broker.kafka.share.share_partition import ShareSettings
from broker.metadata.catalogue import Catalogue
from broker.metadata.writer import CatalogueWriter
from broker.runtime.clock import Clock
from broker.runtime.timers import Timer
from broker.storage.config import TopicInfo
from protocol.kafka.errors import ErrorCode


class GroupCoordinator:
    """All groups of this broker.

    ``writer`` is the body of the ``catalogue-writer`` thread, ``worker`` that of the ``group-worker`` thread. The assembly runs
    both from ``open`` to ``close``.
    """

    def __init__(
        self,
        clock: Clock,
        timer: Timer,
        catalogue: Catalogue,
        config: BrokerConfig,
        topic: Callable[[str], TopicInfo | None] = lambda name: None,
        pause: Callable[[float], object] = pause,
        nodes: Nodes | None = None,
    ) -> None:
        """``topic``: returns the present topic of a name. Call ``topics.changed`` when it changes. ``pause``: lets other threads
        have the interpreter while the worker waits."""
        # Settings of single groups of the newer protocols.
        self.configs = GroupConfigs(catalogue, config)
        registry = self._registry = GroupRegistry(
            clock, timer, catalogue, config, kinds_of(config, self.configs), nodes
        )
        self.topics = TopicImages(topic, registry.writer.call_soon, clock, timer)
        self.worker = GroupWorker(clock, timer, pause)
        self.consumers = ConsumerCoordinator(registry, self.topics, self.worker, self.configs)
        self.share = ShareGroups(registry, topic, self.topics, self.worker, self.configs)
        self.offsets = OffsetCoordinator(registry)
        self.expiration = OffsetExpiration(registry)

    @property
    def writer(self) -> CatalogueWriter:
        return self._registry.writer

    @property
    def memory(self) -> CoordinatorMemory:
        """The memory that groups and transactions share."""
        return self._registry.memory

    def has_memory_for(self, size_bytes: int) -> bool:
        """False if this no longer fits into ``coordinator_max_bytes``, which is also logged."""
        return self._registry.has_memory_for(size_bytes)

    def open(self, topic_exists: Callable[[str], bool]) -> None:
        """Load the groups from the catalogue. Raises StorageError if it cannot be read."""
        self.configs.load()
        self._registry.load(topic_exists)
        self.share.start()
        self.expiration.start()

    def shut_down(self) -> None:
        """Refuse requests, and answer parked requests so that connections can drain."""
        self.expiration.stop()
        self._registry.shut_down()

    def close(self) -> None:
        """Shut down and write everything pending. The catalogue writer's thread must have ended."""
        self.shut_down()
        self.writer.flush()

    def on_topic_deleted(self, topic: str) -> None:
        self.expiration.on_topic_deleted(topic)
        self.topics.changed(topic)

    def share_settings(self, group_id: str) -> ShareSettings:
        """The settings in force for a share group. A cheap look-up, for use in every request."""
        return self.share.settings.of(group_id)

    # Membership -------------------------------------------------------------------------------------------------------

    def join(self, group_id: str, request: JoinRequest, reply: JoinReply) -> None:
        registry = self._registry
        error = registry.refusal(group_id) or self._refuse_session_timeout(request.session_timeout_ms)
        entry = None
        if not error:
            # A group gives a member id. If that group no longer exists, the id is no longer valid.
            is_new = request.member_id == UNKNOWN_MEMBER
            if is_new and not registry.has_memory_for_group(group_id):
                error = ErrorCode.coordinator_not_available
            else:
                entry = registry.get_or_create(group_id) if is_new else registry.get(group_id)
        if entry is None:
            reply(JoinResult(error or ErrorCode.unknown_member_id, request.member_id))
            return
        with entry.lock:
            registry.admit(entry, GroupType.CLASSIC)
            group, now, free_bytes = entry.group, registry.clock.monotonic(), registry.memory.free_bytes
            if isinstance(group, ClassicGroup):
                group.join(request, reply, now, free_bytes)
            elif isinstance(group, ConsumerGroup):
                group.classic_join(request, self.topics.current(), reply, now, free_bytes)
            else:
                reply(JoinResult(ErrorCode.inconsistent_group_protocol, UNKNOWN_MEMBER))
                return
            answers = registry.settle(entry)
            registry.drop_if_unused(entry)
        send(answers)

    def sync(self, group_id: str, request: SyncRequest, reply: SyncReply) -> None:
        registry = self._registry
        error = registry.refusal(group_id)
        entry = registry.get(group_id)
        if error or entry is None:
            reply(SyncResult(error or ErrorCode.unknown_member_id))
            return
        with entry.lock:
            group = entry.group
            if isinstance(group, ClassicGroup):
                group.sync(request, reply, registry.clock.monotonic(), registry.memory.free_bytes)
            elif isinstance(group, ConsumerGroup):
                group.classic_sync(request, reply, registry.clock.monotonic())
            else:
                reply(SyncResult(ErrorCode.unknown_member_id))
                return
            answers = registry.settle(entry)
        send(answers)

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> ErrorCode:
        registry = self._registry
        error = registry.refusal(group_id)
        entry = registry.get(group_id)
        if error or entry is None:
            return error or ErrorCode.unknown_member_id
        with entry.lock:
            group = entry.group
            if isinstance(group, ClassicGroup):
                error = group.heartbeat(member_id, group_instance_id, generation, registry.clock.monotonic())
            elif isinstance(group, ConsumerGroup):
                error = group.classic_heartbeat(member_id, group_instance_id, generation, registry.clock.monotonic())
            else:
                return ErrorCode.unknown_member_id
            registry.arm(entry)
        return error

    def leave(self, group_id: str, members: Sequence[tuple[str, str | None]]) -> tuple[ErrorCode, list[ErrorCode]]:
        """Members by (member id, group instance id). Returns the error of the whole request, or else an error for each member."""
        registry = self._registry
        error = registry.refusal(group_id)
        entry = registry.get(group_id)
        if error:
            return error, []
        if entry is None:
            return ErrorCode.none, [ErrorCode.unknown_member_id] * len(members)
        errors: list[ErrorCode] = []
        for start in range(0, len(members), LOCKED_MAX):
            with entry.lock:
                if entry.group.is_dead:
                    return ErrorCode.coordinator_not_available, []
                now = registry.clock.monotonic()
                answers = []
                for member_id, instance_id in members[start : start + LOCKED_MAX]:
                    group = entry.group
                    if isinstance(group, ClassicGroup):
                        errors.append(group.leave(member_id, instance_id, now))
                    elif isinstance(group, ConsumerGroup):
                        errors.append(group.classic_leave(member_id, instance_id, now))
                        answers += registry.settle(entry)  # the group may have become classic
                    else:
                        errors.append(ErrorCode.unknown_member_id)
                answers += registry.settle(entry)
            send(answers)
        return ErrorCode.none, errors

    def _refuse_session_timeout(self, session_timeout_ms: int) -> ErrorCode:
        config = self._registry.config
        allowed = config.group_min_session_timeout_ms <= session_timeout_ms <= config.group_max_session_timeout_ms
        return ErrorCode.none if allowed else ErrorCode.invalid_session_timeout

    # As if something had happened to members -----------------------------------------------------------------------------

    def rebalance(self, group_id: str) -> ErrorCode:
        """Begin a rebalance of this group that every member notices. UNKNOWN_MEMBER_ID if it has no members."""
        return self._have(group_id, lambda group, now: group.rebalance(now))

    def time_out(self, group_id: str, member_id: str | None) -> ErrorCode:
        """Remove this member, or all, as at the end of its session. UNKNOWN_MEMBER_ID if there is none."""
        return self._have(group_id, lambda group, now: group.time_out(member_id, now))

    def _have(self, group_id: str, happen: Callable[[Group, float], bool]) -> ErrorCode:
        registry = self._registry
        error = registry.refusal(group_id)
        entry = registry.get(group_id)
        if error or entry is None:
            return error or ErrorCode.group_id_not_found
        with entry.lock:
            has_happened = happen(entry.group, registry.clock.monotonic())
            answers = registry.settle(entry)
        send(answers)
        return ErrorCode.none if has_happened else ErrorCode.unknown_member_id

    # Administration ---------------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> tuple[ErrorCode, GroupDescription]:
        """Describe a classic group. A missing group, or a group of another kind, is described as dead, without an error."""
        dead = GroupDescription(group_id, ClassicGroupState.DEAD)
        error = self._registry.refusal(group_id, may_be_empty=True)
        entry = self._registry.get(group_id)
        if error or entry is None:
            return error, dead
        with entry.lock:
            group = entry.group
            return ErrorCode.none, group.describe() if isinstance(group, ClassicGroup) else dead

    def list(self, states: Iterable[str] = (), types: Iterable[str] = ()) -> tuple[ErrorCode, Sequence[GroupOverview]]:
        """All groups, or the groups in one of these states and of one of these types. The case of names is ignored."""
        if not self._registry.is_active:
            return ErrorCode.coordinator_not_available, []
        states = {state.strip().lower() for state in states}
        types = {type.strip().lower() for type in types}
        overviews = []
        for entry in self._registry.entries():
            if types and entry.group.type.value not in types:
                continue
            with entry.lock:
                group = entry.group
                overview = GroupOverview(group.group_id, group.type, group.state_name, _protocol_type(group))
            if not states or overview.state.lower() in states:
                overviews.append(overview)
        return ErrorCode.none, overviews

    def refusal(self, group_id: str) -> ErrorCode:
        """Why no request about this group can be served here; ``none`` if it can."""
        return self._registry.refusal(group_id)

    def type_of(self, group_id: str) -> GroupType | None:
        """None if the group does not exist."""
        entry = self._registry.get(group_id)
        return None if entry is None else entry.group.type

    def names(self) -> Sequence[str]:
        """The ids of all groups."""
        return [entry.group.group_id for entry in self._registry.entries()]

    def count(self) -> int:
        return len(self._registry)

    def figures(self, group_id: str) -> GroupFigures | None:
        """None if the group does not exist. Holds the group's lock to copy some fields."""
        entry = self._registry.get(group_id)
        if entry is None:
            return None
        with entry.lock:
            group = entry.group
            topics = tuple(topic for topic, _ in entry.offsets)
            return GroupFigures(
                group_id,
                group.type,
                group.state_name,
                _protocol_type(group),
                (group.protocol_name or "") if isinstance(group, ClassicGroup) else "",
                group.epoch,
                group.member_count,
                topics,
                entry.rebalances,
            )

    def topics_among(self, group_id: str, topics: frozenset[str]) -> Sequence[str]:
        """The topics among these in which the group has committed offsets."""
        entry = self._registry.get(group_id)
        if entry is None:
            return ()
        with entry.lock:
            return entry.offsets.among(topics)

    def committed(self, group_id: str, topics: Iterable[str]) -> Mapping[str, Mapping[int, CommittedOffset]]:
        """The group's committed offsets in these topics. Holds the group's lock for one topic at a time."""
        entry = self._registry.get(group_id)
        offsets: dict[str, Mapping[int, CommittedOffset]] = {}
        if entry is None:
            return offsets
        for topic in self.topics_among(group_id, frozenset(topics)):
            with entry.lock:
                partitions = entry.offsets.copy_of(topic)
            if partitions:
                offsets[topic] = partitions
        return offsets

    def delete(self, group_ids: Iterable[str], reply: Callable[[dict[str, ErrorCode]], None]) -> None:
        """``reply`` gets an error code for each group when all deletions are durable."""
        registry = self._registry
        errors: dict[str, ErrorCode] = {}
        for group_id in group_ids:
            error = registry.refusal(group_id, may_be_empty=True)
            entry = registry.get(group_id)
            if error or entry is None:
                # setdefault: if the request names a group twice, the first deletion counts.
                errors.setdefault(group_id, error or ErrorCode.group_id_not_found)
                continue
            with entry.lock:
                errors[group_id] = entry.group.delete()
                if not errors[group_id]:
                    deleted = partial(_deleted, group_id, errors)
                    registry.delete(entry, deleted)
                    if entry.group.type is GroupType.SHARE:
                        self.share.state.forget(group_id, None, deleted)
                answers = registry.settle(entry)
            send(answers)
        if ErrorCode.none in errors.values():
            # The writer keeps the order: when it makes this call, all of the above has been written.
            registry.writer.call_soon(lambda: send([partial(reply, errors)]))
        else:
            reply(errors)


def _protocol_type(group: Group) -> str:
    """The members' name for the protocol of a classic group; the newer kinds are named after their protocol."""
    if isinstance(group, ClassicGroup):
        return group.protocol_type or ""
    return CONSUMER if group.type is GroupType.CONSUMER else group.type.value


def _deleted(group_id: str, errors: dict[str, ErrorCode], failure: StorageError | None) -> None:
    log_failure(failure)
    if failure is not None:
        errors[group_id] = error_of(failure)
