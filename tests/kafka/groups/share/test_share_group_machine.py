"""A share group under any order of events, with saves that fail and kill -9 at any moment."""

from collections import Counter
from typing import Any

import attrs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.kafka.groups.share import members as rows
from broker.kafka.groups.share.share_group import ShareGroup
from broker.kafka.groups.share.target_assignment import ShareGroupState
from broker.kafka.groups.share.values import ShareGroupDescription
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.share.group_driver import Driver, FakeTopics, Reply, flat

NAMES = ("orders", "payments", "later")
members = st.sampled_from(["a", "b", "c", "d"])
subscriptions = st.sets(st.sampled_from(NAMES), min_size=1).map(sorted)
failures = st.sampled_from([ErrorCode.none, ErrorCode.none, ErrorCode.not_coordinator])


def described(group: ShareGroup) -> ShareGroupDescription:
    """Members in a fixed order: the catalogue has none."""
    description = group.describe()
    return attrs.evolve(description, members=sorted(description.members, key=lambda member: member.member_id))


class ShareGroupMachine(RuleBasedStateMachine):
    """The model has the clients' knowledge: the last epoch and partitions of each, which must stay true."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(FakeTopics(orders=3, payments=1))
        self.waiting: list[Reply] = []
        # The last answer to each client, by member id: epoch and assignment.
        self.told: dict[str, tuple[int, Any]] = {}
        self.left: set[str] = set()  # was told that it has left, and has not joined since

    # Members --------------------------------------------------------------------------------------------------------

    def _sent(self, reply: Reply) -> None:
        self.waiting.append(reply)
        self._read_answers()

    def _read_answers(self) -> None:
        for reply in [reply for reply in self.waiting if not reply.is_waiting]:
            self.waiting.remove(reply)
            result = reply.result
            if result.error in (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch):
                self.told.pop(reply.member_id, None)
            elif result.error:
                pass
            elif result.member_epoch == -1:
                self.told.pop(reply.member_id, None)
            else:
                known = self.told.get(reply.member_id, (0, None))[1]
                now = flat(result.assignment) if result.assignment is not None else known
                self.told[reply.member_id] = result.member_epoch, now

    @rule(member=members, names=subscriptions)
    def join(self, member: str, names: list[str]) -> None:
        self._sent(self.driver.send(member, 0, *names))

    @precondition(lambda self: self.told)
    @rule(data=st.data(), names=st.none() | subscriptions)
    def heartbeat(self, data: st.DataObject, names: list[str] | None) -> None:
        member = data.draw(st.sampled_from(sorted(self.told)))
        self._sent(self.driver.send(member, self.told[member][0], *(names or ())))

    @rule(member=members)
    def leave(self, member: str) -> None:
        reply = self.driver.send(member, -1)
        self.told.pop(member, None)  # it has stopped to read
        self._sent(reply)

    @rule(seconds=st.sampled_from([1.0, 5.0, 40.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.driver.wait(seconds)
        self._read_answers()

    @rule()
    def rebalance(self) -> None:
        assert bool(len(self.driver.group.members)) == self.driver.group.rebalance(self.driver.now)
        self.driver.settle()
        self._read_answers()

    @rule(member=members)
    def time_out(self, member: str) -> None:
        is_member = member in self.driver.group.members
        assert is_member == self.driver.group.time_out(member, self.driver.now)
        self.driver.settle()
        self._read_answers()

    # The coordinator ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.driver.due)
    @rule()
    def begin_run(self) -> None:
        self.driver.begin_run()
        self._read_answers()

    @precondition(lambda self: self.driver.tasks)
    @rule()
    def end_run(self) -> None:
        self.driver.end_run()
        self._read_answers()

    @precondition(lambda self: self.driver.initialise)
    @rule(error=failures)
    def end_initialise(self, error: ErrorCode) -> None:
        self.driver.end_initialise(error)
        self._read_answers()

    @precondition(lambda self: self.driver.saves)
    @rule(error=failures)
    def end_save(self, error: ErrorCode) -> None:
        self.driver.end_save(error)
        self._read_answers()

    @precondition(lambda self: "" in self.driver.rows)
    @rule()
    def kill_and_start(self) -> None:
        stored = [name for name in self.driver.rows if name.startswith("m/")]
        self.waiting.clear()  # their connections are gone
        self.driver.restart()
        assert self.driver.group.member_count == len(stored)
        for member_id, (epoch, _) in self.told.items():
            member = self.driver.group.members.get(member_id)
            if member is not None:
                assert epoch in (member.epoch, member.previous_epoch), "no client that was answered is fenced"

    # Topics ---------------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 5))
    def change_topic(self, name: str, count: int) -> None:
        topics = self.driver.topics
        present = topics(name)
        if present is None:
            topics.create(name, count)
        elif present[1] < count:
            topics.grow(name, count)
        else:
            topics.delete(name)
        self.driver.group.topics_changed(topics, {name})
        self.driver.settle()

    # What holds -----------------------------------------------------------------------------------------------------

    @invariant()
    def the_state_says_whether_there_are_members(self) -> None:
        group = self.driver.group
        assert group.state is (ShareGroupState.STABLE if len(group.members) else ShareGroupState.EMPTY)

    @invariant()
    def nobody_is_told_of_an_epoch_that_is_not_durable(self) -> None:
        stored = {member.member_id: member for member in self._stored_members()}
        for member_id, (epoch, assignment) in self.told.items():
            member = stored.get(member_id)
            if member is not None:
                assert epoch <= member.epoch
                if epoch == member.epoch and assignment is not None:
                    assert assignment == flat(member.assigned)

    def _stored_members(self) -> Any:
        return rows.decode("g", self.driver.rows).members if "" in self.driver.rows else ()

    @invariant()
    def only_initialised_partitions_are_assigned(self) -> None:
        for member in self.driver.group.members:
            for assignment in (member.target, member.assigned):
                for topic_id, partitions in assignment.items():
                    assert max(partitions) < self.driver.initialised[topic_id]

    @invariant()
    def the_memory_that_is_counted_is_that_of_the_members(self) -> None:
        assert (self.driver.group.size_bytes == 0) == (not len(self.driver.group.members))

    @invariant()
    def whoever_waits_is_waited_for(self) -> None:
        if self.waiting:
            driver = self.driver
            assert driver.due or driver.initialise or driver.tasks or driver.saves

    def teardown(self) -> None:
        """When everything is done and all members have sent heartbeats, every partition has a reader, and all is durable."""
        driver = self.driver
        driver.work()
        for _ in range(3):
            driver.wait(5)
            driver.work()
        for member in list(driver.group.members):
            driver.beat(member.member_id)
        driver.work()
        self._read_answers()
        assert not self.waiting
        group = driver.group
        read: Counter[Any] = Counter()
        wanted = set()
        for member in group.members:
            assert member.epoch == group.epoch == group.assignment_epoch
            assert member.assigned == member.target
            read.update((topic, number) for topic, numbers in member.assigned.items() for number in numbers)
            topics = [driver.topics(name) for name in member.subscription.names]
            mine = {(topic[0], number) for topic in topics if topic for number in range(topic[1])}
            assert bool(mine) == bool(member.assigned)
            wanted |= mine
        assert set(read) == wanted
        if "" in driver.rows:
            before = described(group)
            driver.restart()
            assert described(driver.group) == before


TestShareGroupMachine = ShareGroupMachine.TestCase
TestShareGroupMachine.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
