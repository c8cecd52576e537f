"""The coordinator's view of every kind of group: the interface ``Group``, and the effects of the newer kinds.

A group is pure. Events come in with ``now`` (monotonic seconds), one by one, under the lock of the group's ``GroupEntry``;
effects come out of ``take_effects``. ``registry.py`` carries them out, ``kinds.py`` has the table of the kinds.

A group of the classic protocol is stored whole with each generation (``values.Save``). A group of a newer protocol is stored as
rows, and each change writes the rows that it concerns (``SaveRows``): the row "" is JSON with the fields ``version`` and
``type`` (the value of ``GroupType``), and the others belong to the group. A group that has not written its row "" is not stored.

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

    ``then`` belongs to the group: the action that waits for the save, or None.
    """

    put: Mapping[str, bytes | None]
    then: Any = None


@attrs.frozen(eq=False)
class Answer:
    """Effect: call ``to`` with the result, without the group's lock. ``to`` must not block."""

    to: Callable[[Any], None]
    result: Any


class Group(Protocol):
    """A group of any kind. A request against the rules gets an error code as its answer."""

    type: ClassVar[GroupType]
    group_id: str

    # State that the coordinator reads --------------------------------------------------------------------------------

    @property
    def state_name(self) -> str:
        """As ListGroups shows it: "Stable", "Empty", "Assigning", ..."""

    @property
    def epoch(self) -> int:
        """The group epoch, or the generation. It increases with each rebalance."""

    @property
    def member_count(self) -> int:
        """Number of members."""

    @property
    def is_empty(self) -> bool:
        """Whether it has no members and is not dead."""

    @property
    def is_dead(self) -> bool:
        """Whether it is deleted, or the broker stops."""

    @property
    def topics(self) -> frozenset[str] | None:
        """Topics that it subscribes to, also by regular expression; None if the coordinator cannot know them."""

    @property
    def wake(self) -> float:
        """When ``expire`` is due (monotonic s); inf if no time-out is set."""

    @property
    def size_bytes(self) -> int:
        """Approximate memory in addition to that of every group (``values.GROUP_BYTES``)."""

    @property
    def has_pending_members(self) -> bool:
        """Whether a client was given a member id and is about to join with it."""

    @property
    def was_never_joined(self) -> bool:
        """Whether no client has been or is about to become a member, and nothing was stored: the group was made for a request
        that did not need it."""

    def take_effects(self) -> Sequence[Any]:
        """The effects of the events since the last call, in order."""

    # Events ---------------------------------------------------------------------------------------------------------

    def check_commit(self, member_id: str, instance_id: str | None, epoch: int, now: float) -> ErrorCode:
        """Whether this member, or (epoch -1) a client that is not a member, may commit offsets now."""

    def saved(self, save: Any, error: ErrorCode, now: float) -> None:
        """``save``, an effect of this group, is durable, or has failed (``error``)."""

    def expire(self, now: float) -> None:
        """Handle everything that is due by ``now``."""

    def rebalance(self, now: float) -> bool:
        """Begin a rebalance that every member notices. False if there are no members."""

    def time_out(self, member_id: str | None, now: float) -> bool:
        """Remove this member, or all, as at the end of its session. False if there is no such member."""

    def delete(self) -> ErrorCode:
        """End the group if it has no members."""

    def shut_down(self) -> None:
        """The broker stops. Waiting requests are answered; the group stays as it was saved."""


@attrs.frozen
class GroupKind:
    """A kind of group: how a group is made, and how it is restored from its rows.

    ``restore`` raises StorageError if the rows cannot be read. They do not include the registry's own row (``kinds.SINCE``).
    """

    type: GroupType
    make: Callable[[str], Group]
    restore: Callable[[str, Mapping[str, bytes], float], Group]
