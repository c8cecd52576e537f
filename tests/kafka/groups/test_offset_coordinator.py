"""Committed offsets: when they count, the right to delete them, and their expiry."""

from collections.abc import Callable

import pytest

from broker.kafka.groups.offset_coordinator import Committer, Errors
from broker.kafka.groups.offsets import CommittedOffset
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.group_harness import DAY_S, NOBODY, CommitAnswer, GroupHarness

ORDERS_0, ORDERS_1, PAYMENTS_0 = ("orders", 0), ("orders", 1), ("payments", 0)


def test_commit_is_answered_and_counts_when_durable(harness: GroupHarness) -> None:
    commit = harness.commit("g", {ORDERS_0: 7})
    assert commit.is_waiting
    assert harness.committed("g") == {}
    harness.write()
    assert commit.error == ErrorCode.none
    assert harness.committed("g") == harness.stored("g") == {ORDERS_0: 7}


def test_committed_offset_comes_back_unchanged(harness: GroupHarness) -> None:
    harness.commit("g", {ORDERS_0: 7}, leader_epoch=3, metadata="wie weit: ½")
    harness.write()
    for _ in range(2):
        _, [(topic, [(partition, committed)])] = harness.groups.offsets.fetch("g", [("orders", [0])])
        assert (topic, partition) == ORDERS_0
        assert committed is not None
        assert (committed.offset, committed.leader_epoch, committed.metadata) == (7, 3, "wie weit: ½")
        harness.restart(clean=False)


def test_partition_without_a_commit_has_no_offset(harness: GroupHarness) -> None:
    harness.commit("g", {ORDERS_0: 7})
    harness.write()
    wanted = [("orders", [0, 1]), ("nowhere", [5])]
    _, topics = harness.groups.offsets.fetch("g", wanted)
    assert [
        (name, [(index, committed and committed.offset) for index, committed in partitions])
        for name, partitions in topics
    ] == [
        ("orders", [(0, 7), (1, None)]),
        ("nowhere", [(5, None)]),
    ]
    assert harness.groups.offsets.fetch("unknown", [("orders", [0])]) == (ErrorCode.none, [("orders", [(0, None)])])
    assert harness.groups.offsets.fetch("unknown", None) == (ErrorCode.none, [])


def test_later_of_two_commits_of_partition_counts(harness: GroupHarness) -> None:
    commits = [harness.commit("g", {ORDERS_0: offset}) for offset in (5, 9, 7)]
    harness.write()
    assert [commit.error for commit in commits] == [ErrorCode.none] * 3
    assert harness.committed("g") == harness.stored("g") == {ORDERS_0: 7}


def test_waiting_commits_share_one_transaction(harness: GroupHarness) -> None:
    before = harness.database.transactions
    commits = [harness.commit(group, {("orders", n): n}) for n in range(20) for group in ("g", "h")]
    harness.write()
    assert harness.database.transactions == before + 1
    assert {commit.error for commit in commits} == {ErrorCode.none}
    assert len(harness.stored("g")) == len(harness.stored("h")) == 20


def test_failed_commit_does_not_count_and_is_reported(harness: GroupHarness) -> None:
    harness.commit("g", {ORDERS_0: 7})
    harness.write()
    harness.database.full = True
    commit = harness.commit("g", {ORDERS_0: 8})
    harness.write()
    assert commit.error == ErrorCode.not_coordinator
    assert harness.committed("g") == {ORDERS_0: 7}
    harness.database.full = False
    harness.commit("g", {ORDERS_0: 9})
    harness.write()
    assert harness.committed("g") == {ORDERS_0: 9}


def test_length_of_metadata_is_bounded(new_harness: Callable[..., GroupHarness]) -> None:
    harness = new_harness(offset_metadata_max_bytes=4)
    fits, too_long = (
        harness.commit("g", {ORDERS_0: 1}, metadata="1234"),
        harness.commit("g", {ORDERS_1: 1}, metadata="12345"),
    )
    harness.write()
    assert (fits.error, too_long.error) == (ErrorCode.none, ErrorCode.offset_metadata_too_large)
    assert harness.stored("g") == {ORDERS_0: 1}


def test_offsets_with_oversized_metadata_are_refused_alone(
    new_harness: Callable[..., GroupHarness],
) -> None:
    harness = new_harness(offset_metadata_max_bytes=4)
    rows = {ORDERS_0: CommittedOffset(1, -1, "1234", 0), ORDERS_1: CommittedOffset(1, -1, "12345", 0)}
    answer = CommitAnswer()
    harness.groups.offsets.commit("g", NOBODY, rows, answer)
    harness.write()
    assert answer.errors == {ORDERS_0: ErrorCode.none, ORDERS_1: ErrorCode.offset_metadata_too_large}
    assert harness.committed("g") == harness.stored("g") == {ORDERS_0: 1}


def test_only_members_of_current_generation_may_commit(harness: GroupHarness) -> None:
    a = harness.stable("g")
    good = harness.commit("g", {ORDERS_0: 1}, Committer(a, None, 1))
    old = harness.commit("g", {ORDERS_0: 2}, Committer(a, None, 0))
    stranger = harness.commit("g", {ORDERS_0: 3}, Committer("who", None, 1))
    outsider = harness.commit("g", {ORDERS_0: 4})
    harness.write()
    assert good.error == ErrorCode.none
    assert old.error == ErrorCode.illegal_generation
    assert stranger.error == outsider.error == ErrorCode.unknown_member_id
    assert harness.committed("g") == {ORDERS_0: 1}


def test_member_of_missing_group_may_not_commit(harness: GroupHarness) -> None:
    assert harness.commit("g", {ORDERS_0: 1}, Committer("who", None, 3)).error == ErrorCode.illegal_generation
    assert harness.listed() == {}


def test_group_without_a_name_may_have_offsets(harness: GroupHarness) -> None:
    harness.commit("", {ORDERS_0: 7})
    harness.write()
    harness.restart()
    assert harness.committed("") == {ORDERS_0: 7}


def test_commit_keeps_its_member_alive(harness: GroupHarness) -> None:
    a = harness.stable("g")
    for n in range(3):
        harness.wait(9)
        assert harness.commit("g", {ORDERS_0: n}, Committer(a, None, 1)).is_waiting
        harness.write()
    assert harness.listed() == {"g": "Stable"}


def test_clean_shutdown_writes_and_answers_pending_commits(harness: GroupHarness) -> None:
    commit = harness.commit("g", {ORDERS_0: 7})
    harness.restart()
    assert commit.error == ErrorCode.none
    assert harness.committed("g") == {ORDERS_0: 7}


# Deleting -----------------------------------------------------------------------------------------------------------


def delete(harness: GroupHarness, group: str, *partitions: tuple[str, int]) -> tuple[ErrorCode, Errors]:
    answers: list[tuple[ErrorCode, Errors]] = []
    harness.groups.offsets.delete(group, partitions, lambda error, errors: answers.append((error, errors)))
    harness.write()
    (answer,) = answers
    return answer


def test_offsets_of_a_group_without_members_are_deleted(harness: GroupHarness) -> None:
    harness.commit("g", {ORDERS_0: 7, ORDERS_1: 8})
    harness.write()
    assert delete(harness, "g", ORDERS_0, PAYMENTS_0) == (
        ErrorCode.none,
        {ORDERS_0: ErrorCode.none, PAYMENTS_0: ErrorCode.none},
    )
    assert harness.committed("g") == harness.stored("g") == {ORDERS_1: 8}


def test_offsets_of_subscribed_topics_are_not_deleted(harness: GroupHarness) -> None:
    a = harness.stable("g")
    harness.commit("g", {ORDERS_0: 7, PAYMENTS_0: 8}, Committer(a, None, 1))
    harness.write()
    assert delete(harness, "g", ORDERS_0, PAYMENTS_0) == (
        ErrorCode.none,
        {ORDERS_0: ErrorCode.group_subscribed_to_topic, PAYMENTS_0: ErrorCode.none},
    )
    assert harness.committed("g") == harness.stored("g") == {ORDERS_0: 7}


def test_subscribed_topics_are_known_after_restart(harness: GroupHarness) -> None:
    harness.stable("g")
    harness.restart()
    assert delete(harness, "g", ORDERS_0)[1] == {ORDERS_0: ErrorCode.group_subscribed_to_topic}


def test_no_offset_is_deleted_while_topics_are_unknown(harness: GroupHarness) -> None:
    harness.stable("g", protocols=(("range", b"?"),))
    assert delete(harness, "g", PAYMENTS_0)[1] == {PAYMENTS_0: ErrorCode.group_subscribed_to_topic}


def test_offsets_of_other_protocol_types_are_not_deleted(harness: GroupHarness) -> None:
    harness.stable("g", protocol_type="connect")
    assert delete(harness, "g", PAYMENTS_0) == (ErrorCode.non_empty_group, {})


def test_offsets_of_missing_group_cannot_be_deleted(harness: GroupHarness) -> None:
    assert delete(harness, "g", ORDERS_0) == (ErrorCode.group_id_not_found, {})
    assert delete(harness, "", ORDERS_0) == (ErrorCode.invalid_group_id, {})


def test_group_without_members_ends_with_last_offset(harness: GroupHarness) -> None:
    harness.commit("g", {ORDERS_0: 7})
    harness.write()
    delete(harness, "g", ORDERS_0)
    assert harness.listed() == {}


def test_failed_deletion_is_reported(harness: GroupHarness) -> None:
    harness.commit("g", {ORDERS_0: 7})
    harness.write()
    harness.database.full = True
    assert delete(harness, "g", ORDERS_0) == (ErrorCode.none, {ORDERS_0: ErrorCode.not_coordinator})


# Deleted topics ------------------------------------------------------------------------------------------------------


def test_offsets_are_deleted_with_their_topic(harness: GroupHarness) -> None:
    for group in ("g", "h"):
        harness.commit(group, {ORDERS_0: 7})
    harness.commit("g", {PAYMENTS_0: 8})
    harness.write()
    harness.groups.on_topic_deleted("orders")
    assert (harness.committed("g"), harness.committed("h")) == ({PAYMENTS_0: 8}, {})
    harness.write()
    assert (harness.stored("g"), harness.stored("h")) == ({PAYMENTS_0: 8}, {})
    assert harness.listed() == {"g": "Empty"}


def test_pending_commit_of_deleted_topic_does_not_return(harness: GroupHarness) -> None:
    harness.commit("g", {ORDERS_0: 7, PAYMENTS_0: 8})
    harness.groups.on_topic_deleted("orders")
    harness.write()
    assert harness.committed("g") == harness.stored("g") == {PAYMENTS_0: 8}


def test_recreated_topic_begins_without_offsets(harness: GroupHarness) -> None:
    harness.commit("g", {ORDERS_0: 7})
    harness.groups.on_topic_deleted("orders")
    harness.commit("g", {ORDERS_0: 1})
    harness.write()
    assert harness.committed("g") == harness.stored("g") == {ORDERS_0: 1}


def test_offsets_of_deleted_topics_are_dropped_after_crash(harness: GroupHarness) -> None:
    harness.commit("g", {ORDERS_0: 7, PAYMENTS_0: 8})
    harness.write()
    harness.topics.remove("orders")
    harness.groups.on_topic_deleted("orders")
    harness.restart(clean=False)
    assert harness.committed("g") == {PAYMENTS_0: 8}
    harness.write()
    assert harness.stored("g") == {PAYMENTS_0: 8}


# Old offsets ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def week(new_harness: Callable[..., GroupHarness]) -> GroupHarness:
    """Offsets are kept for seven days."""
    return new_harness(offsets_retention_minutes=7 * 24 * 60)


def test_retention_without_group_begins_with_the_commit(week: GroupHarness) -> None:
    week.commit("g", {ORDERS_0: 7})
    week.write()
    week.wait(4 * DAY_S)
    week.commit("g", {ORDERS_1: 8})
    week.write()
    week.wait(4 * DAY_S)
    assert week.committed("g") == week.stored("g") == {ORDERS_1: 8}
    week.wait(4 * DAY_S)
    assert week.listed() == {}


@pytest.mark.parametrize("restarted", [False, True])
def test_retention_begins_when_the_group_becomes_empty(week: GroupHarness, restarted: bool) -> None:
    a = week.stable("g", session_timeout_ms=1_800_000)
    week.commit("g", {ORDERS_0: 7}, Committer(a, None, 1))
    for _ in range(10 * 24 * 4):
        week.wait(DAY_S / 96)
        assert week.groups.heartbeat("g", a, None, 1) == ErrorCode.none
    week.groups.leave("g", [(a, None)])
    week.write()
    if restarted:
        week.restart()
    week.wait(6.9 * DAY_S)
    assert week.committed("g") == {ORDERS_0: 7}
    week.wait(0.2 * DAY_S)
    assert (week.committed("g"), week.stored("g"), week.listed()) == ({}, {}, {})
    week.restart()
    assert week.listed() == {}


def test_populated_group_drops_old_offsets_of_unsubscribed_topics(week: GroupHarness) -> None:
    a = week.stable("g", session_timeout_ms=1_800_000)
    week.commit("g", {ORDERS_0: 7, PAYMENTS_0: 8}, Committer(a, None, 1))
    for _ in range(8 * 24 * 4):
        week.wait(DAY_S / 96)
        week.groups.heartbeat("g", a, None, 1)
    assert week.committed("g") == week.stored("g") == {ORDERS_0: 7}


def test_operator_offsets_on_long_empty_group_are_kept(week: GroupHarness) -> None:
    a = week.stable("g")
    week.groups.leave("g", [(a, None)])
    week.commit("g", {ORDERS_0: 7})
    week.wait(6 * DAY_S)
    week.commit("g", {ORDERS_0: 1})
    week.write()
    week.wait(6 * DAY_S)
    assert week.committed("g") == {ORDERS_0: 1}


def test_client_may_choose_retention_of_its_offsets(week: GroupHarness) -> None:
    soon = week.clock.time_ms() + int(DAY_S * 1000)
    week.commit("g", {ORDERS_0: 7}, expire_ms=soon)
    week.commit("g", {ORDERS_1: 8})
    week.wait(1.1 * DAY_S)
    assert week.committed("g") == {ORDERS_1: 8}


def test_failed_sweep_is_not_the_last(week: GroupHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    expiration = week.groups.expiration
    before = expiration._next_sweep
    with monkeypatch.context() as patched:
        patched.setattr(expiration, "sweep", lambda _: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            expiration._begin_sweep()
    assert expiration._next_sweep is not before
    week.commit("g", {ORDERS_0: 7})
    week.wait(8 * DAY_S)
    assert week.committed("g") == {}


def test_old_offset_with_pending_commit_is_kept(week: GroupHarness) -> None:
    week.commit("g", {ORDERS_0: 7})
    week.write()
    week.clock.now += 8 * DAY_S
    week.commit("g", {ORDERS_0: 8})
    week.groups.expiration.sweep()
    week.write()
    assert week.committed("g") == week.stored("g") == {ORDERS_0: 8}


def test_group_without_durable_commits_is_forgotten(harness: GroupHarness) -> None:
    harness.database.full = True
    harness.commit("g", {ORDERS_0: 7})
    assert harness.listed() == {"g": "Empty"}
    harness.write()
    assert harness.listed() == {}


def test_group_with_pending_member_is_not_forgotten(harness: GroupHarness) -> None:
    pending = harness.join("g")
    harness.groups.expiration.sweep()
    assert harness.join("g", pending.member_id).error == ErrorCode.none


def test_group_that_nobody_joined_is_forgotten(harness: GroupHarness) -> None:
    harness.join("g")
    assert harness.listed() == {"g": "Empty"}
    harness.wait(9)
    harness.wait(2 * harness.config.offsets_retention_check_interval_ms / 1000)
    assert harness.listed() == {}
