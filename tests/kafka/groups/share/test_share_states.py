"""The tables of a share group: what their docstring shows, and what the events mean."""

import re

import pytest

from broker.kafka.groups.share import share_states
from broker.kafka.groups.share.share_states import (
    PHASES,
    TABLE,
    AssignmentEvent,
    AssignmentPhase,
    ShareGroupEvent,
    ShareGroupState,
    next_phase,
    next_state,
)
from tests.loops import loop_over

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


@loop_over("state", S)
@loop_over("event", E)
def test_every_pair_of_state_and_event_does_what_the_event_means(
    state: ShareGroupState, event: ShareGroupEvent
) -> None:
    after = expected_state(state, event)
    assert TABLE.get((state, event)) == after
    if after is None:
        with pytest.raises(AssertionError, match=f"{event.name} in state {state.name}"):
            next_state(state, event)
    else:
        assert next_state(state, event) is after


@loop_over("phase", P)
@loop_over("event", A)
def test_every_pair_of_phase_and_event_does_what_the_event_means(
    phase: AssignmentPhase, event: AssignmentEvent
) -> None:
    after = expected_phase(phase, event)
    assert PHASES.get((phase, event)) == after
    if after is None:
        with pytest.raises(AssertionError, match=f"{event.name} in state {phase.name}"):
            next_phase(phase, event)
    else:
        assert next_phase(phase, event) is after


def test_the_tables_in_the_docstring_are_the_tables() -> None:
    rows = re.findall(r"^([A-Z]+) +([A-Z_]+) +([A-Z]+)$", share_states.__doc__ or "", re.MULTILINE)
    states = {(S[state], E[event]): S[after] for state, event, after in rows if state in S.__members__}
    phases = {(P[state], A[event]): P[after] for state, event, after in rows if state in P.__members__}
    assert states == TABLE
    assert phases == PHASES
    assert len(rows) == len(TABLE) + len(PHASES)
