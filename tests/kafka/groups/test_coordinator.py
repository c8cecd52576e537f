"""The coordinator around the groups: refusals, timers, the catalogue, restarts, administration."""

from collections.abc import Callable

import pytest

from broker.kafka.groups.values import JoinRequest
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.group_harness import GroupHarness


def test_group_without_a_name_is_refused(harness: GroupHarness) -> None:
    assert harness.join("").error == ErrorCode.invalid_group_id
    assert harness.sync("", "a", 1).error == ErrorCode.invalid_group_id
    assert harness.groups.heartbeat("", "a", None, 1) == ErrorCode.invalid_group_id
    assert harness.groups.leave("", [("a", None)]) == (ErrorCode.invalid_group_id, [])


def test_operator_bounds_the_session_timeout(new_harness: Callable[..., GroupHarness]) -> None:
    harness = new_harness(group_min_session_timeout_ms=5_000, group_max_session_timeout_ms=9_000)
    assert harness.join("g", session_timeout_ms=4_999).error == ErrorCode.invalid_session_timeout
    assert harness.join("g", session_timeout_ms=9_001).error == ErrorCode.invalid_session_timeout
    assert harness.join("g", session_timeout_ms=5_000).error == ErrorCode.member_id_required
    assert harness.join("g", session_timeout_ms=9_000).error == ErrorCode.member_id_required


def test_operator_bounds_the_size_of_a_group(new_harness: Callable[..., GroupHarness]) -> None:
    harness = new_harness(group_max_size=1)
    harness.stable("g")
    assert harness.join("g").error == ErrorCode.group_max_size_reached


def test_unknown_member_id_without_group_makes_no_group(harness: GroupHarness) -> None:
    refused = harness.join("g", "client-9")
    assert (refused.error, refused.member_id) == (ErrorCode.unknown_member_id, "client-9")
    assert harness.sync("g", "client-9", 1).error == ErrorCode.unknown_member_id
    assert harness.groups.heartbeat("g", "client-9", None, 1) == ErrorCode.unknown_member_id
    assert harness.groups.leave("g", [("client-9", None), ("", "pod-0")]) == (
        ErrorCode.none,
        [ErrorCode.unknown_member_id] * 2,
    )
    assert harness.listed() == {}


def test_groups_do_not_know_each_other(harness: GroupHarness) -> None:
    a, b = harness.stable("g"), harness.stable("h")
    assert harness.groups.heartbeat("g", b, None, 1) == ErrorCode.unknown_member_id
    assert harness.groups.heartbeat("h", b, None, 1) == harness.groups.heartbeat("g", a, None, 1) == ErrorCode.none


def test_timer_ends_the_sessions_of_silent_members(harness: GroupHarness) -> None:
    a = harness.stable("g")
    for _ in range(5):
        harness.wait(9)
        assert harness.groups.heartbeat("g", a, None, 1) == ErrorCode.none
    harness.wait(9.9)
    assert harness.listed() == {"g": "Stable"}
    harness.wait(0.1)
    assert harness.listed() == {"g": "Empty"}


def test_heartbeat_sets_no_timer(harness: GroupHarness) -> None:
    a = harness.stable("g")
    before = len(harness.timer)
    for _ in range(100):
        harness.wait(0.01)
        harness.groups.heartbeat("g", a, None, 1)
    assert len(harness.timer) <= before  # cancelled ones may have gone meanwhile


def test_timer_is_set_anew_for_earlier_deadline(harness: GroupHarness) -> None:
    a = harness.stable("g", session_timeout_ms=1_800_000)
    harness.join("g")  # is given its id and never comes back
    parked = harness.join("g", a, session_timeout_ms=1_800_000)
    harness.wait(9.9)
    assert parked.is_parked
    harness.wait(0.1)
    assert parked.error == ErrorCode.none


def test_timer_has_parked_requests_answered(harness: GroupHarness) -> None:
    a = harness.stable("g")
    newcomer = harness.join("g", harness.join("g").member_id)
    harness.wait(5)
    harness.groups.heartbeat("g", a, None, 1)
    assert newcomer.is_parked
    harness.wait(10)  # the old member's session has timed out
    assert newcomer.error == ErrorCode.none


def test_several_members_leave_in_one_request(harness: GroupHarness) -> None:
    a = harness.stable("g")
    errors = harness.groups.leave("g", [("who", None), (a, None), (a, None)])
    assert errors == (ErrorCode.none, [ErrorCode.unknown_member_id, ErrorCode.none, ErrorCode.unknown_member_id])


def test_assignment_is_handed_out_when_in_the_catalogue(harness: GroupHarness) -> None:
    member_id = harness.join("g", harness.join("g").member_id).member_id
    sync = harness.sync("g", member_id, 1, {member_id: b"all"})
    assert sync.is_parked
    assert list(harness.catalogue.load_groups()) == []
    harness.write()
    assert sync.result.assignment == b"all"
    assert [group for group, _ in harness.catalogue.load_groups()] == ["g"]


def test_full_disk_makes_members_look_for_coordinator(harness: GroupHarness) -> None:
    member_id = harness.join("g", harness.join("g").member_id).member_id
    harness.database.full = True
    sync = harness.sync("g", member_id, 1, {member_id: b"all"})
    harness.write()
    assert sync.error == ErrorCode.not_coordinator
    harness.database.full = False
    assert harness.join("g", member_id).result.generation == 2


@pytest.mark.parametrize("clean", [True, False])
def test_after_a_restart_a_member_goes_on(harness: GroupHarness, clean: bool) -> None:
    a = harness.stable("g")
    harness.restart(clean=clean)
    assert harness.groups.heartbeat("g", a, None, 1) == ErrorCode.none
    assert harness.sync("g", a, 1).result.assignment == b"all"
    assert harness.listed() == {"g": "Stable"}


def test_absent_member_is_removed_by_session_after_restart(harness: GroupHarness) -> None:
    harness.stable("g")
    harness.restart()
    harness.wait(9.9)
    assert harness.listed() == {"g": "Stable"}
    harness.wait(0.1)
    assert harness.listed() == {"g": "Empty"}


def test_after_a_crash_the_last_durable_generation_counts(harness: GroupHarness) -> None:
    a = harness.stable("g")
    joined = harness.join("g", a)
    assert joined.result.generation == 2
    harness.sync("g", a, 2, {a: b"never written"})
    harness.restart(clean=False)
    assert harness.groups.heartbeat("g", a, None, 2) == ErrorCode.illegal_generation
    assert harness.groups.heartbeat("g", a, None, 1) == ErrorCode.none


def test_empty_group_continues_generations_after_restart(harness: GroupHarness) -> None:
    a = harness.stable("g")
    harness.groups.leave("g", [(a, None)])
    harness.restart()
    assert harness.listed() == {"g": "Empty"}
    assert harness.join("g", harness.join("g").member_id).result.generation == 3


def test_unreadable_group_is_new_and_keeps_its_offsets(harness: GroupHarness) -> None:
    harness.stable("g")
    harness.commit("simple", {("orders", 0): 7})
    harness.write()
    harness.catalogue.save_group("simple", b"not what we wrote")
    harness.restart()
    assert harness.listed() == {"g": "Stable", "simple": "Empty"}
    assert harness.committed("simple") == {("orders", 0): 7}


def test_shutdown_answers_parked_requests_and_refuses_others(harness: GroupHarness) -> None:
    a = harness.stable("g")
    newcomer = harness.join("g", harness.join("g").member_id)
    assert newcomer.is_parked
    harness.groups.shut_down()
    assert newcomer.error == ErrorCode.not_coordinator
    assert harness.groups.heartbeat("g", a, None, 1) == ErrorCode.coordinator_not_available
    assert harness.join("h").error == ErrorCode.coordinator_not_available
    assert harness.commit("h", {("orders", 0): 1}).error == ErrorCode.coordinator_not_available
    assert harness.groups.list() == (ErrorCode.coordinator_not_available, [])


def test_shutdown_does_not_change_the_restored_group(harness: GroupHarness) -> None:
    a = harness.stable("g")
    harness.groups.shut_down()
    harness.wait(3600)
    harness.restart()
    assert harness.groups.heartbeat("g", a, None, 1) == ErrorCode.none


def test_groups_are_listed_by_state_in_any_case(harness: GroupHarness) -> None:
    harness.stable("g")
    harness.commit("simple", {("orders", 0): 7})
    stable = harness.groups.list(["sTABLE"])
    assert [group.group_id for group in stable[1]] == ["g"]
    assert [group.group_id for group in harness.groups.list(["Empty", "Stable"])[1]] == ["g", "simple"]
    assert harness.groups.list(["nonsense"]) == (ErrorCode.none, [])


def test_group_and_offsets_are_deleted_before_the_answer(harness: GroupHarness) -> None:
    a = harness.stable("g")
    harness.stable("busy")
    harness.groups.leave("g", [(a, None)])
    harness.commit("g", {("orders", 0): 7})
    harness.write()
    answers: list[dict[str, ErrorCode]] = []
    harness.groups.delete(["g", "busy", "nowhere", "g"], answers.append)
    assert answers == []
    assert harness.committed("g") == {}
    harness.write()
    assert answers == [
        {"g": ErrorCode.none, "busy": ErrorCode.non_empty_group, "nowhere": ErrorCode.group_id_not_found}
    ]
    assert harness.stored("g") == {}
    harness.restart()
    assert harness.listed() == {"busy": "Stable"}


def test_deleting_nothing_is_answered_at_once(harness: GroupHarness) -> None:
    answers: list[dict[str, ErrorCode]] = []
    harness.groups.delete(["nowhere"], answers.append)
    assert answers == [{"nowhere": ErrorCode.group_id_not_found}]


def test_deleted_group_begins_anew(harness: GroupHarness) -> None:
    a = harness.stable("g")
    harness.groups.leave("g", [(a, None)])
    harness.groups.delete(["g"], lambda errors: None)
    assert harness.join("g", harness.join("g").member_id).result.generation == 1


def test_failed_deletion_is_reported(harness: GroupHarness) -> None:
    harness.commit("g", {("orders", 0): 7})
    harness.write()
    harness.database.full = True
    answers: list[dict[str, ErrorCode]] = []
    harness.groups.delete(["g"], answers.append)
    harness.write()
    assert answers == [{"g": ErrorCode.not_coordinator}]


def test_failing_answer_does_not_hold_up_the_others(harness: GroupHarness) -> None:
    def broken(result: object) -> None:
        raise ValueError("this connection is a bug")

    a = harness.stable("g")
    first = harness.join("g").member_id
    second = harness.join("g").member_id
    protocols = (("range", b"\0\0\0\0\0\0"),)
    request = JoinRequest(first, None, "c", "/h", 10_000, 60_000, "consumer", protocols, "unused")
    harness.groups.join("g", request, broken)
    good = harness.join("g", second)
    harness.groups.leave("g", [(a, None)])
    assert good.error == ErrorCode.none
