"""A consumer group with well-behaved clients and faulty networks, disks and brokers: a stateful model.

At every moment a client's partitions belong to its member, so no two clients read a partition. Epochs never go back. Answers to
clients survive a kill -9 at any point. Once the faults stop the group settles, with every partition assigned and level shares."""

from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from broker.kafka.groups.consumer import targets
from broker.kafka.groups.consumer.consumer_group import ConsumerGroup
from broker.kafka.groups.consumer.members import ConsumerMember, GroupState
from broker.kafka.groups.consumer.values import LEAVE_FOR_A_WHILE_EPOCH, HeartbeatRequest
from broker.kafka.groups.coordinated import LEAVE_EPOCH
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.consumer.consumer_group_driver import GroupDriver, topic_id
from tests.kafka.groups.consumer.model_clients import ModelConsumer, Partitions

NAMES = ("a", "ab", "b")
SUBSCRIPTIONS = st.tuples(
    st.lists(st.sampled_from(NAMES), unique=True, max_size=3).map(tuple), st.sampled_from([None, "a.*", "ab?", "c"])
)
NUMBERS = st.integers(0, 3)


def owned(member: ConsumerMember) -> Partitions:
    return frozenset(
        (topic, each)
        for assignment in (member.assigned, member.revoking)
        for topic, some in assignment.items()
        for each in some
    )


class ConsumerGroupModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.driver = GroupDriver.of(is_lazy=True)
        self.clients: dict[int, ModelConsumer] = {}
        self.made = 0
        self.partitions: dict[str, int] = {}
        self.incarnations = dict.fromkeys(NAMES, 0)
        self.epoch = 0
        self.inline_cost_max = targets.INLINE_COST_MAX

    def teardown(self) -> None:
        try:
            if self.clients:
                self.settle()
        finally:
            targets.INLINE_COST_MAX = self.inline_cost_max

    @initialize(inline=st.booleans(), partitions=st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(1, 5))))
    def begin(self, inline: bool, partitions: dict[str, int]) -> None:
        targets.INLINE_COST_MAX = 10_000 if inline else 0
        self.partitions = partitions
        self.driver.set_topics(**partitions)
        for number in range(2):
            self.start(number, (NAMES, None), False, None)
            self.round()

    # What clients do --------------------------------------------------------------------------------------------------

    @rule(
        number=NUMBERS, subscription=SUBSCRIPTIONS, is_static=st.booleans(), assignor=st.sampled_from([None, "range"])
    )
    def start(
        self, number: int, subscription: tuple[tuple[str, ...], str | None], is_static: bool, assignor: str | None
    ) -> None:
        """A process starts, perhaps in place of a killed process."""
        self.made += 1
        instance_id = f"i{number}" if is_static else None
        self.clients[number] = ModelConsumer(f"m{self.made}", instance_id, *subscription, assignor)
        self.beat(number)

    @precondition(lambda self: self.clients)
    @rule(number=NUMBERS)
    def beat(self, number: int) -> None:
        client = self.clients.get(number)
        if client is not None and not client.is_waiting:
            request = client.request()
            self.driver.heartbeat(request, partial(client.take, client.attempt))

    @precondition(lambda self: self.clients)
    @rule(number=NUMBERS)
    def revoke(self, number: int) -> None:
        if number in self.clients:
            self.clients[number].revoke()

    @precondition(lambda self: self.clients)
    @rule(number=NUMBERS, subscription=SUBSCRIPTIONS)
    def subscribe(self, number: int, subscription: tuple[tuple[str, ...], str | None]) -> None:
        client = self.clients.get(number)
        if client is not None and not client.is_waiting:
            client.change_subscription(*subscription)
            self.beat(number)

    @precondition(lambda self: self.clients)
    @rule(number=NUMBERS)
    def lose_answer(self, number: int) -> None:
        if number in self.clients:
            self.clients[number].lose_answer()

    @precondition(lambda self: self.clients)
    @rule(number=NUMBERS, for_a_while=st.booleans())
    def leave(self, number: int, for_a_while: bool) -> None:
        client = self.clients.get(number)
        if client is None or client.is_waiting:
            return
        client.give_up()
        epoch = LEAVE_FOR_A_WHILE_EPOCH if for_a_while and client.instance_id else LEAVE_EPOCH
        self.driver.heartbeat(HeartbeatRequest(client.member_id, epoch, client.instance_id), lambda _: None)
        del self.clients[number]

    @rule()
    def round(self) -> None:
        """Nothing gets lost for a while, but nobody gives partitions up."""
        for number in self.clients:
            self.beat(number)
        self.driver.work()

    # What the broker does ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.driver.saves)
    @rule()
    def save(self) -> None:
        self.driver.save()

    @precondition(lambda self: self.driver.saves)
    @rule()
    def fail_save(self) -> None:
        self.driver.save(ErrorCode.unknown_server_error)

    @precondition(lambda self: self.driver.assignments)
    @rule()
    def assign(self) -> None:
        self.driver.assign()

    @precondition(lambda self: self.driver.regexes)
    @rule()
    def match(self) -> None:
        self.driver.match()

    @rule()
    def rebalance(self) -> None:
        assert bool(len(self.group._core.members)) == self.group.rebalance(self.driver.now)
        self.driver.settle()

    @rule(number=NUMBERS)
    def time_out(self, number: int) -> None:
        client = self.clients.get(number)
        if client is not None:
            client.may_be_fenced = True
            is_member = client.member_id in self.group._core.members
            assert is_member == self.group.time_out(client.member_id, self.driver.now)
            self.driver.settle()

    @rule(seconds=st.sampled_from([0.5, 2.0, 20.0, 50.0]))
    def pass_time(self, seconds: float) -> None:
        for client in self.clients.values():
            client.may_be_fenced |= seconds >= 20
        self.driver.pass_time(seconds)

    @rule(name=st.sampled_from(NAMES), more=st.integers(1, 2))
    def grow(self, name: str, more: int) -> None:
        self.partitions[name] = self.partitions.get(name, 0) + more
        self.set_topics()

    @rule(name=st.sampled_from(NAMES))
    def delete_topic(self, name: str) -> None:
        if self.partitions.pop(name, None) is not None:
            self.incarnations[name] += 1
            self.set_topics()

    def set_topics(self) -> None:
        self.driver.set_topics_with(self.partitions, self.incarnations)

    @rule()
    def kill(self) -> None:
        for client in self.clients.values():
            if client.is_waiting:
                client.lose_answer()
        self.driver.restart()
        self.epoch = 0

    # What is always true ----------------------------------------------------------------------------------------------

    @property
    def group(self) -> ConsumerGroup:
        return self.driver.group

    @invariant()
    def what_a_client_reads_belongs_to_its_member(self) -> None:
        for client in self.clients.values():
            member = self.group._core.members.get(client.member_id)
            if member is None:
                assert not client.holds or client.may_be_fenced, client
            else:
                assert client.holds <= owned(member), (client, member)
                assert client.told_epoch <= max(member.epoch, member.previous_epoch) or member.epoch == 0

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        everything = [each for member in self.group._core.members for each in owned(member)]
        assert len(everything) == len(set(everything))

    @invariant()
    def epochs_never_go_back(self) -> None:
        assert self.group.epoch >= self.epoch
        self.epoch = self.group.epoch
        for client in self.clients.values():
            assert client.told_epoch <= self.group._core.targets.assignment_epoch
        assert self.group._core.targets.assignment_epoch <= self.group.epoch

    @invariant()
    def the_group_wakes_in_time(self) -> None:
        assert self.group.wake <= self.group._core.schedule.next()

    # In the end -------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """The faults stop. Members without clients time out."""
        self.driver.is_lazy = False
        self.driver.work()
        for _ in range(40):
            for number, client in self.clients.items():
                if client.is_waiting:
                    client.lose_answer()
                client.revoke()
                self.beat(number)
            self.driver.pass_time(5.0)
        group = self.group
        assert group.state is GroupState.STABLE, group.describe()
        assert {each.member_id for each in group._core.members} == {each.member_id for each in self.clients.values()}
        for client in self.clients.values():
            member = group._core.members.get(client.member_id)
            assert member is not None
            assert client.epoch == member.epoch == group.epoch
            assert client.holds == client.target == owned(member), (client, member)
        self.check_assignment()
        held = {number: client.holds for number, client in self.clients.items()}
        self.driver.restart()
        for _ in range(6):
            for number, client in self.clients.items():
                client.revoke()
                self.beat(number)
        assert held == {number: client.holds for number, client in self.clients.items()}
        for number in list(self.clients):
            self.leave(number, for_a_while=False)
        assert self.group.size_bytes == 0
        assert set(self.driver.rows) == {""}

    def check_assignment(self) -> None:
        subscribed = {number: self.subscribed(client) for number, client in self.clients.items()}
        wanted = {
            (topic_id(name, self.incarnations[name]), each)
            for name in frozenset().union(*subscribed.values())
            for each in range(self.partitions[name])
        }
        assert wanted == {each for client in self.clients.values() for each in client.holds}
        if self.group.describe().assignor == "range":
            return
        loads = {number: len(client.holds) for number, client in self.clients.items()}
        topics = {
            number: {topic_id(name, self.incarnations[name]) for name in names} for number, names in subscribed.items()
        }
        for number, client in self.clients.items():
            for topic, _ in client.holds:
                for other in self.clients:
                    assert topic not in topics[other] or loads[number] - loads[other] < 2, loads

    def subscribed(self, client: ModelConsumer) -> frozenset[str]:
        matches = {None: (), "a.*": ("a", "ab"), "ab?": ("a", "ab"), "c": ()}[client.regex]
        return frozenset((*client.names, *matches)) & self.partitions.keys()


pytest.importorskip("re2", reason="google-re2 is not installed")
ConsumerGroupModel.TestCase.settings = settings(stateful_step_count=50, max_examples=100, deadline=None)
TestConsumerGroupModel = ConsumerGroupModel.TestCase
