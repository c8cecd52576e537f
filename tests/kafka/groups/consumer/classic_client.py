"""A consumer of the classic protocol, for tests: cooperative (reports its partitions) or eager (gives all up to join)."""

from uuid import UUID

import attrs

from broker.kafka.groups.consumer.consumer_group import ConsumerGroup
from broker.kafka.groups.values import JoinRequest, JoinResult, SyncRequest, SyncResult
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.consumer_protocol import encode_subscription, parse_assignment
from tests.kafka.groups.consumer.consumer_group_driver import GroupDriver, topic_id


@attrs.define(eq=False)
class ClassicClient:
    driver: GroupDriver
    member_id: str = ""
    topics: tuple[str, ...] = ("t",)
    instance_id: str | None = None
    is_eager: bool = False
    new_id: str = "classic"
    generation: int = -1
    owned: dict[str, list[int]] = attrs.Factory(dict)
    last_join: JoinResult | None = None
    last_sync: SyncResult | None = None

    @property
    def group(self) -> ConsumerGroup:
        return self.driver.group

    @property
    def protocols(self) -> tuple[tuple[str, bytes], ...]:
        owned = {} if self.is_eager else self.owned
        return (("range", encode_subscription(self.topics, version=1, owned=owned)),)

    def join_request(self) -> JoinRequest:
        return JoinRequest(
            self.member_id,
            self.instance_id,
            "client",
            "/127.0.0.1",
            10_000,
            60_000,
            "consumer",
            self.protocols,
            self.new_id,
        )

    def join(self) -> JoinResult:
        """Join once or, if a member id is given first, twice. The answer has come, at once or after the lazy effects."""
        if self.is_eager:
            self.owned = {}
        answers: list[JoinResult] = []
        self.group.classic_join(self.join_request(), self.driver.topics, answers.append, self.driver.now)
        self.driver.settle()
        if not answers:
            self.driver.work()
        [self.last_join] = answers
        if self.last_join.error is ErrorCode.member_id_required:
            self.member_id = self.last_join.member_id
            return self.join()
        if not self.last_join.error:
            self.member_id, self.generation = self.last_join.member_id, self.last_join.generation
        return self.last_join

    def sync(self, generation: int | None = None, protocol_name: str | None = "range") -> SyncResult:
        answers: list[SyncResult] = []
        generation = self.generation if generation is None else generation
        request = SyncRequest(self.member_id, self.instance_id, generation, "consumer", protocol_name)
        self.group.classic_sync(request, answers.append, self.driver.now)
        self.driver.settle()
        [self.last_sync] = answers
        if not self.last_sync.error:
            self.owned = parse_assignment(self.last_sync.assignment).partitions
        return self.last_sync

    def heartbeat(self) -> ErrorCode:
        error = self.group.classic_heartbeat(self.member_id, self.instance_id, self.generation, self.driver.now)
        self.driver.settle()
        return error

    def beat(self) -> None:
        """Act as a consumer in each interval: join again if told to, or after giving partitions up."""
        if self.generation >= 0 and self.heartbeat() is ErrorCode.none:
            return
        for _ in range(3):
            before = self.owned
            if self.join().error:
                self.generation = -1
                return
            if self.sync().error is ErrorCode.none and self.owned.keys() >= before.keys():
                return

    @property
    def partitions(self) -> set[tuple[UUID, int]]:
        return {(topic_id(name), each) for name, partitions in self.owned.items() for each in partitions}

    @property
    def count(self) -> int:
        return len(self.partitions)
