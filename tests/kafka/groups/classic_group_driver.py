"""Drives a pure ``ClassicGroup`` as the coordinator does, and keeps every answer."""

import itertools
from collections.abc import Sequence
from typing import Any

from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.rebalancer import GroupLimits
from broker.kafka.groups.values import JoinRequest, JoinResult, Save, SyncRequest, SyncResult
from protocol.kafka.errors import ErrorCode

RANGE = (("range", b"topics"),)
SESSION_MS = 10_000
REBALANCE_MS = 60_000


class Parked:
    """A join or a sync. In the end it must have exactly one answer."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def __call__(self, result: Any) -> None:
        self.answers.append(result)

    @property
    def is_parked(self) -> bool:
        return not self.answers

    @property
    def result(self) -> Any:
        assert len(self.answers) == 1, self.answers
        return self.answers[0]

    @property
    def error(self) -> ErrorCode:
        return self.result.error

    @property
    def member_id(self) -> str:
        return self.result.member_id


class ClassicGroupDriver:
    """A group, its time in seconds, and its saves: durable at once, or (``save_at_once = False``) by ``finish_save``."""

    def __init__(self, limits: GroupLimits | None = None, group: ClassicGroup | None = None) -> None:
        self.group = group or ClassicGroup("g", limits or GroupLimits())
        self.now = 0.0
        self.save_at_once = True
        self.saves: list[Save] = []
        self.saved: list[Save] = []
        self._ids = itertools.count(1)

    def join(
        self,
        member_id: str = "",
        *,
        instance: str | None = None,
        protocols: Sequence[tuple[str, bytes]] = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 9,
        client_host: str = "/127.0.0.1",
    ) -> Parked:
        parked = Parked()
        name = instance or "client"
        request = JoinRequest(
            member_id,
            instance,
            "client",
            client_host,
            session_ms,
            rebalance_ms,
            protocol_type,
            tuple(protocols),
            f"{name}-{next(self._ids)}",
            member_id_required=version >= 4,
            can_skip_assignment=version >= 9,
        )
        self.group.join(request, parked, self.now)
        self._settle()
        return parked

    def join_new(self, **how: Any) -> Parked:
        """Send both join requests of a new dynamic member. Returns the second."""
        first = self.join(**how)
        assert first.error == ErrorCode.member_id_required
        return self.join(first.member_id, **how)

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        assignments: dict[str, bytes] | None = None,
        *,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> Parked:
        parked = Parked()
        number = self.group.generation if generation is None else generation
        request = SyncRequest(member_id, instance, number, protocol_type, protocol_name, assignments or {})
        self.group.sync(request, parked, self.now)
        self._settle()
        return parked

    def heartbeat(self, member_id: str, generation: int | None = None, *, instance: str | None = None) -> ErrorCode:
        number = self.group.generation if generation is None else generation
        error = self.group.heartbeat(member_id, instance, number, self.now)
        self._settle()
        return error

    def leave(self, member_id: str, *, instance: str | None = None) -> ErrorCode:
        error = self.group.leave(member_id, instance, self.now)
        self._settle()
        return error

    def commit(self, member_id: str = "", generation: int = -1, *, instance: str | None = None) -> ErrorCode:
        error = self.group.check_commit(member_id, instance, generation, self.now)
        self._settle()
        return error

    def wait(self, seconds: float) -> None:
        """Let time pass, with ``expire`` at each deadline."""
        end = self.now + seconds
        while self.group.wake <= end:
            self.now = max(self.now, self.group.wake)
            self.group.expire(self.now)
            self._settle()
        self.now = end

    def finish_save(self, error: ErrorCode = ErrorCode.none) -> None:
        """The oldest save is durable, or fails with ``error``."""
        save = self.saves.pop(0)
        if not error:
            self.saved.append(save)
        self.group.saved(save, error, self.now)
        self._settle()

    def stable(self, members: int = 1, **how: Any) -> list[str]:
        """Make a stable group of new dynamic members. Returns their ids, the leader's first."""
        ids: list[str] = []
        for _ in range(members):
            newcomer = self.join_new(**how)
            joins = [newcomer] + [self.join(member_id, **how) for member_id in ids]
            ids = [join.member_id for join in joins]
        ids.sort(key=lambda member_id: member_id != self.group.members.leader)
        assignments = {member_id: f"for {member_id}".encode() for member_id in ids}
        syncs = [self.sync(each, assignments=assignments if each == ids[0] else None) for each in ids]
        assert [sync.error for sync in syncs] == [ErrorCode.none] * members
        return ids

    def _settle(self) -> None:
        for effect in self.group.take_effects():
            if isinstance(effect, Save):
                self.saves.append(effect)
            else:
                assert isinstance(effect.result, (JoinResult, SyncResult))
                effect.to(effect.result)  # type: ignore[arg-type]
        while self.save_at_once and self.saves:
            self.finish_save()
