"""Classic members in a consumer group: they are reconciled like the others, by JoinGroup and SyncGroup."""

import attrs
import pytest

from broker.kafka.groups.consumer.values import ConsumerGroupLimits, HeartbeatRequest, MigrationPolicy
from broker.kafka.groups.values import JoinResult
from protocol.kafka.errors import ErrorCode
from protocol.kafka.messages.consumer_protocol import encode_assignment
from tests.kafka.groups.consumer.classic_client import ClassicClient
from tests.kafka.groups.consumer.consumer_group_driver import Client, GroupDriver, topic_id


def settle(*clients: Client | ClassicClient) -> None:
    for _ in range(12):
        for client in clients:
            client.beat()


@pytest.mark.parametrize("is_eager", [False, True])
def test_partitions_move_between_members_of_both_protocols(is_eager: bool) -> None:
    driver = GroupDriver.of(t=4)
    new, old = Client(driver, "new"), ClassicClient(driver, is_eager=is_eager)
    settle(new)
    settle(new, old)
    assert (new.count, old.count) == (2, 2)
    assert new.partitions | old.partitions == {(topic_id("t"), each) for each in range(4)}
    second = Client(driver, "second")
    settle(new, old, second)
    assert sorted((new.count, old.count, second.count)) == [1, 1, 2]
    new.leave()
    settle(old, second)
    assert (old.count, second.count) == (2, 2)
    assert old.heartbeat() is ErrorCode.none


def test_classic_member_gets_id_first_and_nobody_leads() -> None:
    driver = GroupDriver.of(t=2)
    Client(driver, "new").beat()
    client = ClassicClient(driver, new_id="given")
    result = client.join()
    assert (result.error, result.member_id, result.leader, result.members) == (ErrorCode.none, "given", "", ())
    assert (result.protocol_type, result.protocol_name) == ("consumer", "range")
    assert result.generation == driver.group.epoch == 2


def test_cooperative_member_gives_up_before_it_goes_on() -> None:
    driver = GroupDriver.of(t=2)
    anchor, first = Client(driver, "z", ("u",)), ClassicClient(driver, new_id="first")
    anchor.beat()
    first.join()
    first.sync()
    assert first.count == 2
    generation = first.generation
    second = Client(driver, "a")
    second.beat()
    assert first.heartbeat() is ErrorCode.rebalance_in_progress
    assert first.join().generation == generation
    first.sync()
    assert first.count == 1
    assert second.beat().assignment is None, "not given up yet, as far as the group knows"
    assert first.heartbeat() is ErrorCode.rebalance_in_progress
    assert first.join().generation > generation
    assert second.beat().assignment is not None
    assert first.heartbeat() is ErrorCode.none


def test_waiting_member_is_told_when_partitions_are_free() -> None:
    driver = GroupDriver.of(t=2)
    holder = Client(driver, "a")
    holder.beat()
    client = ClassicClient(driver)
    client.join()
    client.sync()
    assert client.count == 0
    assert client.heartbeat() is ErrorCode.none
    holder.beat()
    holder.beat()
    assert client.heartbeat() is ErrorCode.rebalance_in_progress
    client.join()
    client.sync()
    assert client.count == 1


def test_classic_member_without_rejoin_or_sync_is_fenced() -> None:
    driver = GroupDriver.of(t=2)
    anchor, client = Client(driver, "a"), ClassicClient(driver)
    anchor.beat()
    client.join()
    for _ in range(8):  # it never syncs, but is alive
        driver.pass_time(8.0)
        anchor.beat()
        client.heartbeat()
    assert client.heartbeat() is ErrorCode.unknown_member_id
    client.member_id = ""
    settle(anchor, client)
    Client(driver, "b").beat()
    for _ in range(9):
        driver.pass_time(8.0)
        anchor.beat()
        client.heartbeat()
    assert client.heartbeat() is ErrorCode.unknown_member_id


def test_classic_member_has_its_requested_session_timeout() -> None:
    driver = GroupDriver.of(t=2)
    anchor, client = Client(driver, "a"), ClassicClient(driver)
    settle(anchor, client)
    driver.pass_time(9.0)
    assert driver.group.check_commit(client.member_id, None, client.generation, driver.now) is ErrorCode.none
    driver.pass_time(9.0)
    assert client.heartbeat() is ErrorCode.none
    driver.pass_time(11.0)
    assert client.heartbeat() is ErrorCode.unknown_member_id


def test_requests_that_do_not_fit_are_refused() -> None:
    driver = GroupDriver.of(t=2)
    anchor, client = Client(driver, "a"), ClassicClient(driver)
    settle(anchor, client)
    assert client.sync(client.generation + 1).error is ErrorCode.illegal_generation
    assert client.sync(protocol_name="other").error is ErrorCode.inconsistent_group_protocol
    assert driver.group.check_commit(client.member_id, None, 1, 0.0) is ErrorCode.illegal_generation
    assert driver.group.classic_heartbeat("a", None, anchor.epoch, 0.0) is ErrorCode.unknown_member_id
    assert driver.group.classic_heartbeat("nobody", None, 1, 0.0) is ErrorCode.unknown_member_id
    answers: list[JoinResult] = []
    for changed in (
        {"protocol_type": "connect"},
        {"protocols": (("other", client.protocols[0][1]),)},
        {"protocols": ()},
        {"protocols": (("range", b"\x00"),)},
    ):
        driver.group.classic_join(attrs.evolve(client.join_request(), **changed), driver.topics, answers.append, 0.0)
        driver.settle()
    assert {answer.error for answer in answers} == {ErrorCode.inconsistent_group_protocol}


def test_full_group_takes_no_classic_member() -> None:
    driver = GroupDriver.of(ConsumerGroupLimits(max_size=1), t=2)
    Client(driver, "a").beat()
    assert ClassicClient(driver, "b").join().error is ErrorCode.group_max_size_reached


def test_classic_claims_of_missing_topics_are_ignored() -> None:
    driver = GroupDriver.of(t=2)
    anchor, client = Client(driver, "a"), ClassicClient(driver, "b", owned={"none": [1], "t": [7, -1]})
    settle(anchor, client)
    assert client.count == 1


def test_static_members_change_protocol_and_keep_their_partitions() -> None:
    driver = GroupDriver.of(t=4)
    anchor, client = Client(driver, "a"), ClassicClient(driver, instance_id="i", new_id="old")
    settle(anchor, client)
    mine = client.partitions
    new = Client(driver, "new", instance_id="i")
    settle(anchor, new)
    assert new.partitions == mine
    assert client.heartbeat() is ErrorCode.fenced_instance_id


def test_member_changes_protocol_under_its_member_id() -> None:
    driver = GroupDriver.of(t=4)
    anchor, client = Client(driver, "a"), ClassicClient(driver)
    settle(anchor, client)
    new = Client(driver, client.member_id)
    settle(anchor, new)
    assert new.count == 2
    assert [member.member_type for member in driver.group.describe().members] == [1, 1]


def test_classic_members_survive_a_restart() -> None:
    driver = GroupDriver.of(t=4)
    anchor, client = Client(driver, "a"), ClassicClient(driver)
    settle(anchor, client)
    driver.restart()
    anchor.beat()
    assert client.heartbeat() is ErrorCode.none
    assert client.sync().assignment == encode_assignment(
        {"t": sorted(each for _, each in client.partitions)}, version=1
    )


def test_members_leave_by_leave_group() -> None:
    driver = GroupDriver.of(ConsumerGroupLimits(migration_policy=MigrationPolicy.DISABLED), t=4)
    anchor = Client(driver, "a", instance_id="j")
    client, static = ClassicClient(driver), ClassicClient(driver, instance_id="i", new_id="s")
    settle(anchor, client, static)
    group = driver.group
    assert group.classic_leave("nobody", None, 0.0) is ErrorCode.unknown_member_id
    assert group.classic_leave("", "nobody", 0.0) is ErrorCode.unknown_member_id
    assert group.classic_leave("other", "i", 0.0) is ErrorCode.fenced_instance_id
    assert group.classic_leave(client.member_id, None, 0.0) is ErrorCode.none
    assert group.classic_leave("", "i", 0.0) is ErrorCode.none
    driver.settle()
    settle(anchor)
    assert anchor.count == 4
    assert driver.group.classic_leave("", "j", 0.0) is ErrorCode.none
    assert driver.group.is_empty


def test_join_waits_for_a_large_assignment() -> None:
    driver = GroupDriver.of(t=3000, is_lazy=True)
    anchor, client = Client(driver, "a"), ClassicClient(driver)
    anchor.beat()
    assert client.join().error is ErrorCode.none
    for _ in range(6):
        anchor.beat()
        client.beat()
        driver.work()
    assert client.count == 1500


def test_consumer_heartbeats_do_not_fit_classic_member() -> None:
    driver = GroupDriver.of(t=3)
    anchor, client = Client(driver, "a"), ClassicClient(driver)
    settle(anchor, client)
    result = driver.ask(HeartbeatRequest(client.member_id, client.generation + 5))
    assert result.error is ErrorCode.fenced_member_epoch
