"""What every kind of group is to the coordinator: the interface ``Group``, and the effects that the newer kinds ask for.

A group is pure. Events come in with ``now`` (monotonic seconds), one after the other, under the lock of the group's
``GroupEntry``; what has to be done comes out of ``take_effects``. ``registry.py`` carries it out, ``kinds.py`` has the table of
the kinds.

A group of the classic protocol is stored whole with each generation (``values.Save``). A group of a newer protocol is stored as
rows of which each change writes those that it concerns (``SaveRows``): the row "" is JSON with the fields ``version`` and
``type`` (the value of ``GroupType``), and the others are the group's own. A group that has not written its row "" is not stored.

Tests: tests/kafka/groups/test_registry.py.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Protocol

import attrs

from protocol.kafka.errors import ErrorCode


class GroupType(Enum):
    """The value is the name that ListGroups shows."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


@attrs.frozen(eq=False)
class SaveRows:
    """Effect: make these rows durable, all or none, then call the group's ``saved``. None deletes a row. Rows that several
    effects of one group write are made durable in the order of the effects.

    ``then`` is the group's own: what waits for it. None if nothing does.
    """

    put: Mapping[str, bytes | None]
    then: Any = None


@attrs.frozen(eq=False)
class Answer:
    """Effect: call ``to`` with the result, without the group's lock. ``to`` must not block."""

    to: Callable[[Any], None]
    result: Any


class Group(Protocol):
    """One group, of any kind. A request that is against the rules gets an error code as its answer."""

    type: ClassVar[GroupType]
    group_id: str

    # What the coordinator reads -------------------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        """As ListGroups shows it: "Stable", "Empty", "Assigning", ..."""

    @property
    def epoch(self) -> int:
        """The group epoch, or the generation. It increases with each rebalance."""

    @property
    def member_count(self) -> int:
        """How many members it has."""

    @property
    def is_empty(self) -> bool:
        """It has no members, and is not dead."""

    @property
    def is_dead(self) -> bool:
        """It is deleted, or the broker stops."""

    @property
    def topics(self) -> frozenset[str] | None:
        """Topics that it subscribes to, also by regular expression; None if the coordinator cannot know them."""

    @property
    def wake(self) -> float:
        """When ``expire`` is due (monotonic s); inf if no time-out is set."""

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes, besides what every group takes (``coordinator_memory.GROUP_BYTES``)."""

    @property
    def has_pending_members(self) -> bool:
        """A client was given a member id and is about to join with it."""

    @property
    def was_never_joined(self) -> bool:
        """No client has been a member or is about to become one, and nothing was stored: the group was made for a request
        that did not need it."""

    def take_effects(self) -> Sequence[Any]:
        """What the events since the last call ask for, in order."""

    # Events ---------------------------------------------------------------------------------------------------------

    def check_commit(self, member_id: str, instance_id: str | None, epoch: int, now: float) -> ErrorCode:
        """Whether this member, or (epoch -1) a client that is not a member, may commit offsets now."""

    def saved(self, save: Any, error: ErrorCode, now: float) -> None:
        """``save``, an effect of this group, is durable, or could not be made so (``error``)."""

    def expire(self, now: float) -> None:
        """Do everything that is due by ``now``."""

    def delete(self) -> ErrorCode:
        """End the group if it has no members."""

    def shut_down(self) -> None:
        """The broker stops. Requests that wait are answered; the group stays as it was saved."""


@attrs.frozen
class GroupKind:
    """A kind of group: how one is made, and how it is made again from its rows.

    ``restore`` raises StorageError if the rows cannot be read. Its rows do not have the row of a group that has none.
    """

    type: GroupType
    make: Callable[[str], Group]
    restore: Callable[[str, Mapping[str, bytes], float], Group]
