"""The states of a consumer group's member and of the group, by Kafka's names, as two tables.

A member is *reconciled* towards the target assignment: at each of its heartbeats it goes as far as it can.

====================  ===================  ====================  ============
member                event                next state            member epoch
====================  ===================  ====================  ============
STABLE                REVOCATION_REQUIRED  UNREVOKED_PARTITIONS  stays
STABLE                RELEASE_AWAITED      UNRELEASED_PARTITIONS target's
STABLE                TARGET_REACHED       STABLE                target's
STABLE                SUBSCRIPTION_SHRUNK  STABLE                stays
UNREVOKED_PARTITIONS  REVOCATION_REQUIRED  UNREVOKED_PARTITIONS  stays
UNREVOKED_PARTITIONS  RELEASE_AWAITED      UNRELEASED_PARTITIONS target's
UNREVOKED_PARTITIONS  TARGET_REACHED       STABLE                target's
UNRELEASED_PARTITIONS REVOCATION_REQUIRED  UNREVOKED_PARTITIONS  stays
UNRELEASED_PARTITIONS RELEASE_AWAITED      UNRELEASED_PARTITIONS target's
UNRELEASED_PARTITIONS TARGET_REACHED       STABLE                target's
UNKNOWN               REVOCATION_REQUIRED  UNREVOKED_PARTITIONS  stays
UNKNOWN               RELEASE_AWAITED      UNRELEASED_PARTITIONS target's
UNKNOWN               TARGET_REACHED       STABLE                target's
====================  ===================  ====================  ============

REVOCATION_REQUIRED: the member has partitions that the target, or its subscription, takes from it, and its client has not said
that it has given them up. They stay the member's until it says so. RELEASE_AWAITED: it has nothing to give up, and gets what is
free of its target; the rest still belongs to other members. TARGET_REACHED: it has the partitions of its target and no others.
SUBSCRIPTION_SHRUNK: it no longer subscribes to a topic whose partitions its client has given up already; there is no newer
target.

UNKNOWN is the state of a member whose row was written by a newer version: it goes to its target like any other. A pair that is
not in the table is a bug in the broker (AssertionError).

The state of a group is not kept but follows from its members and epochs:

=======  ==================================  =================  ===========
members  group epoch                         all members        group
=======  ==================================  =================  ===========
none     any                                 -                  EMPTY
some     greater than the assignment epoch   any                ASSIGNING
some     equal to the assignment epoch       some not STABLE    RECONCILING
some     equal to the assignment epoch       STABLE and there   STABLE
=======  ==================================  =================  ===========

*There* is at the assignment epoch. A group that was deleted, or whose broker has stopped, or that has become a classic one, is
DEAD.
"""

from enum import Enum, auto
from typing import Final


class MemberState(Enum):
    """The value is what the catalogue stores."""

    STABLE = "stable"
    UNREVOKED_PARTITIONS = "unrevoked"
    UNRELEASED_PARTITIONS = "unreleased"
    UNKNOWN = "unknown"


class MemberEvent(Enum):
    REVOCATION_REQUIRED = auto()
    RELEASE_AWAITED = auto()
    TARGET_REACHED = auto()
    SUBSCRIPTION_SHRUNK = auto()


class GroupState(Enum):
    """The value is the name that ListGroups and ConsumerGroupDescribe show."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


_S, _E = MemberState, MemberEvent

# The next state, and whether the member goes on to the target's epoch.
TABLE: Final[dict[tuple[MemberState, MemberEvent], tuple[MemberState, bool]]] = {
    (_S.STABLE, _E.SUBSCRIPTION_SHRUNK): (_S.STABLE, False),
    **{(state, _E.REVOCATION_REQUIRED): (_S.UNREVOKED_PARTITIONS, False) for state in _S},
    **{(state, _E.RELEASE_AWAITED): (_S.UNRELEASED_PARTITIONS, True) for state in _S},
    **{(state, _E.TARGET_REACHED): (_S.STABLE, True) for state in _S},
}


def next_state(state: MemberState, event: MemberEvent) -> tuple[MemberState, bool]:
    """The table. AssertionError for an event that cannot happen in this state."""
    after = TABLE.get((state, event))
    if after is None:
        raise AssertionError(f"{event.name} in state {state.name}")
    return after


def group_state(members: int, group_epoch: int, assignment_epoch: int, all_reconciled: bool) -> GroupState:
    """The second table."""
    if not members:
        return GroupState.EMPTY
    if group_epoch > assignment_epoch:
        return GroupState.ASSIGNING
    return GroupState.STABLE if all_reconciled else GroupState.RECONCILING
