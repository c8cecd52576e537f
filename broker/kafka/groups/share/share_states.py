"""The states of a share group, by Kafka's names, as one table; and as another, how far the assignor has come.

=======  ================  =======
state    event             next
=======  ================  =======
EMPTY    MEMBER_JOINED     STABLE
EMPTY    GROUP_DELETED     DEAD
EMPTY    BROKER_STOPPED    DEAD
STABLE   LAST_MEMBER_LEFT  EMPTY
STABLE   BROKER_STOPPED    DEAD
DEAD     BROKER_STOPPED    DEAD
=======  ================  =======

MEMBER_JOINED: the first member joins; further ones change nothing here. LAST_MEMBER_LEFT: it leaves, or its session times out.
GROUP_DELETED: an administrator deletes the group. BROKER_STOPPED: the broker stops.

The target assignment is not computed while a request is handled, but soon afterwards, by a run that serves all changes until it
begins:

============  ================  ============
phase         event             next
============  ================  ============
IDLE          CHANGED           SCHEDULED
SCHEDULED     CHANGED           SCHEDULED
SCHEDULED     NEEDS_PARTITIONS  INITIALISING
SCHEDULED     READY             COMPUTING
INITIALISING  CHANGED           INITIALISING
INITIALISING  READY             COMPUTING
COMPUTING     CHANGED           COMPUTING
COMPUTING     ASSIGNED          IDLE
============  ================  ============

CHANGED: members or topics have changed, and the target assignment with them. NEEDS_PARTITIONS: the run has found partitions that
have no start offset in this group yet; they are initialised before they are assigned. READY: the assignor can begin, without the
group's lock. ASSIGNED: it has ended.

A pair that is not in the tables is a bug in the broker (AssertionError).
"""

from enum import Enum, auto
from typing import TypeVar


class ShareGroupState(Enum):
    """The value is the name that ShareGroupDescribe and ListGroups show."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


class ShareGroupEvent(Enum):
    MEMBER_JOINED = auto()
    LAST_MEMBER_LEFT = auto()
    GROUP_DELETED = auto()
    BROKER_STOPPED = auto()


class AssignmentPhase(Enum):
    IDLE = auto()
    SCHEDULED = auto()
    INITIALISING = auto()
    COMPUTING = auto()


class AssignmentEvent(Enum):
    CHANGED = auto()
    NEEDS_PARTITIONS = auto()
    READY = auto()
    ASSIGNED = auto()


_S, _E = ShareGroupState, ShareGroupEvent
_P, _A = AssignmentPhase, AssignmentEvent

TABLE: dict[tuple[ShareGroupState, ShareGroupEvent], ShareGroupState] = {
    (_S.EMPTY, _E.MEMBER_JOINED): _S.STABLE,
    (_S.EMPTY, _E.GROUP_DELETED): _S.DEAD,
    (_S.EMPTY, _E.BROKER_STOPPED): _S.DEAD,
    (_S.STABLE, _E.LAST_MEMBER_LEFT): _S.EMPTY,
    (_S.STABLE, _E.BROKER_STOPPED): _S.DEAD,
    (_S.DEAD, _E.BROKER_STOPPED): _S.DEAD,
}

PHASES: dict[tuple[AssignmentPhase, AssignmentEvent], AssignmentPhase] = {
    (_P.IDLE, _A.CHANGED): _P.SCHEDULED,
    (_P.SCHEDULED, _A.CHANGED): _P.SCHEDULED,
    (_P.SCHEDULED, _A.NEEDS_PARTITIONS): _P.INITIALISING,
    (_P.SCHEDULED, _A.READY): _P.COMPUTING,
    (_P.INITIALISING, _A.CHANGED): _P.INITIALISING,
    (_P.INITIALISING, _A.READY): _P.COMPUTING,
    (_P.COMPUTING, _A.CHANGED): _P.COMPUTING,
    (_P.COMPUTING, _A.ASSIGNED): _P.IDLE,
}

_State = TypeVar("_State", bound=Enum)
_Event = TypeVar("_Event", bound=Enum)


def next_state(state: ShareGroupState, event: ShareGroupEvent) -> ShareGroupState:
    """The first table. AssertionError for an event that cannot happen in that state."""
    return _look_up(TABLE, state, event)


def next_phase(phase: AssignmentPhase, event: AssignmentEvent) -> AssignmentPhase:
    """The second table. AssertionError for an event that cannot happen in that phase."""
    return _look_up(PHASES, phase, event)


def _look_up(table: dict[tuple[_State, _Event], _State], state: _State, event: _Event) -> _State:
    after = table.get((state, event))
    if after is None:
        raise AssertionError(f"{event.name} in state {state.name}")
    return after
