"""The coordinator around the groups: which group, which errors before a group is asked, time, the catalogue, restarts."""

from collections.abc import Callable

import pytest

from broker.kafka.groups.values import JoinRequest
from protocol.kafka.errors import ErrorCode
from tests.kafka.groups.office import Office


def test_a_group_without_a_name_is_refused(office: Office) -> None:
    assert office.join("").error == ErrorCode.invalid_group_id
    assert office.sync("", "a", 1).error == ErrorCode.invalid_group_id
    assert office.groups.heartbeat("", "a", None, 1) == ErrorCode.invalid_group_id
    assert office.groups.leave("", [("a", None)]) == (ErrorCode.invalid_group_id, [])


def test_the_operator_bounds_the_session_timeout(new_office: Callable[..., Office]) -> None:
    office = new_office(group_min_session_timeout_ms=5_000, group_max_session_timeout_ms=9_000)
    assert office.join("g", session_timeout_ms=4_999).error == ErrorCode.invalid_session_timeout
    assert office.join("g", session_timeout_ms=9_001).error == ErrorCode.invalid_session_timeout
    assert office.join("g", session_timeout_ms=5_000).error == ErrorCode.member_id_required
    assert office.join("g", session_timeout_ms=9_000).error == ErrorCode.member_id_required


def test_the_operator_bounds_the_size_of_a_group(new_office: Callable[..., Office]) -> None:
    office = new_office(group_max_size=1)
    office.stable("g")
    assert office.join("g").error == ErrorCode.group_max_size_reached


def test_a_member_id_without_its_group_is_unknown_and_makes_no_group(office: Office) -> None:
    refused = office.join("g", "client-9")
    assert (refused.error, refused.member_id) == (ErrorCode.unknown_member_id, "client-9")
    assert office.sync("g", "client-9", 1).error == ErrorCode.unknown_member_id
    assert office.groups.heartbeat("g", "client-9", None, 1) == ErrorCode.unknown_member_id
    assert office.groups.leave("g", [("client-9", None), ("", "pod-0")]) == (
        ErrorCode.none,
        [ErrorCode.unknown_member_id] * 2,
    )
    assert office.listed() == {}


def test_groups_do_not_know_each_other(office: Office) -> None:
    a, b = office.stable("g"), office.stable("h")
    assert office.groups.heartbeat("g", b, None, 1) == ErrorCode.unknown_member_id
    assert office.groups.heartbeat("h", b, None, 1) == office.groups.heartbeat("g", a, None, 1) == ErrorCode.none


def test_the_timer_ends_the_sessions_of_silent_members(office: Office) -> None:
    a = office.stable("g")
    for _ in range(5):
        office.wait(9)
        assert office.groups.heartbeat("g", a, None, 1) == ErrorCode.none
    office.wait(9.9)
    assert office.listed() == {"g": "Stable"}
    office.wait(0.1)
    assert office.listed() == {"g": "Empty"}


def test_a_heartbeat_costs_no_timer(office: Office) -> None:
    a = office.stable("g")
    before = len(office.timer)
    for _ in range(100):
        office.wait(0.01)
        office.groups.heartbeat("g", a, None, 1)
    assert len(office.timer) == before


def test_the_timer_is_set_anew_for_an_earlier_deadline(office: Office) -> None:
    a = office.stable("g", session_timeout_ms=1_800_000)
    office.join("g")  # is told its id and never comes back
    parked = office.join("g", a, session_timeout_ms=1_800_000)
    office.wait(9.9)
    assert parked.is_parked
    office.wait(0.1)
    assert parked.error == ErrorCode.none


def test_the_timer_answers_who_is_parked(office: Office) -> None:
    a = office.stable("g")
    newcomer = office.join("g", office.join("g").member_id)
    office.wait(5)
    office.groups.heartbeat("g", a, None, 1)
    assert newcomer.is_parked
    office.wait(10)  # the old member's session is over
    assert newcomer.error == ErrorCode.none


def test_several_members_leave_in_one_request(office: Office) -> None:
    a = office.stable("g")
    errors = office.groups.leave("g", [("who", None), (a, None), (a, None)])
    assert errors == (ErrorCode.none, [ErrorCode.unknown_member_id, ErrorCode.none, ErrorCode.unknown_member_id])


def test_an_assignment_is_handed_out_when_it_is_in_the_catalogue(office: Office) -> None:
    member_id = office.join("g", office.join("g").member_id).member_id
    sync = office.sync("g", member_id, 1, {member_id: b"all"})
    assert sync.is_parked
    assert list(office.catalogue.load_groups()) == []
    office.write()
    assert sync.result.assignment == b"all"
    assert [group for group, _ in office.catalogue.load_groups()] == ["g"]


def test_on_a_full_disk_members_look_for_the_coordinator_again(office: Office) -> None:
    member_id = office.join("g", office.join("g").member_id).member_id
    office.database.full = True
    sync = office.sync("g", member_id, 1, {member_id: b"all"})
    office.write()
    assert sync.error == ErrorCode.not_coordinator
    office.database.full = False
    assert office.join("g", member_id).result.generation == 2


@pytest.mark.parametrize("clean", [True, False])
def test_after_a_restart_a_member_goes_on(office: Office, clean: bool) -> None:
    a = office.stable("g")
    office.restart(clean=clean)
    assert office.groups.heartbeat("g", a, None, 1) == ErrorCode.none
    assert office.sync("g", a, 1).result.assignment == b"all"
    assert office.listed() == {"g": "Stable"}


def test_after_a_restart_a_member_that_does_not_come_back_is_out_after_its_session(office: Office) -> None:
    office.stable("g")
    office.restart()
    office.wait(9.9)
    assert office.listed() == {"g": "Stable"}
    office.wait(0.1)
    assert office.listed() == {"g": "Empty"}


def test_after_a_crash_the_last_durable_generation_counts(office: Office) -> None:
    a = office.stable("g")
    joined = office.join("g", a)
    assert joined.result.generation == 2
    office.sync("g", a, 2, {a: b"never written"})
    office.restart(clean=False)
    assert office.groups.heartbeat("g", a, None, 2) == ErrorCode.illegal_generation
    assert office.groups.heartbeat("g", a, None, 1) == ErrorCode.none


def test_after_a_restart_an_empty_group_is_empty_and_counts_on(office: Office) -> None:
    a = office.stable("g")
    office.groups.leave("g", [(a, None)])
    office.restart()
    assert office.listed() == {"g": "Empty"}
    assert office.join("g", office.join("g").member_id).result.generation == 3


def test_a_group_that_cannot_be_read_back_is_new_and_keeps_its_offsets(office: Office) -> None:
    office.stable("g")
    office.commit("simple", {("orders", 0): 7})
    office.write()
    office.catalogue.save_group("simple", b"not what we wrote")
    office.restart()
    assert office.listed() == {"g": "Stable", "simple": "Empty"}
    assert office.committed("simple") == {("orders", 0): 7}


def test_a_shutdown_lets_go_of_who_is_parked_and_refuses_the_rest(office: Office) -> None:
    a = office.stable("g")
    newcomer = office.join("g", office.join("g").member_id)
    assert newcomer.is_parked
    office.groups.shut_down()
    assert newcomer.error == ErrorCode.not_coordinator
    assert office.groups.heartbeat("g", a, None, 1) == ErrorCode.coordinator_not_available
    assert office.join("h").error == ErrorCode.coordinator_not_available
    assert office.commit("h", {("orders", 0): 1}).error == ErrorCode.coordinator_not_available
    assert office.groups.list() == (ErrorCode.coordinator_not_available, [])


def test_a_shutdown_does_not_change_the_group_that_comes_back(office: Office) -> None:
    a = office.stable("g")
    office.groups.shut_down()
    office.wait(3600)
    office.restart()
    assert office.groups.heartbeat("g", a, None, 1) == ErrorCode.none


def test_groups_are_listed_by_state_in_any_case(office: Office) -> None:
    office.stable("g")
    office.commit("simple", {("orders", 0): 7})
    stable = office.groups.list(["sTABLE"])
    assert [group.group_id for group in stable[1]] == ["g"]
    assert [group.group_id for group in office.groups.list(["Empty", "Stable"])[1]] == ["g", "simple"]
    assert office.groups.list(["nonsense"]) == (ErrorCode.none, [])


def test_a_deleted_group_is_gone_with_its_offsets_when_the_answer_says_so(office: Office) -> None:
    a = office.stable("g")
    office.stable("busy")
    office.groups.leave("g", [(a, None)])
    office.commit("g", {("orders", 0): 7})
    office.write()
    answers: list[dict[str, ErrorCode]] = []
    office.groups.delete(["g", "busy", "nowhere", "g"], answers.append)
    assert answers == []
    assert office.committed("g") == {}
    office.write()
    assert answers == [
        {"g": ErrorCode.none, "busy": ErrorCode.non_empty_group, "nowhere": ErrorCode.group_id_not_found}
    ]
    assert office.stored("g") == {}
    office.restart()
    assert office.listed() == {"busy": "Stable"}


def test_deleting_nothing_is_answered_at_once(office: Office) -> None:
    answers: list[dict[str, ErrorCode]] = []
    office.groups.delete(["nowhere"], answers.append)
    assert answers == [{"nowhere": ErrorCode.group_id_not_found}]


def test_a_deleted_group_begins_anew(office: Office) -> None:
    a = office.stable("g")
    office.groups.leave("g", [(a, None)])
    office.groups.delete(["g"], lambda errors: None)
    assert office.join("g", office.join("g").member_id).result.generation == 1


def test_a_deletion_that_is_not_durable_says_so(office: Office) -> None:
    office.commit("g", {("orders", 0): 7})
    office.write()
    office.database.full = True
    answers: list[dict[str, ErrorCode]] = []
    office.groups.delete(["g"], answers.append)
    office.write()
    assert answers == [{"g": ErrorCode.not_coordinator}]


def test_an_answer_that_cannot_be_sent_does_not_keep_the_others_waiting(office: Office) -> None:
    def broken(result: object) -> None:
        raise ValueError("this connection is a bug")

    a = office.stable("g")
    first = office.join("g").member_id
    second = office.join("g").member_id
    protocols = (("range", b"\0\0\0\0\0\0"),)
    request = JoinRequest(first, None, "c", "/h", 10_000, 60_000, "consumer", protocols, "unused")
    office.groups.join("g", request, broken)
    good = office.join("g", second)
    office.groups.leave("g", [(a, None)])
    assert good.error == ErrorCode.none
