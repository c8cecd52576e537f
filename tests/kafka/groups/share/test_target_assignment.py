"""The tables of a share group follow the meaning of the events."""

from broker.kafka.groups.share.target_assignment import (
    PHASES,
    TABLE,
    AssignmentEvent,
    AssignmentPhase,
    ShareGroupEvent,
    ShareGroupState,
    next_phase,
    next_state,
)
from tests.transitions import check_pairs

S, E = ShareGroupState, ShareGroupEvent
P, A = AssignmentPhase, AssignmentEvent


def expected_state(state: ShareGroupState, event: ShareGroupEvent) -> ShareGroupState | None:
    if event is E.BROKER_STOPPED:
        return S.DEAD
    if state is S.EMPTY:
        return {E.MEMBER_JOINED: S.STABLE, E.GROUP_DELETED: S.DEAD}.get(event)
    return S.EMPTY if state is S.STABLE and event is E.LAST_MEMBER_LEFT else None


def expected_phase(phase: AssignmentPhase, event: AssignmentEvent) -> AssignmentPhase | None:
    if event is A.CHANGED:
        return P.SCHEDULED if phase is P.IDLE else phase  # one run serves all changes
    if event is A.ASSIGNED:
        return P.IDLE if phase is P.COMPUTING else None
    if event is A.NEEDS_PARTITIONS:
        return P.INITIALISING if phase is P.SCHEDULED else None
    return P.COMPUTING if phase in (P.SCHEDULED, P.INITIALISING) else None


def test_every_pair_follows_the_event() -> None:
    check_pairs(TABLE, next_state, S, E, expected_state)
    check_pairs(PHASES, next_phase, P, A, expected_phase)
