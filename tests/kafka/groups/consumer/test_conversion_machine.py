"""A group of consumers of both protocols that is upgraded and downgraded while they come and go: a stateful model.

At every moment no two members read a partition, whatever the group is, and once the faults stop the members have everything.
"""

from functools import partial

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.consumer.consumer_group import ConsumerGroup
from broker.kafka.groups.consumer.values import (
    BecomeClassic,
    ConsumerGroupLimits,
    HeartbeatRequest,
    TopicInfo,
    TopicsImage,
)
from broker.kafka.groups.group import Answer, SaveRows
from broker.kafka.groups.rebalancer import GroupLimits
from broker.kafka.groups.values import (
    GroupSnapshot,
    JoinAnswer,
    JoinRequest,
    JoinResult,
    Save,
    SyncAnswer,
    SyncRequest,
    SyncResult,
)
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.consumer_protocol import (
    encode_assignment,
    encode_subscription,
    parse_assignment,
    parse_subscription,
)
from tests.kafka.groups.consumer.consumer_group_driver import topic_id
from tests.kafka.groups.consumer.model_clients import NOTHING, ModelConsumer, Partitions

PARTITIONS = 5
NUMBERS = st.integers(0, 3)
T = topic_id("t")
ALL: Partitions = frozenset((T, each) for each in range(PARTITIONS))
TOPICS = TopicsImage.of(1, {"t": TopicInfo(T, PARTITIONS)})


@attrs.define(eq=False)
class ModelClassic:
    """A client of the classic protocol, eager or cooperative. A leader keeps everybody's partitions and assigns the rest."""

    new_id: str
    is_eager: bool
    member_id: str = ""
    generation: int = -1
    holds: Partitions = NOTHING
    target: Partitions = NOTHING
    phase: str = "out"
    attempt: int = 0
    may_be_fenced: bool = False
    assignments: dict[str, bytes] = attrs.Factory(dict)

    def join_request(self) -> JoinRequest:
        if self.is_eager:
            self.holds = NOTHING
        self.phase = "joining"
        self.attempt += 1
        self.may_be_fenced = False
        owned = {"t": sorted(each for _, each in self.holds)}
        protocols = (("range", encode_subscription(["t"], version=1, owned=owned)),)
        return JoinRequest(
            self.member_id, None, "client", "/127.0.0.1", 45_000, 60_000, "consumer", protocols, self.new_id
        )

    def joined(self, attempt: int, result: JoinResult) -> None:
        if attempt != self.attempt or self.phase != "joining":
            return
        self.phase = "out"
        if result.error is ErrorCode.none:
            self.member_id, self.generation, self.phase = result.member_id, result.generation, "joined"
            if result.leader == self.member_id and result.members:
                self.assign(result)
        elif result.error is ErrorCode.member_id_required:
            self.member_id = result.member_id
        elif result.error is ErrorCode.unknown_member_id:
            self.lose()

    def assign(self, result: JoinResult) -> None:
        had = {each.member_id: parse_subscription(each.metadata).owned.get("t", []) for each in result.members}
        left = sorted(set(range(PARTITIONS)) - {each for some in had.values() for each in some})
        for number, partition in enumerate(left):
            had[sorted(had)[number % len(had)]].append(partition)
        self.assignments = {member_id: encode_assignment({"t": some}) for member_id, some in had.items()}

    def sync_request(self) -> SyncRequest:
        self.phase = "syncing"
        self.attempt += 1
        assignments, self.assignments = self.assignments, {}
        return SyncRequest(self.member_id, None, self.generation, "consumer", "range", assignments)

    def synced(self, attempt: int, result: SyncResult) -> None:
        if attempt != self.attempt or self.phase != "syncing":
            return
        self.phase = "out"
        if result.error is ErrorCode.none:
            partitions = parse_assignment(result.assignment).partitions.get("t", [])
            self.target = frozenset((T, each) for each in partitions)
            self.holds |= self.target
            self.phase = "stable"
        elif result.error in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            self.lose()

    def heard(self, error: ErrorCode) -> None:
        if error in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
            self.lose()
        elif error is ErrorCode.rebalance_in_progress:
            self.phase = "out"

    def revoke(self) -> None:
        """A cooperative client that has given partitions up joins again."""
        if self.phase == "stable" and self.holds != self.target:
            self.holds &= self.target
            self.phase = "out"

    def lose(self) -> None:
        self.holds = self.target = NOTHING
        self.member_id, self.generation, self.phase = "", -1, "out"
        self.new_id += "'"  # the coordinator never makes the same id twice


class ConversionModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.group: ClassicGroup | ConsumerGroup = ClassicGroup("group", GroupLimits())
        self.stored: GroupSnapshot | None = None
        self.rows: dict[str, bytes] = {}
        self.clients: dict[int, ModelConsumer | ModelClassic] = {}
        self.made = 0
        self.now = 0.0

    def teardown(self) -> None:
        if self.clients:
            self.finish()

    # What the coordinator does ----------------------------------------------------------------------------------------

    def settle(self, group: ClassicGroup | ConsumerGroup | None = None) -> None:
        group = group or self.group
        for effect in group.take_effects():
            match effect:
                case Answer() | JoinAnswer() | SyncAnswer():
                    effect.to(effect.result)
                case Save():
                    self.stored = effect.snapshot
                    group.saved(effect, ErrorCode.none, self.now)  # type: ignore[arg-type]
                    self.settle(group)
                case SaveRows():
                    for row, content in effect.put.items():
                        if content is None:
                            self.rows.pop(row, None)
                        else:
                            self.rows[row] = content
                    if effect.then.replaces_classic:
                        self.stored = None
                    group.saved(effect, ErrorCode.none, self.now)  # type: ignore[arg-type]
                    self.settle(group)
                case BecomeClassic():
                    self.stored = effect.snapshot
                    for row in effect.rows:
                        self.rows.pop(row, None)
                    assert not self.rows
                    classic = ClassicGroup.restore("group", GroupLimits(), effect.snapshot, self.now)
                    self.group = classic
                    group.saved(effect, ErrorCode.none, self.now)  # type: ignore[arg-type]
                    self.settle(group)
                    self.settle()
                case _:
                    raise AssertionError(effect)

    def consumer_group(self) -> ConsumerGroup:
        old = self.group
        if isinstance(old, ConsumerGroup):
            return old
        if len(old.members):
            self.group = ConsumerGroup.from_classic(old, ConsumerGroupLimits(), TOPICS, self.now)
            old.hand_over()
            self.settle(old)
        else:
            self.group, self.stored = ConsumerGroup("group", ConsumerGroupLimits()), None
        return self.group

    def ask_consumer(self, request: HeartbeatRequest, client: ModelConsumer, attempt: int) -> None:
        is_join = request.member_epoch == 0
        if isinstance(self.group, ClassicGroup) and not is_join:
            client.give_up()  # GROUP_ID_NOT_FOUND
            client.lose_answer()
            return
        to = partial(client.take, attempt)
        result = self.consumer_group().heartbeat(request, TOPICS, to, self.now)
        if result is not None:
            to(result)
        self.settle()

    # What clients do --------------------------------------------------------------------------------------------------

    @rule(number=NUMBERS, kind=st.sampled_from(["consumer", "eager", "cooperative"]))
    def start(self, number: int, kind: str) -> None:
        """A process starts in place of a cleanly stopped process."""
        self.stop(number)
        self.made += 1
        if kind == "consumer":
            self.clients[number] = ModelConsumer(f"m{self.made}", None, ("t",), None, None)
        else:
            self.clients[number] = ModelClassic(f"m{self.made}", kind == "eager")
        self.act(number)

    @precondition(lambda self: self.clients)
    @rule(number=NUMBERS)
    def stop(self, number: int) -> None:
        client = self.clients.pop(number, None)
        group = self.group
        if isinstance(client, ModelConsumer) and isinstance(group, ConsumerGroup):
            group.heartbeat(HeartbeatRequest(client.member_id, -1), TOPICS, lambda _: None, self.now)
        elif isinstance(client, ModelClassic) and isinstance(group, ConsumerGroup):
            group.classic_leave(client.member_id, None, self.now)
        elif isinstance(client, ModelClassic) and isinstance(group, ClassicGroup):
            group.leave(client.member_id, None, self.now)
        self.settle(group)
        self.settle()

    @precondition(lambda self: self.clients)
    @rule(number=NUMBERS)
    def crash(self, number: int) -> None:
        self.clients.pop(number, None)

    @precondition(lambda self: self.clients)
    @rule(number=NUMBERS)
    def act(self, number: int) -> None:
        client = self.clients.get(number)
        if isinstance(client, ModelConsumer) and not client.is_waiting:
            self.ask_consumer(client.request(), client, client.attempt)
        elif isinstance(client, ModelClassic):
            self.act_classic(client)

    def act_classic(self, client: ModelClassic) -> None:
        if isinstance(self.group, ConsumerGroup) and self.group.is_empty and client.phase == "out":
            self.group, self.rows = ClassicGroup("group", GroupLimits()), {}
        group = self.group
        if client.phase == "out":
            request = client.join_request()
            joined = partial(client.joined, client.attempt)
            if isinstance(group, ConsumerGroup):
                group.classic_join(request, TOPICS, joined, self.now)
            else:
                group.join(request, joined, self.now)
        elif client.phase == "joined":
            sync = client.sync_request()
            synced = partial(client.synced, client.attempt)
            if isinstance(group, ConsumerGroup):
                group.classic_sync(sync, synced, self.now)
            else:
                group.sync(sync, synced, self.now)
        elif client.phase == "stable":
            heartbeat = group.classic_heartbeat if isinstance(group, ConsumerGroup) else group.heartbeat
            client.may_be_fenced = False
            client.heard(heartbeat(client.member_id, None, client.generation, self.now))
        self.settle(group)
        self.settle()

    @rule()
    def round(self) -> None:
        for number in list(self.clients):
            self.act(number)

    @precondition(lambda self: self.clients)
    @rule(number=NUMBERS)
    def revoke(self, number: int) -> None:
        if number in self.clients:
            self.clients[number].revoke()

    @precondition(lambda self: self.clients)
    @rule(number=NUMBERS)
    def lose_answer(self, number: int) -> None:
        client = self.clients.get(number)
        if isinstance(client, ModelConsumer):
            client.lose_answer()
        elif client is not None and client.phase in ("joining", "syncing"):
            client.phase = "out"

    @rule(seconds=st.sampled_from([1.0, 20.0, 50.0]))
    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        for client in self.clients.values():
            client.may_be_fenced |= seconds >= 20
        while self.group.wake <= end:
            self.now = max(self.now, self.group.wake)
            group = self.group
            group.expire(self.now)
            self.settle(group)
            self.settle()
        self.now = end

    @rule()
    def kill(self) -> None:
        for number in self.clients:
            self.lose_answer(number)
        if self.rows:
            assert self.stored is None
            self.group = ConsumerGroup.restore("group", ConsumerGroupLimits(), self.rows, self.now)
        elif self.stored is not None:
            self.group = ClassicGroup.restore("group", GroupLimits(), self.stored, self.now)
        else:
            self.group = ClassicGroup("group", GroupLimits())

    # What is always true ----------------------------------------------------------------------------------------------

    @property
    def member_ids(self) -> set[str]:
        if isinstance(self.group, ConsumerGroup):
            return {each.member_id for each in self.group._core.members}
        return {each.member_id for each in self.group.members}

    @invariant()
    def no_two_members_read_a_partition(self) -> None:
        member_ids = self.member_ids
        readers: dict[tuple[object, int], ModelConsumer | ModelClassic] = {}
        for client in self.clients.values():
            if client.member_id not in member_ids:
                continue  # it was fenced, and has not heard of it
            for each in client.holds:
                assert each not in readers, (client, readers[each])
                readers[each] = client

    @invariant()
    def the_group_is_stored_once(self) -> None:
        assert not (self.rows and self.stored)

    # In the end -------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The faults stop."""
        for _ in range(40):
            for number, client in list(self.clients.items()):
                if isinstance(client, ModelConsumer) and client.is_waiting:
                    client.lose_answer()
                client.revoke()
                self.act(number)
            self.pass_time(4.0)
        assert ALL == {each for client in self.clients.values() for each in client.holds}, self.clients
        if any(isinstance(client, ModelConsumer) for client in self.clients.values()):
            assert isinstance(self.group, ConsumerGroup)
            loads = [len(client.holds) for client in self.clients.values()]
            assert max(loads) - min(loads) <= 1
        else:
            assert isinstance(self.group, ClassicGroup)


ConversionModel.TestCase.settings = settings(stateful_step_count=40, max_examples=100, deadline=None)
TestConversionModel = ConversionModel.TestCase
