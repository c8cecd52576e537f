"""Large assignments are computed without the group's lock, and members that join wait for them."""

from broker.kafka.groups.consumer.targets import AssignmentTask
from broker.kafka.groups.consumer.values import HeartbeatResult
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.consumer.consumer_group_driver import Client, GroupDriver, settle


def test_large_assignment_is_effect_that_answers_the_join() -> None:
    driver = GroupDriver.of(t=5000, is_lazy=True)
    client = Client(driver, "a")
    driver.heartbeat(client.request(), client.take)
    driver.save()
    assert client.last is None
    [task] = driver.assignments
    assert task.cost > 5000
    driver.assign()
    assert client.last is None  # not durable yet
    driver.save()
    assert client.count == 5000


def test_later_joins_are_in_the_next_assignment() -> None:
    driver = GroupDriver.of(t=5000, is_lazy=True)
    clients = [Client(driver, f"m{number:03}") for number in range(100)]
    for client in clients:
        driver.heartbeat(client.request(), client.take)
    driver.work()
    assert all(client.epoch for client in clients)
    assert sum(isinstance(each, AssignmentTask) for each in driver.assignments) == 0
    assert driver.group.epoch == 2, "one computation for the first, and one for all others"
    settle(clients)
    assert {client.count for client in clients} == {50}


def test_heartbeats_go_on_while_an_assignment_is_computed() -> None:
    driver = GroupDriver.of(t=5000, is_lazy=True)
    first, second = Client(driver, "a"), Client(driver, "b")
    first.beat()
    driver.heartbeat(second.request(), second.take)
    result = driver.group.heartbeat(first.request(), driver.topics, print, driver.now)
    assert result is not None
    assert (result.error, result.member_epoch) == (ErrorCode.none, 1)
    assert second.last is None


def test_repeated_join_replaces_the_first() -> None:
    driver = GroupDriver.of(t=5000, is_lazy=True)
    answers: list[HeartbeatResult] = []
    client = Client(driver, "a")
    driver.heartbeat(client.request(), answers.append)
    driver.heartbeat(client.request(), client.take)
    assert [answer.error for answer in answers] == [ErrorCode.coordinator_not_available]
    driver.work()
    assert client.count == 5000
    assert len(answers) == 1


def test_waiting_member_that_is_fenced_is_told_so() -> None:
    driver = GroupDriver.of(t=5000, is_lazy=True)
    client = Client(driver, "a")
    driver.heartbeat(client.request(), client.take)
    while driver.saves:
        driver.save()
    driver.pass_time(50.0)
    assert client.last is not None
    assert client.last.error is ErrorCode.unknown_member_id
    driver.work()
    assert driver.group.is_empty


def test_failed_computation_is_reported_and_repeated() -> None:
    driver = GroupDriver.of(t=5000, is_lazy=True)
    client = Client(driver, "a")
    driver.heartbeat(client.request(), client.take)
    [task] = driver.assignments
    task.assignor = "none of these"
    driver.assign()
    assert client.last is not None
    assert client.last.error is ErrorCode.unknown_server_error
    assert client.beat().error is ErrorCode.none
    assert client.count == 5000


def test_shutdown_answers_waiting_requests() -> None:
    driver = GroupDriver.of(t=5000, is_lazy=True)
    client = Client(driver, "a")
    driver.heartbeat(client.request(), client.take)
    driver.group.shut_down()
    driver.settle()
    assert client.last is not None
    assert client.last.error is ErrorCode.not_coordinator
    assert driver.group.is_dead


def test_topic_changes_during_computation_are_in_next_assignment() -> None:
    driver = GroupDriver.of(t=5000, is_lazy=True)
    client = Client(driver, "a")
    driver.heartbeat(client.request(), client.take)
    driver.set_topics(t=5001)
    driver.group.topics_changed(driver.topics, driver.now)
    driver.settle()
    driver.work()
    settle([client])
    assert client.count == 5001


def test_many_waiting_members_are_answered_in_several_events() -> None:
    driver = GroupDriver.of(t=600, is_lazy=True)
    clients = [Client(driver, f"m{number:03}") for number in range(450)]
    for client in clients:
        driver.heartbeat(client.request(), client.take)
    driver.work()
    assert 0 < sum(client.last is None for client in clients) < 450
    driver.pass_time(0.0)
    driver.work()
    driver.pass_time(0.0)
    driver.work()
    assert all(client.last is not None for client in clients)
