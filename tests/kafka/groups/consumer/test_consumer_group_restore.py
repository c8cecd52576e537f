"""A consumer group comes back from its rows, also from rows that a failed save has left behind."""

import pytest

from broker.errors import StorageError
from broker.kafka.groups.consumer.consumer_group import ConsumerGroup
from broker.kafka.groups.consumer.members import ConsumerMember, GroupState, MemberState
from broker.kafka.groups.consumer.rows import GroupRow, encode_assignment, encode_group, encode_metadata
from broker.kafka.groups.consumer.values import Assignment, ConsumerGroupLimits
from tests.kafka.groups.consumer.consumer_group_driver import Client, GroupDriver, settle, topic_id

T = topic_id("t")


def rows_of(*members: ConsumerMember, epoch: int = 5, assignment_epoch: int = 5) -> dict[str, bytes]:
    rows = {"": encode_group(GroupRow(epoch, assignment_epoch))}
    for member in members:
        rows[f"m/{member.member_id}"] = encode_metadata(member)
        rows[f"a/{member.member_id}"] = encode_assignment(member)
    return rows


def restored(rows: dict[str, bytes]) -> ConsumerGroup:
    return ConsumerGroup.restore("group", ConsumerGroupLimits(), rows, 0.0)


def assigned(group: ConsumerGroup) -> dict[str, Assignment]:
    return {member.member_id: member.assignment for member in group.describe().members}


def test_settled_group_continues_unchanged_after_restart() -> None:
    driver = GroupDriver.of(t=6)
    clients = [Client(driver, name) for name in "abc"]
    settle(clients)
    before, epoch = driver.group.describe(), driver.group.epoch
    driver.restart()
    assert driver.group.describe() == before
    assert settle(clients) == 0
    assert driver.group.epoch == epoch


def test_rebalance_continues_after_restart() -> None:
    driver = GroupDriver.of(t=6)
    first, second = Client(driver, "a"), Client(driver, "b")
    first.beat()
    second.beat()
    first.beat()
    driver.restart()
    assert driver.group.state is GroupState.ASSIGNING
    settle([first, second])
    assert [first.count, second.count] == [3, 3]
    assert driver.group.state is GroupState.STABLE


def test_revoking_member_has_its_rebalance_timeout_after_restart() -> None:
    driver = GroupDriver.of(t=2)
    stubborn, other = Client(driver, "a"), Client(driver, "b")
    stubborn.beat()
    other.beat()
    stubborn.keeps = True
    stubborn.beat()
    driver.restart()
    for _ in range(6):
        driver.pass_time(11.0)
        stubborn.beat()
        other.beat()
    settle([other])
    assert other.count == 2


def test_topics_changed_during_downtime_are_assigned() -> None:
    driver = GroupDriver.of(t=2)
    settle([client := Client(driver, "a")])
    driver.restart()
    driver.set_topics(t=3)
    settle([client])
    assert client.count == 3


def test_partition_of_two_members_belongs_to_greater_epoch() -> None:
    gave = ConsumerMember("gave", epoch=4, state=MemberState.UNREVOKED_PARTITIONS, revoking={T: frozenset({0, 1})})
    got = ConsumerMember("got", epoch=5, assigned={T: frozenset({0})})
    group = restored(rows_of(gave, got))
    assert assigned(group) == {"gave": {}, "got": {T: frozenset({0})}}
    assert group.epoch == 6


def test_two_members_with_one_instance_id_become_one() -> None:
    group = restored(rows_of(ConsumerMember("old", "i", epoch=5), ConsumerMember("new", "i", epoch=5)))
    assert group.member_count == 1


def test_rows_without_their_other_half_are_deleted() -> None:
    rows = rows_of(ConsumerMember("a", epoch=5), ConsumerMember("b", epoch=5))
    del rows["a/a"], rows["m/b"]
    driver = GroupDriver.of(t=1)
    driver.rows = rows
    driver.restart()
    assert driver.group.is_empty
    Client(driver, "c").beat()
    assert set(driver.rows) == {"", "m/c", "a/c"}


def test_epochs_never_go_back_despite_old_group_row() -> None:
    assert restored(rows_of(ConsumerMember("a", epoch=9), epoch=5)).epoch == 9


def test_member_in_unknown_state_is_assigned_anew() -> None:
    driver = GroupDriver.of(t=2)
    client = Client(driver, "a")
    client.beat()
    driver.rows["a/a"] = driver.rows["a/a"].replace(b"stable", b"resting")
    driver.restart()
    settle([client])
    assert client.count == 2
    assert driver.group.state is GroupState.STABLE


def test_unreadable_rows_are_a_storage_error() -> None:
    rows = rows_of(ConsumerMember("a", epoch=5))
    for row in rows:
        with pytest.raises(StorageError):
            restored({**rows, row: b"{}"})
