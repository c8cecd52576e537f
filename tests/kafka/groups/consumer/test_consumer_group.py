"""Members of a consumer group join, get partitions, hand them over, and leave."""

import attrs
import pytest

from broker.kafka.groups.consumer.members import GroupState
from broker.kafka.groups.consumer.values import ConsumerGroupLimits, HeartbeatRequest
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.consumer.consumer_group_driver import Client, GroupDriver, settle, topic_id


def test_single_joining_member_gets_everything_at_once() -> None:
    driver = GroupDriver.of(t=3)
    result = Client(driver, "a").beat()
    assert (result.error, result.member_id, result.member_epoch) == (ErrorCode.none, "a", 1)
    assert result.assignment == ((topic_id("t"), (0, 1, 2)),)
    assert result.heartbeat_interval_ms == 5000
    assert driver.group.state is GroupState.STABLE


def test_stable_heartbeat_is_answered_at_once_without_assignment() -> None:
    driver = GroupDriver.of(t=3, is_lazy=True)
    client = Client(driver, "a")
    client.beat()
    client.beat()
    result = driver.group.heartbeat(client.request(), driver.topics, lambda _: None, driver.now)
    assert result is not None
    assert (result.error, result.member_epoch, result.assignment) == (ErrorCode.none, 1, None)
    assert driver.group.take_effects() == []


def test_answer_with_news_waits_until_it_is_durable() -> None:
    driver = GroupDriver.of(t=3, is_lazy=True)
    answers: list[object] = []
    driver.heartbeat(Client(driver, "a").request(), answers.append)
    assert answers == []
    driver.save()
    assert len(answers) == 1


def test_repeated_heartbeat_waits_for_the_same_save() -> None:
    driver = GroupDriver.of(t=3, is_lazy=True)
    client = Client(driver, "a")
    answers: list[object] = []
    driver.heartbeat(client.request(), answers.append)
    driver.heartbeat(client.request(), answers.append)
    assert answers == []
    assert len(driver.saves) == 1
    driver.save()
    assert len(answers) == 2


def test_failed_save_is_reported_and_retried_with_heartbeat() -> None:
    driver = GroupDriver.of(t=3, is_lazy=True)
    client = Client(driver, "a")
    driver.heartbeat(client.request(), client.take)
    driver.save(ErrorCode.unknown_server_error)
    assert client.last is not None
    assert client.last.error is ErrorCode.not_coordinator
    assert driver.rows == {}
    assert client.beat().error is ErrorCode.none
    assert set(driver.rows) == {"", "m/a", "a/a"}


def test_member_is_asked_to_give_up_partitions_until_it_has() -> None:
    """An answer may come too late for the client, and librdkafka does not ask again."""
    driver = GroupDriver.of(t=2)
    first, second = Client(driver, "a"), Client(driver, "b")
    first.beat()
    second.beat()
    lost = driver.ask(first.request())
    assert lost.assignment == ((topic_id("t"), (0,)),)
    assert first.beat().assignment == lost.assignment
    first.beat()
    assert second.beat().assignment == ((topic_id("t"), (1,)),)


def test_partition_moves_only_after_its_owner_released_it() -> None:
    driver = GroupDriver.of(t=2)
    first, second = Client(driver, "a"), Client(driver, "b")
    first.beat()
    assert second.beat().assignment == ()
    assert first.count == 2
    assert second.beat().assignment is None
    told = first.beat()  # it is asked to give one up, and stays in its epoch until it has
    assert told.assignment == ((topic_id("t"), (0,)),)
    assert told.member_epoch == 1
    assert driver.group.state is GroupState.RECONCILING
    assert second.beat().assignment is None
    assert first.beat().member_epoch == 2  # it reports only partition 0
    assert second.beat().assignment == ((topic_id("t"), (1,)),)
    settle([first, second])
    assert driver.group.state is GroupState.STABLE


def test_partitions_of_leaving_member_go_to_others() -> None:
    driver = GroupDriver.of(t=4)
    clients = [Client(driver, name) for name in "abc"]
    settle(clients)
    left = clients.pop()
    assert left.leave().member_epoch == -1
    settle(clients)
    assert [client.count for client in clients] == [2, 2]
    assert left.leave().error is ErrorCode.unknown_member_id


def test_wrong_member_epoch_fences_the_member() -> None:
    driver = GroupDriver.of(t=2)
    client, other = Client(driver, "a"), Client(driver, "b")
    settle([client, other])
    for epoch in (client.epoch + 1, client.epoch - 1):
        result = driver.ask(HeartbeatRequest("a", epoch, client_id="client", client_host="/127.0.0.1"))
        assert result.error is ErrorCode.fenced_member_epoch
        assert f"member epoch ({epoch})" in (result.message or "")


def test_previous_epoch_is_accepted_with_subset_of_partitions() -> None:
    driver = GroupDriver.of(t=4)
    first, second = Client(driver, "a"), Client(driver, "b")
    first.beat()
    second.beat()
    first.beat()  # gives two up
    before = first.epoch
    first.beat()
    assert first.epoch > before
    lost = attrs.evolve(first.full_request(), member_epoch=before)
    assert driver.ask(lost).member_epoch == first.epoch
    too_much = attrs.evolve(lost, owned=((topic_id("t"), (0, 1, 2, 3)),))
    assert driver.ask(too_much).error is ErrorCode.fenced_member_epoch


def test_fenced_member_joins_again_and_keeps_its_place() -> None:
    driver = GroupDriver.of(t=4)
    first, second = Client(driver, "a"), Client(driver, "b")
    settle([first, second])
    mine = first.partitions
    first.epoch, first.owned = 0, {}
    settle([first, second])
    assert first.partitions == mine


def test_full_request_is_answered_with_the_assignment() -> None:
    driver = GroupDriver.of(t=2)
    client = Client(driver, "a")
    client.beat()
    assert driver.ask(client.request()).assignment is None
    assert driver.ask(client.full_request()).assignment == ((topic_id("t"), (0, 1)),)


def test_unknown_member_is_told_so() -> None:
    driver = GroupDriver.of(t=2)
    result = driver.ask(HeartbeatRequest("nobody", 3))
    assert result.error is ErrorCode.unknown_member_id
    assert result.message == "Member nobody is not a member of group group."


def test_full_group_takes_no_more_members() -> None:
    driver = GroupDriver.of(ConsumerGroupLimits(max_size=1), t=2)
    Client(driver, "a").beat()
    result = Client(driver, "b").beat()
    assert result.error is ErrorCode.group_max_size_reached
    assert result.message == "The consumer group has reached its maximum capacity of 1 members."
    assert Client(driver, "a").beat().error is ErrorCode.none


def test_oversized_member_is_refused_without_any_change() -> None:
    driver = GroupDriver.of(ConsumerGroupLimits(max_bytes=100_000), t=2)
    client = Client(driver, "a")
    client.beat()
    before = driver.group.size_bytes, driver.group.epoch, dict(driver.rows)
    hostile = Client(driver, "b", tuple(f"{number:0>200}" for number in range(10_000)))
    assert hostile.beat().error is ErrorCode.group_max_size_reached
    assert (driver.group.size_bytes, driver.group.epoch, driver.rows) == before
    result = driver.group.heartbeat(Client(driver, "c", ("u",)).request(), driver.topics, print, 0.0, free_bytes=10)
    assert result is not None
    assert result.error is ErrorCode.coordinator_not_available


@pytest.mark.parametrize("field", ["client_id", "rack_id", "instance_id"])
def test_member_growing_too_large_later_is_refused(field: str) -> None:
    """Joining with little metadata must not open the way to any amount of memory."""
    driver = GroupDriver.of(ConsumerGroupLimits(max_bytes=10_000), t=2)
    client = Client(driver, "a")
    settle([client])
    before = driver.group.size_bytes
    request = client.join_request() if field == "instance_id" else client.full_request()
    setattr(request, field, "x" * 10_000)
    assert client.beat(request).error is ErrorCode.group_max_size_reached
    assert before == driver.group.size_bytes
    assert client.beat(client.full_request()).error is ErrorCode.none


def test_group_bytes_are_those_of_its_members() -> None:
    driver = GroupDriver.of(t=20, u=5)
    clients = [Client(driver, name, ("t", "u")) for name in "abcd"]
    settle(clients)
    assert driver.group.size_bytes > 4 * 1024
    for client in clients:
        client.leave()
    assert driver.group.size_bytes == 0
    assert driver.group.state is GroupState.EMPTY
    assert set(driver.rows) == {""}


def test_members_that_subscribe_to_something_else_get_it() -> None:
    driver = GroupDriver.of(t=2, u=2)
    first, second = Client(driver, "a"), Client(driver, "b")
    settle([first, second])
    first.names = ("u",)
    request = attrs.evolve(first.request(), subscribed_topic_names=("u",))
    first.beat(request)
    settle([first, second])
    assert first.partitions == {(topic_id("u"), 0), (topic_id("u"), 1)}
    assert second.partitions == {(topic_id("t"), 0), (topic_id("t"), 1)}


def test_new_partitions_and_new_topics_are_assigned() -> None:
    driver = GroupDriver.of(t=2)
    client = Client(driver, "a", ("t", "u"))
    settle([client])
    driver.set_topics(t=3, u=1)
    settle([client])
    assert client.count == 4
    driver.set_topics(u=1)
    settle([client])
    assert client.partitions == {(topic_id("u"), 0)}


def test_topics_that_nobody_subscribes_to_change_nothing() -> None:
    driver = GroupDriver.of(t=2)
    settle([client := Client(driver, "a")])
    epoch = driver.group.epoch
    driver.set_topics(t=2, other=5)
    settle([client])
    assert driver.group.epoch == epoch


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        ("a", 1, ErrorCode.none),
        ("a", 0, ErrorCode.stale_member_epoch),
        ("a", 2, ErrorCode.stale_member_epoch),
        ("b", 1, ErrorCode.unknown_member_id),
        ("", -1, ErrorCode.unknown_member_id),
    ],
)
def test_only_members_commit_and_only_in_their_epoch(member_id: str, epoch: int, error: ErrorCode) -> None:
    driver = GroupDriver.of(t=2)
    Client(driver, "a").beat()
    assert driver.group.check_commit(member_id, None, epoch, 0.0) is error
    assert driver.group.check_fetch(member_id, epoch) is error


def test_anybody_commits_to_empty_group_and_reads_any() -> None:
    driver = GroupDriver.of(t=2)
    assert driver.group.check_commit("", None, -1, 0.0) is ErrorCode.none
    Client(driver, "a").beat()
    assert driver.group.check_fetch(None, -1) is ErrorCode.none


def test_group_is_deleted_once_it_is_empty() -> None:
    driver = GroupDriver.of(t=2)
    client = Client(driver, "a")
    client.beat()
    assert driver.group.delete() is ErrorCode.non_empty_group
    client.leave()
    assert driver.group.is_empty
    assert driver.group.delete() is ErrorCode.none
    assert driver.group.is_dead
    assert driver.group.state_name == "Dead"
    assert driver.group.delete() is ErrorCode.group_id_not_found
    assert client.beat().error is ErrorCode.coordinator_not_available


def test_group_describes_itself() -> None:
    driver = GroupDriver.of(t=2)
    Client(driver, "a", assignor="range", instance_id="i").beat()
    described = driver.group.describe()
    assert (described.state, described.group_epoch, described.assignment_epoch) == ("Stable", 1, 1)
    assert described.assignor == "range"
    [member] = described.members
    assert (member.member_id, member.instance_id, member.member_epoch, member.member_type) == ("a", "i", 1, 1)
    assert member.subscribed_topic_names == ("t",)
    assert member.assignment == member.target_assignment == {topic_id("t"): frozenset({0, 1})}


def test_assignor_that_most_members_name_is_used() -> None:
    driver = GroupDriver.of(t=4)
    clients = [Client(driver, "a", assignor="range"), Client(driver, "b", assignor="range"), Client(driver, "c")]
    settle(clients)
    assert driver.group.describe().assignor == "range"
    assert clients[0].partitions == {(topic_id("t"), 0), (topic_id("t"), 1)}
