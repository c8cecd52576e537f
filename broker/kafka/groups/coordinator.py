"""The group coordinator: what the handlers call.

Any thread may call any method, and none of them waits for the catalogue, so that a processor may call them inline. What cannot
be answered at once is answered by callback, on whatever thread brings the answer about: a handler's, the timer's, the writer's.

Durable are committed offsets (answered afterwards) and each generation with its assignment, once it is stable or empty. After a
restart, members of the last stable generation go on with their heartbeats as if nothing had been.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from broker.config import BrokerConfig
from broker.errors import StorageError
from broker.kafka.groups.classic_states import ClassicGroupState
from broker.kafka.groups.coordinator_memory import CoordinatorMemory
from broker.kafka.groups.offset_coordinator import OffsetCoordinator
from broker.kafka.groups.registry import LOCKED_MAX, GroupRegistry, error_of, log_failure, send
from broker.kafka.groups.values import (
    UNKNOWN_MEMBER,
    GroupDescription,
    JoinReply,
    JoinRequest,
    JoinResult,
    SyncReply,
    SyncRequest,
    SyncResult,
)
from broker.metadata.catalogue import Catalogue
from broker.metadata.writer import CatalogueWriter
from broker.runtime.clock import Clock
from broker.runtime.timers import Timer
from protocol.kafka.errors import ErrorCode


class GroupCoordinator:
    """All groups of this broker. ``writer`` is the body of a thread that the assembly runs from ``open`` to ``close``."""

    def __init__(self, clock: Clock, timer: Timer, catalogue: Catalogue, config: BrokerConfig) -> None:
        self._registry = GroupRegistry(clock, timer, catalogue, config)
        self.offsets = OffsetCoordinator(self._registry)

    @property
    def writer(self) -> CatalogueWriter:
        return self._registry.writer

    @property
    def memory(self) -> CoordinatorMemory:
        """The memory that groups and transactions share."""
        return self._registry.memory

    def has_memory_for(self, size_bytes: int) -> bool:
        """False if this does not fit into ``coordinator_max_bytes`` any more, which is also logged."""
        return self._registry.has_memory_for(size_bytes)

    def open(self, topic_exists: Callable[[str], bool]) -> None:
        """Load the groups from the catalogue. Raises StorageError if that can't be read."""
        self._registry.load(topic_exists)
        self.offsets.start_sweeping()

    def shut_down(self) -> None:
        """Refuse requests and let go of whoever is parked, so that connections can drain."""
        self.offsets.stop_sweeping()
        self._registry.shut_down()

    def close(self) -> None:
        """Shut down and write what is left. The writer's thread must have ended."""
        self.shut_down()
        self.writer.flush()

    def on_topic_deleted(self, topic: str) -> None:
        self.offsets.on_topic_deleted(topic)

    # Membership -------------------------------------------------------------------------------------------------------

    def join(self, group_id: str, request: JoinRequest, reply: JoinReply) -> None:
        registry = self._registry
        error = registry.refusal(group_id) or self._refuse_session_timeout(request.session_timeout_ms)
        entry = None
        if not error:
            # Who was told a member id was told so by a group: if there is none any more, that id is worth nothing.
            begins = request.member_id == UNKNOWN_MEMBER
            if begins and not registry.has_memory_for_group(group_id):
                error = ErrorCode.coordinator_not_available
            else:
                entry = registry.get_or_create(group_id) if begins else registry.get(group_id)
        if entry is None:
            reply(JoinResult(error or ErrorCode.unknown_member_id, request.member_id))
            return
        with entry.lock:
            entry.group.join(request, reply, registry.clock.monotonic(), registry.memory.free_bytes)
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
            entry.group.sync(request, reply, registry.clock.monotonic(), registry.memory.free_bytes)
            answers = registry.settle(entry)
        send(answers)

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> ErrorCode:
        registry = self._registry
        error = registry.refusal(group_id)
        entry = registry.get(group_id)
        if error or entry is None:
            return error or ErrorCode.unknown_member_id
        with entry.lock:
            error = entry.group.heartbeat(member_id, group_instance_id, generation, registry.clock.monotonic())
            registry.arm(entry)
        return error

    def leave(self, group_id: str, members: Sequence[tuple[str, str | None]]) -> tuple[ErrorCode, list[ErrorCode]]:
        """Members by (member id, group instance id). The error of the whole request, or else one for each member."""
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
                if entry.group.state is ClassicGroupState.DEAD:
                    return ErrorCode.coordinator_not_available, []
                now = registry.clock.monotonic()
                for member_id, instance_id in members[start : start + LOCKED_MAX]:
                    errors.append(entry.group.leave(member_id, instance_id, now))
                answers = registry.settle(entry)
            send(answers)
        return ErrorCode.none, errors

    def _refuse_session_timeout(self, session_timeout_ms: int) -> ErrorCode:
        config = self._registry.config
        allowed = config.group_min_session_timeout_ms <= session_timeout_ms <= config.group_max_session_timeout_ms
        return ErrorCode.none if allowed else ErrorCode.invalid_session_timeout

    # Administration ---------------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> tuple[ErrorCode, GroupDescription]:
        """A group that does not exist is described as dead, without an error."""
        nothing = GroupDescription(group_id, ClassicGroupState.DEAD)
        error = self._registry.refusal(group_id, may_be_empty=True)
        entry = self._registry.get(group_id)
        if error or entry is None:
            return error, nothing
        with entry.lock:
            return ErrorCode.none, entry.group.describe()

    def list(self, states: Iterable[str] = ()) -> tuple[ErrorCode, list[GroupDescription]]:
        """All groups, without their members; or those in one of these states, whose names may be in any case."""
        error = self._registry.refusal("", may_be_empty=True)
        if error:
            return error, []
        wanted = {state.lower() for state in states}
        found = []
        for entry in self._registry.entries():
            with entry.lock:
                group = entry.group
                overview = GroupDescription(group.group_id, group.state, group.protocol_type or "")
            if not wanted or overview.state.value.lower() in wanted:
                found.append(overview)
        return ErrorCode.none, found

    def delete(self, group_ids: Iterable[str], reply: Callable[[dict[str, ErrorCode]], None]) -> None:
        """``reply`` gets an error code for each group, when the deletion of all that can be deleted is durable."""
        registry = self._registry
        errors: dict[str, ErrorCode] = {}
        for group_id in group_ids:
            error = registry.refusal(group_id, may_be_empty=True)
            entry = registry.get(group_id)
            if error or entry is None:
                # Named twice, it is gone by now and was deleted all the same.
                errors.setdefault(group_id, error or ErrorCode.group_id_not_found)
                continue
            with entry.lock:
                errors[group_id] = entry.group.delete()
                if not errors[group_id]:
                    registry.bury(entry, partial(_deleted, group_id, errors))
        if ErrorCode.none in errors.values():
            # The writer keeps the order: when this has its turn, all of the above has been written.
            registry.writer.call_soon(lambda: send([partial(reply, errors)]))
        else:
            reply(errors)


def _deleted(group_id: str, errors: dict[str, ErrorCode], failure: StorageError | None) -> None:
    log_failure(failure)
    if failure is not None:
        errors[group_id] = error_of(failure)
