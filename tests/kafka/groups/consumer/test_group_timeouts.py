"""Members that are silent, or do not give up partitions on request, are fenced in time."""

from math import inf

from broker.kafka.groups.consumer.values import ConsumerGroupLimits, HeartbeatResult
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.consumer.consumer_group_driver import Client, GroupDriver, settle


def test_member_without_heartbeat_is_fenced_after_its_session() -> None:
    driver = GroupDriver.of(ConsumerGroupLimits(session_timeout_ms=10_000), t=4)
    silent, other = Client(driver, "a"), Client(driver, "b")
    settle([silent, other])
    for _ in range(3):
        driver.pass_time(4.0)
        other.beat()
    settle([other])
    assert other.count == 4
    assert silent.beat().error is ErrorCode.unknown_member_id
    assert silent.beat().error is ErrorCode.none


def test_heartbeat_begins_the_session_anew() -> None:
    driver = GroupDriver.of(ConsumerGroupLimits(session_timeout_ms=10_000), t=4)
    client = Client(driver, "a")
    for _ in range(5):
        assert client.beat().error is ErrorCode.none
        driver.pass_time(9.0)
    assert driver.group.member_count == 1


def test_member_without_revocation_in_rebalance_timeout_is_fenced() -> None:
    driver = GroupDriver.of(t=2)
    stubborn = Client(driver, "a", rebalance_timeout_ms=30_000)
    stubborn.beat()
    other = Client(driver, "b")
    other.beat()
    stubborn.keeps = True
    for _ in range(5):
        stubborn.beat()
        other.beat()
        assert other.count == 0
        driver.pass_time(5.0)
    driver.pass_time(10.0)
    settle([other])
    assert other.count == 2
    assert stubborn.beat().error is ErrorCode.unknown_member_id


def test_only_revocation_ends_the_rebalance_timeout() -> None:
    driver = GroupDriver.of(t=2)
    slow, other = Client(driver, "a", rebalance_timeout_ms=30_000), Client(driver, "b")
    slow.beat()
    other.beat()
    slow.beat()
    for _ in range(8):
        settle([slow, other])
        driver.pass_time(10.0)
    assert driver.group.member_count == 2


def test_member_unaware_of_revocation_is_not_fenced() -> None:
    driver = GroupDriver.of(t=2)
    owner, other = Client(driver, "a", rebalance_timeout_ms=30_000), Client(driver, "b")
    owner.beat()
    other.beat()
    driver.is_lazy = True
    answers: list[HeartbeatResult] = []
    driver.heartbeat(owner.request(), answers.append)
    assert not answers  # it waits for the disk
    for _ in range(4):
        driver.pass_time(25.0)
        driver.heartbeat(other.request(), other.take)
    assert driver.group.member_count == 2
    driver.is_lazy = False
    driver.work()
    owner.take(answers[0])
    assert owner.count == 1
    assert owner.is_report_due
    owner.is_report_due = False  # the report is lost
    driver.pass_time(25.0)
    assert owner.beat().error is ErrorCode.none
    driver.pass_time(6.0)
    assert owner.beat().error is ErrorCode.unknown_member_id


def test_unheard_member_is_fenced_after_silent_session() -> None:
    driver = GroupDriver.of(t=2, is_lazy=True)
    client = Client(driver, "a")
    driver.heartbeat(client.request(), client.take)
    driver.pass_time(100.0)
    assert client.last is None
    driver.work()
    assert driver.group.member_count == 1
    driver.pass_time(44.0)
    assert driver.group.member_count == 1
    driver.pass_time(2.0)
    driver.work()
    assert driver.group.member_count == 0


def test_empty_group_has_nothing_to_wake_for() -> None:
    driver = GroupDriver.of(t=2)
    assert driver.group.wake == inf
    client = Client(driver, "a")
    client.beat()
    assert driver.group.wake == 45.0
    client.leave()
    driver.pass_time(100.0)
    assert driver.group.wake == inf


def test_after_a_restart_members_have_a_whole_session() -> None:
    driver = GroupDriver.of(t=2)
    client = Client(driver, "a")
    client.beat()
    driver.pass_time(40.0)
    driver.restart()
    driver.pass_time(40.0)
    assert client.beat().error is ErrorCode.none
    driver.pass_time(46.0)
    assert driver.group.member_count == 0
