"""Static members leave for a while, come back under another member id, and are not replaced by accident."""

import attrs
import pytest

from broker.kafka.groups.consumer.values import ConsumerGroupLimits, HeartbeatRequest
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.consumer.consumer_group_driver import Client, GroupDriver, settle


def test_returning_static_member_gets_its_partitions_without_moves() -> None:
    driver = GroupDriver.of(t=4)
    first, other = Client(driver, "a", instance_id="i"), Client(driver, "b")
    settle([first, other])
    mine, epoch = first.partitions, driver.group.epoch
    assert first.leave(-2).member_epoch == -2
    assert other.beat().assignment is None
    again = Client(driver, "a2", instance_id="i")
    again.beat()
    assert again.partitions == mine
    assert (again.epoch, driver.group.epoch) == (epoch, epoch)
    assert {"m/a2", "a/a2"} <= set(driver.rows)
    assert "m/a" not in driver.rows
    assert first.beat(attrs.evolve(first.full_request(), member_epoch=epoch)).error is ErrorCode.fenced_instance_id


def test_static_member_that_returns_too_late_is_fenced() -> None:
    driver = GroupDriver.of(t=4)
    first, other = Client(driver, "a", instance_id="i"), Client(driver, "b")
    settle([first, other])
    first.leave(-2)
    driver.pass_time(30.0)
    other.beat()
    driver.pass_time(30.0)
    settle([other])
    assert other.count == 4


def test_place_of_static_member_without_leave_stays_taken() -> None:
    driver = GroupDriver.of(t=4)
    settle([first := Client(driver, "a", instance_id="i")])
    thief = Client(driver, "b", instance_id="i")
    result = thief.beat()
    assert result.error is ErrorCode.unreleased_instance_id
    assert result.message == (
        "Static member b with instance id i cannot join the group because the instance id is owned by a member."
    )
    assert first.beat().error is ErrorCode.none


def test_static_member_may_rejoin_under_its_own_id() -> None:
    driver = GroupDriver.of(t=4)
    client = Client(driver, "a", instance_id="i")
    client.beat()
    assert client.beat(client.join_request()).error is ErrorCode.none
    assert client.count == 4
    client.leave(-2)
    assert client.beat().error is ErrorCode.none


def test_full_group_takes_a_static_member_back() -> None:
    driver = GroupDriver.of(ConsumerGroupLimits(max_size=1), t=4)
    client = Client(driver, "a", instance_id="i")
    client.beat()
    client.leave(-2)
    assert Client(driver, "b", instance_id="i").beat().error is ErrorCode.none


def test_static_member_leaving_for_good_gives_up_place() -> None:
    driver = GroupDriver.of(t=4)
    client = Client(driver, "a", instance_id="i")
    client.beat()
    client.leave(-1)
    assert driver.group.is_empty
    assert Client(driver, "b", instance_id="i").beat().error is ErrorCode.none


@pytest.mark.parametrize("epoch", [-1, -2, 1])
def test_unknown_instance_id_is_refused(epoch: int) -> None:
    driver = GroupDriver.of(t=4)
    Client(driver, "a").beat()
    result = driver.ask(HeartbeatRequest("a", epoch, "nobody"))
    assert (result.error, result.message) == (ErrorCode.unknown_member_id, "Instance id nobody is unknown.")


@pytest.mark.parametrize("epoch", [-1, -2, 1])
def test_wrong_member_id_for_instance_id_is_fenced(epoch: int) -> None:
    driver = GroupDriver.of(t=4)
    Client(driver, "a", instance_id="i").beat()
    result = driver.ask(HeartbeatRequest("b", epoch, "i"))
    assert result.error is ErrorCode.fenced_instance_id
    assert driver.group.check_commit("b", "i", 1, 0.0) is ErrorCode.fenced_instance_id


def test_temporary_leave_gives_up_partitions_being_revoked() -> None:
    driver = GroupDriver.of(t=2)
    first, other = Client(driver, "a", instance_id="i"), Client(driver, "b")
    first.beat()
    other.beat()
    first.keeps = True
    first.beat()
    first.leave(-2)
    settle([other])
    assert other.count == 1


def test_static_member_is_away_over_a_restart() -> None:
    driver = GroupDriver.of(t=4)
    first, other = Client(driver, "a", instance_id="i"), Client(driver, "b")
    settle([first, other])
    mine, epoch = first.partitions, driver.group.epoch
    first.leave(-2)
    driver.restart()
    again = Client(driver, "a2", instance_id="i")
    settle([again, other])
    assert again.partitions == mine
    assert driver.group.epoch == epoch


def test_static_member_returning_during_computation_gets_its_partitions() -> None:
    driver = GroupDriver.of(t=1000, is_lazy=True)
    first, other = Client(driver, "a", instance_id="i"), Client(driver, "b")
    settle([first, other])
    first.leave(-2)
    driver.set_topics(t=1200)
    driver.heartbeat(other.request(), other.take)
    assert driver.assignments
    again = Client(driver, "a2", instance_id="i")
    settle([again, other])
    assert (again.count, other.count) == (600, 600)
