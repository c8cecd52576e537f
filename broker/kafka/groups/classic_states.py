"""The state table of a classic consumer group, by Kafka's names.

MEMBER_JOINED: a new member joins.
MEMBER_CHANGED: a member joins again with other protocols; or the leader of a stable group joins again; or a static member
comes back under a new member id, and there is no generation yet in which it could continue, or it changes the vote.
MEMBER_LEFT: a member leaves, or its session times out.
SYNC_TIMED_OUT: members have not synced within the rebalance timeout and have been removed.
ASSIGNMENT_SAVED, ASSIGNMENT_FAILED: the leader's assignment is durable; or it cannot be saved, or is too large.
LIMIT_LOWERED: the group was loaded and has more members than are allowed now.
GENERATION_STARTED: every member has joined and no pending member is awaited, or the time to join is up; members that have not
joined are removed, except static members. GENERATION_EMPTY: the same, but no member remains.
GROUP_DELETED: the group has no members, and it is deleted or has no offsets left. BROKER_STOPPED: the broker stops.

In PREPARING_REBALANCE the same things happen to members, but the state stays. A pair that the table lacks is a bug in the broker
(AssertionError).
"""

from enum import Enum, auto

from broker.transitions import Transitions


class ClassicGroupState(Enum):
    """The value is the name that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class ClassicGroupEvent(Enum):
    MEMBER_JOINED = auto()
    MEMBER_CHANGED = auto()
    MEMBER_LEFT = auto()
    SYNC_TIMED_OUT = auto()
    ASSIGNMENT_SAVED = auto()
    ASSIGNMENT_FAILED = auto()
    LIMIT_LOWERED = auto()
    GENERATION_STARTED = auto()
    GENERATION_EMPTY = auto()
    GROUP_DELETED = auto()
    BROKER_STOPPED = auto()


TABLE = Transitions(
    ClassicGroupState,
    ClassicGroupEvent,
    """
    EMPTY                 MEMBER_JOINED       PREPARING_REBALANCE
    EMPTY                 GROUP_DELETED       DEAD
    EMPTY                 BROKER_STOPPED      DEAD
    PREPARING_REBALANCE   GENERATION_STARTED  COMPLETING_REBALANCE
    PREPARING_REBALANCE   GENERATION_EMPTY    EMPTY
    PREPARING_REBALANCE   BROKER_STOPPED      DEAD
    COMPLETING_REBALANCE  ASSIGNMENT_SAVED    STABLE
    COMPLETING_REBALANCE  ASSIGNMENT_FAILED   PREPARING_REBALANCE
    COMPLETING_REBALANCE  MEMBER_JOINED       PREPARING_REBALANCE
    COMPLETING_REBALANCE  MEMBER_CHANGED      PREPARING_REBALANCE
    COMPLETING_REBALANCE  MEMBER_LEFT         PREPARING_REBALANCE
    COMPLETING_REBALANCE  SYNC_TIMED_OUT      PREPARING_REBALANCE
    COMPLETING_REBALANCE  BROKER_STOPPED      DEAD
    STABLE                MEMBER_JOINED       PREPARING_REBALANCE
    STABLE                MEMBER_CHANGED      PREPARING_REBALANCE
    STABLE                MEMBER_LEFT         PREPARING_REBALANCE
    STABLE                SYNC_TIMED_OUT      PREPARING_REBALANCE
    STABLE                LIMIT_LOWERED       PREPARING_REBALANCE
    STABLE                BROKER_STOPPED      DEAD
    DEAD                  BROKER_STOPPED      DEAD
    """,
)
next_state = TABLE.next
