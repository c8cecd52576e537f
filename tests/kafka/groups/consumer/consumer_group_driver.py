"""Drives a ``ConsumerGroup`` as the coordinator does: carries out its effects, at once or when a test says so. And clients."""

from collections.abc import Callable, Iterable
from uuid import UUID

import attrs

from broker.kafka.groups.consumer.consumer_group import ConsumerGroup
from broker.kafka.groups.consumer.targets import AssignmentTask
from broker.kafka.groups.consumer.values import (
    Assignment,
    BecomeClassic,
    ConsumerGroupLimits,
    HeartbeatRequest,
    HeartbeatResult,
    RegexTask,
    TopicInfo,
    TopicsImage,
    as_topic_partitions,
)
from broker.kafka.groups.consumer_coordinator import check_heartbeat
from broker.kafka.groups.group import Answer, Group, SaveRows
from broker.kafka.groups.values import JoinAnswer, SyncAnswer
from protocol.kafka.errors import ErrorCode


def topic_id(name: str, incarnation: int = 0) -> UUID:
    return UUID(int=int.from_bytes(f"{incarnation}{name}".encode()[:15], "big") + 1)


@attrs.define(eq=False)
class GroupDriver:
    """``saves``, ``assignments``, ``regexes``: effects to be carried out: immediately, unless ``is_lazy``."""

    group: ConsumerGroup
    topics: TopicsImage = attrs.Factory(lambda: TopicsImage.of(0, {}))
    now: float = 0.0
    rows: dict[str, bytes] = attrs.Factory(dict)
    is_lazy: bool = False
    saves: list[SaveRows | BecomeClassic] = attrs.Factory(list)
    assignments: list[AssignmentTask] = attrs.Factory(list)
    regexes: list[RegexTask] = attrs.Factory(list)
    all_saves: list[SaveRows | BecomeClassic] = attrs.Factory(list)
    may_describe: Callable[[str], bool] = lambda _: True
    classic: BecomeClassic | None = None

    @classmethod
    def of(
        cls, limits: ConsumerGroupLimits | None = None, *, is_lazy: bool = False, **partitions: int
    ) -> "GroupDriver":
        driver = cls(ConsumerGroup("group", limits or ConsumerGroupLimits()), is_lazy=is_lazy)
        _: Group = driver.group  # checked by mypy
        driver.set_topics(**partitions)
        return driver

    def set_topics(self, **partitions: int) -> None:
        topics = {name: TopicInfo(topic_id(name), count) for name, count in partitions.items()}
        self.topics = TopicsImage.of(self.topics.generation + 1, topics)

    def set_topics_with(self, partitions: dict[str, int], incarnations: dict[str, int]) -> None:
        """``incarnations``: how often a topic of the name was made before. Each has another id."""
        topics = {name: TopicInfo(topic_id(name, incarnations[name]), count) for name, count in partitions.items()}
        self.topics = TopicsImage.of(self.topics.generation + 1, topics)

    def heartbeat(self, request: HeartbeatRequest, to: Callable[[HeartbeatResult], None]) -> None:
        refusal = check_heartbeat("group", request, 1, ("uniform", "range"))
        if refusal is None:
            result = self.group.heartbeat(request, self.topics, to, self.now)
            if result is not None:
                to(result)
        else:
            to(refusal)
        self.settle()

    def ask(self, request: HeartbeatRequest) -> HeartbeatResult:
        """The answer, which has come at once or after the lazy effects."""
        answers: list[HeartbeatResult] = []
        self.heartbeat(request, answers.append)
        if not answers:
            self.work()
        assert len(answers) == 1, answers
        return answers[0]

    def settle(self) -> None:
        """Carry out the effects so far."""
        for effect in self.group.take_effects():
            match effect:
                case Answer() | JoinAnswer() | SyncAnswer():
                    effect.to(effect.result)
                case SaveRows() | BecomeClassic():
                    self.saves.append(effect)
                    self.all_saves.append(effect)
                case AssignmentTask():
                    self.assignments.append(effect)
                case RegexTask():
                    self.regexes.append(effect)
        if not self.is_lazy and self.has_work:
            self.work()

    @property
    def has_work(self) -> bool:
        return bool(self.saves or self.assignments or self.regexes)

    def work(self) -> None:
        """Carry out all lazy effects."""
        while self.has_work:
            if self.saves:
                self.save()
            elif self.regexes:
                self.match()
            else:
                self.assign()

    def save(self, error: ErrorCode = ErrorCode.none) -> None:
        """Make the oldest save durable, or fail it."""
        save = self.saves.pop(0)
        if not error:
            if isinstance(save, BecomeClassic):
                for row in save.rows:
                    self.rows.pop(row, None)
                self.classic = save
            else:
                for row, content in save.put.items():
                    if content is None:
                        self.rows.pop(row, None)
                    else:
                        self.rows[row] = content
        self.group.saved(save, error, self.now)
        self.settle()

    def assign(self) -> None:
        task = self.assignments.pop(0)
        task.run()
        self.group.assignment_computed(task, self.now)
        self.settle()

    def match(self) -> None:
        task = self.regexes.pop(0)
        while not task.run_slice():
            pass
        if task.matches is not None:
            task.matches = {regex: frozenset(filter(self.may_describe, names)) for regex, names in task.matches.items()}
        self.group.regexes_resolved(task, self.now)
        self.settle()

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with ``expire`` whenever it is due."""
        end = self.now + seconds
        while self.group.wake <= end:
            self.now = max(self.now, self.group.wake)
            self.group.expire(self.now)
            self.settle()
        self.now = end

    def restart(self, limits: ConsumerGroupLimits | None = None) -> None:
        """The broker is killed and starts again with the durable state."""
        self.saves.clear()
        self.assignments.clear()
        self.regexes.clear()
        self.group = ConsumerGroup.restore("group", limits or ConsumerGroupLimits(), self.rows, self.now)


@attrs.define(eq=False)
class Client:
    """An obedient consumer. ``owned``: its partitions; it reports a change with its next heartbeat."""

    driver: GroupDriver
    member_id: str
    names: tuple[str, ...] | None = ("t",)
    regex: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    rebalance_timeout_ms: int = 60_000
    epoch: int = 0
    owned: Assignment = attrs.Factory(dict)
    is_report_due: bool = False
    last: HeartbeatResult | None = None
    keeps: bool = False  # does not give up partitions on request

    def join_request(self) -> HeartbeatRequest:
        return HeartbeatRequest(
            self.member_id,
            0,
            self.instance_id,
            None,
            self.rebalance_timeout_ms,
            "client",
            "/127.0.0.1",
            self.names,
            self.regex,
            self.assignor,
            (),
        )

    def request(self) -> HeartbeatRequest:
        if self.epoch == 0:
            return self.join_request()
        owned = as_topic_partitions(self.owned) if self.is_report_due else None
        return HeartbeatRequest(
            self.member_id, self.epoch, self.instance_id, client_id="client", client_host="/127.0.0.1", owned=owned
        )

    def full_request(self) -> HeartbeatRequest:
        request = self.join_request()
        request.member_epoch = self.epoch
        request.owned = as_topic_partitions(self.owned)
        return request

    def beat(self, request: HeartbeatRequest | None = None) -> HeartbeatResult:
        result = self.driver.ask(request or self.request())
        self.take(result)
        return result

    def take(self, result: HeartbeatResult) -> None:
        self.last = result
        if result.error is ErrorCode.none:
            self.is_report_due = False
            self.epoch = result.member_epoch
            if result.assignment is not None and not self.keeps:
                told = {topic: frozenset(partitions) for topic, partitions in result.assignment if partitions}
                self.is_report_due = told != self.owned
                self.owned = told
        elif result.error in (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id):
            self.epoch, self.owned, self.is_report_due = 0, {}, False

    def leave(self, epoch: int = -1) -> HeartbeatResult:
        result = self.driver.ask(HeartbeatRequest(self.member_id, epoch, self.instance_id))
        self.epoch, self.owned = 0, {}
        return result

    @property
    def partitions(self) -> set[tuple[UUID, int]]:
        return {(topic, each) for topic, partitions in self.owned.items() for each in partitions}

    @property
    def count(self) -> int:
        return sum(map(len, self.owned.values()))


def settle(clients: Iterable[Client], rounds: int = 20) -> int:
    """Heartbeats until nothing changes. The number of rounds that it took."""
    clients = list(clients)
    for done in range(rounds):
        before = [(client.epoch, client.partitions, client.is_report_due) for client in clients]
        for client in clients:
            client.beat()
        if before == [(client.epoch, client.partitions, client.is_report_due) for client in clients]:
            return done
    raise AssertionError(f"not settled after {rounds} rounds")
