"""The state tables of members and of groups allow exactly the events that make sense."""

import re

from broker.kafka.groups.consumer import members as member_states
from broker.kafka.groups.consumer.members import (
    ADVANCES,
    TABLE,
    GroupState,
    MemberEvent,
    MemberState,
    group_state,
    next_state,
)
from tests.transitions import check_pairs

S, E, G = MemberState, MemberEvent, GroupState

DOC = member_states.__doc__ or ""


def expected(state: MemberState, event: MemberEvent) -> MemberState | None:
    """The next state by the meaning of the event; None if it cannot happen in that state."""
    if event is E.REVOCATION_REQUIRED:
        return S.UNREVOKED_PARTITIONS
    if event is E.RELEASE_AWAITED:
        return S.UNRELEASED_PARTITIONS
    if event is E.TARGET_REACHED:
        return S.STABLE
    # A member with partitions to give up, or below its target, is given the newest target instead.
    return S.STABLE if state is S.STABLE else None


def test_every_pair_follows_the_event() -> None:
    check_pairs(TABLE, next_state, S, E, expected)


def test_only_members_that_owe_nothing_advance() -> None:
    assert {E.RELEASE_AWAITED, E.TARGET_REACHED} == ADVANCES


def test_docstring_explains_every_event() -> None:
    assert {event.name for event in MemberEvent} <= set(re.findall(r"\b([A-Z_]+):", DOC))


def test_group_state_function_follows_the_docstring_table() -> None:
    rows = re.findall(r"^(none|some)  +(any|greater|equal)[^-]*?  +(\S.*?)  +([A-Z]+)$", DOC, re.MULTILINE)
    assert [row[3] for row in rows] == ["EMPTY", "ASSIGNING", "RECONCILING", "STABLE"]
    for members, epoch, reconciled, name in rows:
        for group_epoch in {"any": (5, 6), "greater": (6,), "equal": (5,)}[epoch]:
            for all_reconciled in {"-": (False, True), "any": (False, True), "some not STABLE": (False,)}.get(
                reconciled, (True,)
            ):
                assert group_state(int(members == "some"), group_epoch, 5, all_reconciled) is G[name]


def test_names_of_states_are_kafkas() -> None:
    assert {state.value for state in GroupState} == {"Empty", "Assigning", "Reconciling", "Stable", "Dead"}
