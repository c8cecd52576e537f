"""Drives a ``ShareGroup`` as the coordinator does, with the time, the writer and the initialiser in the hands of the test."""

import uuid
from collections.abc import Mapping
from typing import Any

import attrs

from broker.kafka.groups.group import Answer, SaveRows
from broker.kafka.groups.share.share_group import ShareGroup
from broker.kafka.groups.share.simple_assignor import Assignment
from broker.kafka.groups.share.values import (
    AssignmentDue,
    AssignorTask,
    HeartbeatRequest,
    HeartbeatResult,
    Initialise,
    MemberFenced,
    ShareGroupLimits,
)
from protocol.kafka.errors import ErrorCode

SESSION_S = 45.0
LIMITS = ShareGroupLimits(max_size=50, max_bytes=1_000_000, restored_session_s=60.0)


class FakeTopics:
    """Topics by name. A topic that is made again gets another id."""

    def __init__(self, **partitions: int) -> None:
        self._ids = 0
        self.topics: dict[str, tuple[uuid.UUID, int]] = {}
        for name, count in partitions.items():
            self.create(name, count)

    def __call__(self, name: str) -> tuple[uuid.UUID, int] | None:
        return self.topics.get(name)

    def id(self, name: str) -> uuid.UUID:
        return self.topics[name][0]

    def create(self, name: str, count: int) -> None:
        self._ids += 1
        self.topics[name] = uuid.UUID(int=self._ids), count

    def grow(self, name: str, count: int) -> None:
        self.topics[name] = self.topics[name][0], count

    def delete(self, name: str) -> None:
        del self.topics[name]


@attrs.define(eq=False)
class Reply:
    """Where an answer goes. ``result`` is None while it is awaited."""

    member_id: str
    results: list[HeartbeatResult] = attrs.Factory(list)

    def __call__(self, result: HeartbeatResult) -> None:
        self.results.append(result)

    @property
    def is_waiting(self) -> bool:
        return not self.results

    @property
    def result(self) -> HeartbeatResult:
        (result,) = self.results
        return result


class Driver:
    """``rows``: the catalogue. Effects wait in lists until the test carries them out."""

    def __init__(self, topics: FakeTopics | None = None, limits: ShareGroupLimits = LIMITS) -> None:
        self.topics = topics or FakeTopics(orders=4)
        self.limits = limits
        self.now = 1000.0
        self.rows: dict[str, bytes] = {}
        self.initialised: dict[uuid.UUID, int] = {}
        self.fenced: list[str] = []
        self._clear()
        self.group = ShareGroup("g", limits)

    def _clear(self) -> None:
        self.saves: list[SaveRows] = []
        self.due = 0
        self.initialise: list[Initialise] = []
        self.tasks: list[AssignorTask] = []

    def restart(self) -> None:
        """Restart as after kill -9: everything that is not in the catalogue is lost."""
        self._clear()
        self.group = ShareGroup.restore("g", self.limits, dict(self.rows), self.now)
        self.settle()

    # What a coordinator does ----------------------------------------------------------------------------------------

    def settle(self) -> None:
        for effect in self.group.take_effects():
            if isinstance(effect, SaveRows):
                self.saves.append(effect)
            elif isinstance(effect, AssignmentDue):
                self.due += 1
                assert self.due == 1, "one run at a time"
            elif isinstance(effect, Initialise):
                self.initialise.append(effect)
            elif isinstance(effect, MemberFenced):
                self.fenced.append(effect.member_id)
            else:
                assert isinstance(effect, Answer)
                effect.to(effect.result)

    def run(self) -> None:
        """Carry out the run that is due, up to its end or until partitions are to be initialised."""
        self.begin_run()
        if self.tasks:
            self.end_run()

    def begin_run(self) -> None:
        assert self.due
        self.due -= 1
        self._take(self.group.begin_run(self.topics))

    def end_run(self) -> None:
        """Run the assignor."""
        task = self.tasks.pop(0)
        task.run()
        self.group.assigned(task, self.now)
        self.settle()

    def _take(self, task: AssignorTask | None) -> None:
        if task is not None:
            self.tasks.append(task)
            assert len(self.tasks) == 1, "one run at a time"
        self.settle()

    def end_initialise(self, error: ErrorCode = ErrorCode.none) -> None:
        effect = self.initialise.pop(0)
        if not error:
            for each in effect.partitions:
                assert self.initialised.get(each.topic_id, 0) >= each.first
                self.initialised[each.topic_id] = max(each.end, self.initialised.get(each.topic_id, 0))
        self._take(self.group.initialised(effect.partitions, error, self.now))

    def end_save(self, error: ErrorCode = ErrorCode.none) -> None:
        save = self.saves.pop(0)
        if not error:
            for row, body in save.put.items():
                if body is None:
                    self.rows.pop(row, None)
                else:
                    self.rows[row] = body
        self.group.saved(save, error, self.now)
        self.settle()

    def work(self) -> None:
        """Carry out all waiting effects."""
        while self.due or self.initialise or self.tasks or self.saves:
            if self.due:
                self.begin_run()
            elif self.tasks:
                self.end_run()
            elif self.initialise:
                self.end_initialise()
            else:
                self.end_save()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if self.group.wake <= self.now:
            self.group.expire(self.now)
            self.settle()

    # What members do ------------------------------------------------------------------------------------------------

    def send(self, member_id: str, epoch: int, *names: str, free_bytes: float = 1e9, **how: Any) -> Reply:
        """A heartbeat; a full heartbeat names topics."""
        reply = Reply(member_id)
        fields = {"client_id": "c", "client_host": "/::1", "subscribed_topic_names": names or None, **how}
        request = HeartbeatRequest(member_id, epoch, **fields)
        result = self.group.heartbeat(request, reply, SESSION_S, self.now, free_bytes)
        if result is not None:
            reply(result)
        self.settle()
        return reply

    def join(self, member_id: str, *names: str) -> HeartbeatResult:
        reply = self.send(member_id, 0, *(names or ("orders",)))
        self.work()
        assert reply.result.error == ErrorCode.none
        return reply.result

    def beat(self, member_id: str, *names: str) -> HeartbeatResult:
        """A heartbeat with the member's epoch in the group, and its answer."""
        member = self.group.members.get(member_id)
        assert member is not None
        reply = self.send(member_id, member.epoch, *names)
        self.work()
        return reply.result

    def leave(self, member_id: str) -> HeartbeatResult:
        reply = self.send(member_id, -1)
        self.work()
        return reply.result


def flat(assignment: Assignment | None) -> Mapping[uuid.UUID, list[int]]:
    return {topic: list(partitions) for topic, partitions in (assignment or {}).items()}
