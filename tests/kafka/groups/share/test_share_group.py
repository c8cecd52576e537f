"""A share group: joining, epochs and fencing, leaving and time-outs, topics, durability, restarts."""

from typing import Any

import attrs
import pytest

from broker.errors import StorageError
from broker.kafka.groups.group import GroupType
from broker.kafka.groups.share.share_group import RETRY_S, ShareGroup
from broker.kafka.groups.share.target_assignment import INITIALISE_MAX, ShareGroupState
from broker.kafka.groups.share.values import AssignorTask
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.share.group_driver import LIMITS, SESSION_S, Driver, FakeTopics, flat

NONE = ErrorCode.none


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_group_is_empty_until_somebody_joins(driver: Driver) -> None:
    group = driver.group
    assert (group.type, group.state_name, group.is_empty, group.was_never_joined) == (
        GroupType.SHARE,
        "Empty",
        True,
        True,
    )
    driver.join("a")
    assert (group.state_name, group.is_empty, group.was_never_joined, group.member_count) == ("Stable", False, False, 1)
    assert group.topics == {"orders"}
    driver.leave("a")
    assert (group.state_name, group.is_empty, group.was_never_joined, group.topics) == (
        "Empty",
        True,
        False,
        frozenset(),
    )


def test_join_is_answered_when_everything_is_durable(driver: Driver) -> None:
    reply = driver.send("a", 0, "orders")
    assert reply.is_waiting
    assert driver.due == 1
    driver.run()
    (initialise,) = driver.initialise
    assert [(each.name, each.first, each.end) for each in initialise.partitions] == [("orders", 0, 4)]
    assert not driver.saves, "nothing is assigned that has no start offset"
    driver.end_initialise()
    driver.end_run()
    assert reply.is_waiting
    assert set(driver.saves[0].put) == {"", "m/a"}
    driver.end_save()
    assert (reply.result.error, reply.result.member_epoch) == (NONE, 1)
    assert flat(reply.result.assignment) == {driver.topics.id("orders"): [0, 1, 2, 3]}


def test_simultaneous_joins_are_assigned_by_one_run(driver: Driver) -> None:
    replies = [driver.send(f"m{number}", 0, "orders") for number in range(4)]
    assert driver.due == 1
    driver.run()
    driver.end_initialise()
    driver.end_run()
    assert len(driver.saves) == 1
    driver.end_save()
    partitions = [flat(reply.result.assignment)[driver.topics.id("orders")] for reply in replies]
    assert sorted(partitions) == [[0], [1], [2], [3]]


def test_unchanged_heartbeat_is_answered_at_once(driver: Driver) -> None:
    driver.join("a")
    reply = driver.send("a", 1)
    assert (reply.result.error, reply.result.member_epoch, reply.result.assignment) == (NONE, 1, None)
    assert not driver.saves
    assert not driver.due


def test_unchanged_full_heartbeat_gets_assignment_at_once(driver: Driver) -> None:
    joined = driver.join("a")
    reply = driver.send("a", 1, "orders")
    assert reply.result.assignment == joined.assignment
    assert not driver.saves
    assert not driver.due


def test_others_learn_of_new_member_with_next_heartbeat(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    reply = driver.send("a", 1)
    assert reply.is_waiting, "the new epoch is made durable first"
    assert set(driver.saves[0].put) == {"m/a"}
    driver.work()
    assert reply.result.member_epoch == 2
    assert flat(reply.result.assignment) == {driver.topics.id("orders"): [0, 1]}


def test_new_epoch_with_same_partitions_comes_without_assignment() -> None:
    driver = Driver(FakeTopics(orders=1, payments=1))
    driver.join("a", "orders")
    driver.join("b", "payments")
    result = driver.beat("a")
    assert (result.member_epoch, result.assignment) == (2, None)


def test_changed_subscription_gets_the_new_topics_partitions() -> None:
    driver = Driver(FakeTopics(orders=1, payments=2))
    driver.join("a", "orders")
    result = driver.beat("a", "payments")
    assert (result.member_epoch, flat(result.assignment)) == (2, {driver.topics.id("payments"): [0, 1]})
    result = driver.beat("a", "payments", "orders", "payments", "nothing-yet")
    assert set(flat(result.assignment)) == {driver.topics.id("orders"), driver.topics.id("payments")}


def test_order_of_the_topics_does_not_matter() -> None:
    driver = Driver(FakeTopics(orders=1, payments=2))
    driver.join("a", "orders", "payments")
    assert driver.beat("a", "payments", "orders").member_epoch == 1


# Fencing ------------------------------------------------------------------------------------------------------------


def test_unknown_members_must_join_first(driver: Driver) -> None:
    driver.join("a")
    assert driver.send("b", 1).result.error == ErrorCode.unknown_member_id
    assert driver.send("b", -1).result.error == ErrorCode.unknown_member_id


@pytest.mark.parametrize("epoch", [1, 4, 99])
def test_only_current_and_previous_epochs_are_accepted(driver: Driver, epoch: int) -> None:
    driver.join("a")
    driver.join("b")
    driver.beat("a")
    driver.join("c")
    driver.beat("a")
    assert driver.send("a", epoch).result.error == ErrorCode.fenced_member_epoch


def test_lost_epoch_is_sent_again_with_assignment(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    lost = driver.beat("a")
    again = driver.send("a", 1).result
    assert again.assignment == lost.assignment is not None
    assert again.member_epoch == 2


def test_rejoining_member_continues(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    driver.beat("a")
    result = driver.send("a", 0, "orders").result
    assert (result.error, result.member_epoch) == (NONE, 2)
    assert flat(result.assignment) == {driver.topics.id("orders"): [0, 1]}
    assert driver.group.member_count == 2


def test_second_request_of_member_replaces_the_first(driver: Driver) -> None:
    first, second = driver.send("a", 0, "orders"), driver.send("a", 0, "orders")
    assert first.result.error == ErrorCode.coordinator_not_available
    driver.work()
    assert second.result.error == NONE
    assert second.result.assignment is not None


# Leaving ------------------------------------------------------------------------------------------------------------


def test_leaving_is_answered_when_it_is_durable(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    reply = driver.send("a", -1)
    assert reply.is_waiting
    driver.work()
    assert not driver.fenced, "its share session is its own affair"
    assert (reply.result.error, reply.result.member_epoch) == (NONE, -1)
    assert "m/a" not in driver.rows
    assert flat(driver.beat("b").assignment) == {driver.topics.id("orders"): [0, 1, 2, 3]}


def test_leave_ends_a_waiting_join(driver: Driver) -> None:
    join, leave = driver.send("a", 0, "orders"), driver.send("a", -1)
    assert join.result.error == ErrorCode.unknown_member_id
    driver.work()
    assert leave.result.error == NONE
    assert set(driver.rows) == {""}


def test_leave_is_answered_when_the_group_is_deleted(driver: Driver) -> None:
    driver.join("a")
    reply = driver.send("a", -1)
    assert driver.group.delete() == NONE
    driver.settle()
    assert (reply.result.error, reply.result.member_epoch) == (NONE, -1)


def test_leave_is_answered_when_the_broker_stops(driver: Driver) -> None:
    driver.join("a")
    reply = driver.send("a", -1)
    driver.group.shut_down()
    driver.settle()
    assert reply.result.error == ErrorCode.not_coordinator


def test_silent_member_is_removed(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    driver.wait(SESSION_S - 1)
    driver.beat("b")
    driver.wait(1)
    driver.work()
    assert driver.fenced == ["a"]
    assert driver.send("a", 1).result.error == ErrorCode.unknown_member_id
    assert set(driver.rows) == {"", "m/b"}
    assert flat(driver.beat("b").assignment) == {driver.topics.id("orders"): [0, 1, 2, 3]}


def test_session_counts_from_the_answer(driver: Driver) -> None:
    reply = driver.send("a", 0, "orders")
    driver.now += SESSION_S - 1  # the disk is slow
    driver.work()
    assert reply.result.error == NONE
    driver.wait(SESSION_S - 1)
    assert driver.group.member_count == 1


# Limits -------------------------------------------------------------------------------------------------------------


def test_full_group_refuses_only_new_members() -> None:
    driver = Driver(limits=attrs.evolve(LIMITS, max_size=2))
    driver.join("a")
    driver.join("b")
    assert driver.send("c", 0, "orders").result.error == ErrorCode.group_max_size_reached
    assert driver.beat("a", "orders").error == NONE
    assert driver.group.member_count == 2


def test_subscriptions_are_bounded_in_bytes() -> None:
    driver = Driver(limits=attrs.evolve(LIMITS, max_bytes=20_000))
    names = [f"topic-{number}" for number in range(1000)]
    assert driver.send("a", 0, *names).result.error == ErrorCode.group_max_size_reached
    driver.join("a")
    assert driver.send("a", 1, *names).result.error == ErrorCode.group_max_size_reached
    assert driver.group.topics == {"orders"}


@pytest.mark.parametrize("field", ["client_id", "rack_id"])
def test_member_metadata_is_bounded_in_bytes(field: str) -> None:
    driver = Driver(limits=attrs.evolve(LIMITS, max_bytes=20_000))
    long: dict[str, Any] = {field: "x" * 20_000}
    assert driver.send("a", 0, "orders", **long).result.error == ErrorCode.group_max_size_reached
    driver.join("a")
    assert driver.send("a", 1, "orders", **long).result.error == ErrorCode.group_max_size_reached
    before = driver.group.size_bytes
    reply = driver.send("a", 1, "orders", **{field: "x" * 10_000})
    driver.work()
    assert reply.result.error == NONE
    assert 9_000 < driver.group.size_bytes - before <= 10_000
    driver.leave("a")
    assert driver.group.size_bytes == 0


def test_memory_of_all_groups_is_bounded(driver: Driver) -> None:
    assert driver.send("a", 0, "orders", free_bytes=100).result.error == ErrorCode.coordinator_not_available
    assert driver.group.was_never_joined


def test_members_with_the_same_topics_share_one_subscription(driver: Driver) -> None:
    names = [f"topic-{number}" for number in range(1000)]
    driver.join("a", *names)
    size = driver.group.size_bytes
    driver.join("b", *names)
    assert driver.group.size_bytes < size + 5000
    driver.leave("a")
    driver.leave("b")
    assert driver.group.size_bytes == 0


def test_very_many_partitions_are_initialised_in_parts() -> None:
    driver = Driver(FakeTopics(orders=INITIALISE_MAX + 500))
    reply = driver.send("a", 0, "orders")
    driver.run()
    driver.end_initialise()
    driver.end_run()
    driver.end_save()
    topic = driver.topics.id("orders")
    assert len(flat(reply.result.assignment)[topic]) == INITIALISE_MAX, "it need not wait for the rest"
    driver.work()
    result = driver.beat("a")
    assert (result.member_epoch, len(flat(result.assignment)[topic])) == (2, INITIALISE_MAX + 500)


# Topics -------------------------------------------------------------------------------------------------------------


def test_topic_that_comes_later_is_assigned(driver: Driver) -> None:
    assert driver.join("a", "later").assignment == {}
    driver.topics.create("later", 2)
    driver.group.topics_changed(driver.topics, {"later"})
    driver.settle()
    driver.work()
    assert flat(driver.beat("a").assignment) == {driver.topics.id("later"): [0, 1]}


def test_new_partitions_are_initialised_before_they_are_assigned(driver: Driver) -> None:
    driver.join("a")
    driver.topics.grow("orders", 6)
    driver.group.topics_changed(driver.topics, {"orders"})
    driver.settle()
    driver.run()
    (initialise,) = driver.initialise
    assert [(each.first, each.end) for each in initialise.partitions] == [(4, 6)]
    driver.work()
    assert flat(driver.beat("a").assignment) == {driver.topics.id("orders"): [0, 1, 2, 3, 4, 5]}


def test_recreated_topic_is_another_topic(driver: Driver) -> None:
    driver.join("a")
    driver.topics.delete("orders")
    driver.group.topics_changed(driver.topics, {"orders"})
    driver.settle()
    driver.work()
    assert driver.beat("a").assignment == {}
    driver.topics.create("orders", 1)
    driver.group.topics_changed(driver.topics, {"orders"})
    driver.settle()
    driver.work()
    assert flat(driver.beat("a").assignment) == {driver.topics.id("orders"): [0]}


def test_topics_of_others_change_nothing(driver: Driver) -> None:
    driver.join("a")
    driver.topics.create("payments", 1)
    driver.group.topics_changed(driver.topics, {"payments"})
    driver.settle()
    assert not driver.due


def test_only_topics_that_have_changed_are_looked_at() -> None:
    """A member may name 40,000 topics, and the thread that writes the catalogue waits."""
    driver = Driver()
    driver.join("a", "orders", *(f"topic-{number}" for number in range(1000)))
    asked: list[str] = []
    driver.group.topics_changed(asked.append, {"topic-7", "elsewhere"})
    assert asked == ["topic-7"]


def test_partitions_that_cannot_be_initialised_are_tried_again(driver: Driver) -> None:
    reply = driver.send("a", 0, "orders")
    driver.run()
    driver.end_initialise(ErrorCode.not_coordinator)
    driver.end_run()
    driver.work()
    assert (reply.result.error, reply.result.assignment) == (NONE, {})
    driver.wait(RETRY_S)
    driver.work()
    assert flat(driver.beat("a").assignment) == {driver.topics.id("orders"): [0, 1, 2, 3]}


def test_member_joining_during_initialisation_awaits_its_own_topics() -> None:
    driver = Driver(FakeTopics(orders=1, payments=1))
    first = driver.send("a", 0, "orders")
    driver.run()
    second = driver.send("b", 0, "payments")
    driver.end_initialise()
    driver.end_run()
    driver.end_save()
    assert first.result.error == NONE
    assert second.is_waiting
    driver.work()
    assert flat(second.result.assignment) == {driver.topics.id("payments"): [0]}


# Durability ---------------------------------------------------------------------------------------------------------


def test_unsaved_changes_are_not_told(driver: Driver) -> None:
    reply = driver.send("a", 0, "orders")
    driver.run()
    driver.end_initialise()
    driver.end_run()
    driver.end_save(ErrorCode.not_coordinator)
    assert reply.result.error == ErrorCode.not_coordinator
    assert driver.rows == {}
    again = driver.send("a", 0, "orders")
    assert again.is_waiting
    driver.work()
    assert again.result.error == NONE
    assert set(driver.rows) == {"", "m/a"}, "the next save has everything"


def test_failed_save_is_repeated_without_a_request(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    reply = driver.send("a", -1)
    driver.run()
    driver.end_save(ErrorCode.not_coordinator)
    assert reply.result.error == ErrorCode.not_coordinator
    assert "m/a" in driver.rows
    driver.wait(RETRY_S)
    driver.work()
    assert "m/a" not in driver.rows


def test_repeated_request_waits_for_the_same_save(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    first, second = driver.send("a", 1), driver.send("a", 1)
    assert first.result.error == ErrorCode.coordinator_not_available
    assert second.is_waiting
    assert len(driver.saves) == 1
    driver.work()
    assert second.result.member_epoch == 2


def test_restart_brings_the_group_back(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    driver.beat("a")
    before, rows = driver.group.describe(), dict(driver.rows)
    driver.restart()
    assert driver.group.describe() == before
    assert driver.group.state is ShareGroupState.STABLE
    reply = driver.send("a", 2)
    assert (reply.result.error, reply.result.assignment) == (NONE, None), "members just go on"
    driver.work()
    assert driver.rows == rows
    assert driver.group.describe() == before, "nothing moves because of a restart"


def test_member_behind_advances_after_restart(driver: Driver) -> None:
    driver.join("a")
    driver.join("b")
    driver.restart()
    driver.work()
    result = driver.beat("a")
    assert (result.member_epoch, flat(result.assignment)) == (2, {driver.topics.id("orders"): [0, 1]})


def test_members_have_a_whole_session_after_a_restart(driver: Driver) -> None:
    driver.join("a")
    driver.now += 1e6
    driver.restart()
    driver.wait(LIMITS.restored_session_s - 1)
    assert driver.group.member_count == 1
    driver.wait(1)
    assert driver.group.member_count == 0


def test_topics_changed_during_downtime_are_seen(driver: Driver) -> None:
    driver.join("a")
    driver.topics.grow("orders", 5)
    driver.restart()
    driver.work()
    assert flat(driver.beat("a").assignment) == {driver.topics.id("orders"): [0, 1, 2, 3, 4]}


def test_unreadable_rows_are_a_storage_error(driver: Driver) -> None:
    with pytest.raises(StorageError, match="share group 'g' cannot be read"):
        ShareGroup.restore("g", LIMITS, {"": b"{}"}, 0.0)


# Administration -----------------------------------------------------------------------------------------------------


def test_only_an_empty_group_is_deleted(driver: Driver) -> None:
    driver.join("a")
    assert driver.group.delete() == ErrorCode.non_empty_group
    driver.leave("a")
    assert driver.group.delete() == NONE
    assert driver.group.is_dead
    assert driver.group.delete() == ErrorCode.group_id_not_found
    assert driver.send("a", 0, "orders").result.error == ErrorCode.coordinator_not_available


def test_start_offsets_are_only_set_in_empty_group(driver: Driver) -> None:
    assert driver.group.begin_alter() == NONE
    driver.settle()
    driver.work()
    assert set(driver.rows) == {""}, "now there is a group"
    assert not driver.group.was_never_joined
    driver.join("a")
    assert driver.group.begin_alter() == ErrorCode.non_empty_group


def test_partitions_with_deleted_start_offsets_are_initialised_again(driver: Driver) -> None:
    driver.join("a")
    driver.leave("a")
    driver.group.forget()
    driver.send("a", 0, "orders")
    driver.run()
    assert driver.initialise[0].partitions[0].first == 0


def test_partitions_with_concurrently_deleted_offsets_are_initialised_again(driver: Driver) -> None:
    driver.send("a", 0, "orders")
    driver.run()
    driver.send("a", -1)
    driver.group.forget()
    driver.work()
    driver.send("a", 0, "orders")
    driver.run()
    assert driver.initialise[0].partitions[0].first == 0


def test_nobody_commits_offsets_in_a_share_group(driver: Driver) -> None:
    driver.join("a")
    assert driver.group.check_commit("a", None, 1, driver.now) == ErrorCode.group_id_not_found
    assert driver.group.check_commit("", None, -1, driver.now) == ErrorCode.group_id_not_found


def test_shutdown_answers_waiting_requests_and_writes_nothing(driver: Driver) -> None:
    driver.join("a")
    reply = driver.send("b", 0, "orders")
    driver.group.shut_down()
    driver.settle()
    assert reply.result.error == ErrorCode.not_coordinator
    driver.begin_run()
    assert not driver.tasks
    assert not driver.saves
    assert driver.group.is_dead


def test_run_of_former_namesake_group_does_nothing(driver: Driver) -> None:
    """Also for a run that ends after the group has gone on without it."""
    assert driver.group.begin_run(driver.topics) is None
    driver.send("a", 0, "orders")
    driver.begin_run()
    assert driver.group.initialised((), NONE, driver.now) is None
    driver.group.assigned(AssignorTask(1, {}, {}, {}), driver.now)
    driver.settle()
    assert not driver.tasks
    assert not driver.saves
