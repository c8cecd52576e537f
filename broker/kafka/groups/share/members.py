"""The members of one share group, and what they subscribe to.

Pure bookkeeping of a ``ShareGroup``, under the group's lock. Members that name the same topics share one subscription, however
many they are: this bounds the memory, and the assignor sees at once that there is only one class.

The heartbeats of one share group that wait until what they have changed is durable: one of each member.

Pure bookkeeping of a ``ShareGroup``, under the group's lock.

The rows of a share group in the catalogue: JSON, which people can read and which can get new fields.

The row "" is the group: its epochs. The row ``m/<member id>`` is a member with its assignment, so that the members of a group go
on with their heartbeats after a restart of the broker. A change writes the rows that it concerns.

Which rows of a share group are not durable yet: changed since they were last handed out to be saved, or being saved.

Pure bookkeeping of a ``ShareGroup``, under the group's lock. A row that could not be saved counts as changed again, so that the
next save, of whatever, writes it too: one failure leaves nothing behind.

Tests: tests/kafka/groups/share/test_share_group.py,
tests/kafka/groups/share/test_share_rows.py.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

import attrs

from broker.errors import StorageError
from broker.kafka.groups.group import Answer, GroupType
from broker.kafka.groups.share.simple_assignor import NOTHING, Assignment
from broker.kafka.groups.share.values import HeartbeatResult, Reply
from protocol.kafka.errors import ErrorCode

# What a member takes besides its texts and its partitions: the objects, their places in dicts.
_MEMBER_BYTES = 1000
_NAME_BYTES = 80
_PARTITION_BYTES = 10
_TOPIC_BYTES = 150


@attrs.define(eq=False)
class ShareMember:
    member_id: str
    client_id: str
    client_host: str
    rack_id: str | None
    subscription: "Subscription"
    # The heartbeat that is answered next has this epoch, and the one whose answer was perhaps lost the other.
    epoch: int = 0
    previous_epoch: int = 0
    # What the member has been told, and what it is to have.
    assigned: Assignment = NOTHING
    target: Assignment = NOTHING
    session_s: float = 0.0
    # What ``ShareMembers`` has counted for it.
    counted_bytes: int = 0

    @property
    def texts(self) -> int:
        """How long they are, besides the id."""
        return texts_of(self.client_id, self.client_host, self.rack_id)


@attrs.define(eq=False)
class Subscription:
    """The same names for some members, sorted and without repetitions."""

    names: tuple[str, ...]
    members: int = 0

    @property
    def size_bytes(self) -> int:
        return size_of(self.names)


def size_of(names: Iterable[str]) -> int:
    """What a subscription to these topics takes, in bytes."""
    return sum(_NAME_BYTES + len(name) for name in names)


def texts_of(client_id: str, client_host: str, rack_id: str | None) -> int:
    return len(client_id) + len(client_host) + len(rack_id or "")


class ShareMembers:
    def __init__(self) -> None:
        self._members: dict[str, ShareMember] = {}
        self._subscriptions: dict[tuple[str, ...], Subscription] = {}
        # Cached; None after the subscriptions have changed.
        self._topics: frozenset[str] | None = frozenset()
        # Of all subscriptions together.
        self._subscribed_bytes = 0
        self._member_bytes = 0

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[ShareMember]:
        return iter(self._members.values())

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> ShareMember | None:
        return self._members.get(member_id)

    @property
    def topics(self) -> frozenset[str]:
        """The names of all topics that members subscribe to."""
        if self._topics is None:
            self._topics = frozenset(name for names in self._subscriptions for name in names)
        return self._topics

    @property
    def subscriptions(self) -> Iterable[Subscription]:
        return self._subscriptions.values()

    @property
    def size_bytes(self) -> int:
        return self._subscribed_bytes + self._member_bytes

    def growth(self, names: tuple[str, ...] | None, member_id: str, texts: int) -> int:
        """By how much the group grows if this member subscribes to these names (None: to what it does now), and its texts are as
        long as that."""
        growth = 0 if names is None or names in self._subscriptions else size_of(names)
        member = self._members.get(member_id)
        if member is None:
            return growth + _MEMBER_BYTES + len(member_id) + texts
        return growth + max(0, texts - member.texts)

    def add(self, member: ShareMember, names: tuple[str, ...]) -> None:
        member.subscription = self._subscribe(names)
        self._members[member.member_id] = member
        self._count(member)

    def remove(self, member_id: str) -> ShareMember:
        member = self._members.pop(member_id)
        self._member_bytes -= member.counted_bytes
        self._unsubscribe(member.subscription)
        return member

    def change_subscription(self, member: ShareMember, names: tuple[str, ...]) -> None:
        before = member.subscription
        member.subscription = self._subscribe(names)
        self._unsubscribe(before)

    def rename(self, member: ShareMember, client_id: str, client_host: str, rack_id: str | None) -> None:
        """The member says something else of itself."""
        member.client_id, member.client_host, member.rack_id = client_id, client_host, rack_id
        self._count(member)

    def set_target(self, member: ShareMember, target: Assignment) -> None:
        member.target = target
        self._count(member)

    def _count(self, member: ShareMember) -> None:
        size = _MEMBER_BYTES + len(member.member_id) + member.texts
        size += sum(_TOPIC_BYTES + _PARTITION_BYTES * len(partitions) for partitions in member.target.values())
        self._member_bytes += size - member.counted_bytes
        member.counted_bytes = size

    def _subscribe(self, names: tuple[str, ...]) -> Subscription:
        subscription = self._subscriptions.get(names)
        if subscription is None:
            subscription = self._subscriptions[names] = Subscription(names)
            self._subscribed_bytes += subscription.size_bytes
            self._topics = None
        subscription.members += 1
        return subscription

    def _unsubscribe(self, subscription: Subscription) -> None:
        subscription.members -= 1
        if not subscription.members:
            del self._subscriptions[subscription.names]
            self._subscribed_bytes -= subscription.size_bytes
            self._topics = None


@attrs.define(eq=False)
class _Parked:
    """``full``: it is answered with the assignment even if that has not changed."""

    to: Reply
    full: bool


class ParkedHeartbeats:
    """``effect`` takes the answers."""

    def __init__(self, effect: Callable[[Answer], None]) -> None:
        self._effect = effect
        self._parked: dict[str, _Parked] = {}

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._parked

    def __iter__(self) -> Iterator[str]:
        """The members that wait."""
        return iter(self._parked)

    def park(self, member_id: str, to: Reply, *, full: bool) -> None:
        before = self._parked.get(member_id)
        if before is not None:  # the client has given up that request, or somebody else uses its id
            self.refuse(member_id, ErrorCode.coordinator_not_available)
            full = full or before.full
        self._parked[member_id] = _Parked(to, full)

    def tell_assignment(self, member_id: str) -> None:
        """The member's assignment has changed."""
        self._parked[member_id].full = True

    def is_full(self, member_id: str) -> bool:
        """Whether the answer has the assignment."""
        return self._parked[member_id].full

    def answer(self, member_id: str, result: HeartbeatResult) -> None:
        self._effect(Answer(self._parked.pop(member_id).to, result))

    def refuse(self, member_id: str, error: ErrorCode) -> None:
        """Does nothing for a member that does not wait."""
        if member_id in self._parked:
            self.answer(member_id, HeartbeatResult(error, member_id))

    def refuse_all(self, error: ErrorCode) -> None:
        for member_id in list(self._parked):
            self.refuse(member_id, error)


GROUP = ""
_MEMBER_PREFIX = "m/"
_VERSION = 1


@attrs.frozen
class StoredMember:
    member_id: str
    client_id: str
    client_host: str
    rack_id: str | None
    names: tuple[str, ...]
    epoch: int
    previous_epoch: int
    assigned: Assignment
    target: Assignment


@attrs.frozen
class StoredShareGroup:
    epoch: int
    assignment_epoch: int
    members: tuple[StoredMember, ...]


def member_row(member_id: str) -> str:
    """The name of a member's row."""
    return _MEMBER_PREFIX + member_id


def encode_group(epoch: int, assignment_epoch: int) -> bytes:
    return _encode({"type": GroupType.SHARE.value, "epoch": epoch, "assignment_epoch": assignment_epoch})


def encode_member(member: ShareMember) -> bytes:
    value: dict[str, Any] = {
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rack_id": member.rack_id,
        "topics": member.subscription.names,
        "epoch": member.epoch,
        "previous_epoch": member.previous_epoch,
        "target": _assignment_value(member.target),
    }
    if member.assigned != member.target:
        value["assigned"] = _assignment_value(member.assigned)
    return _encode(value)


def decode(group_id: str, rows: Mapping[str, bytes]) -> StoredShareGroup:
    """Raises StorageError if the rows are not what ``encode_group`` and ``encode_member`` have made."""
    try:
        group = _decode(rows[GROUP])
        members = tuple(
            _decode_member(name.removeprefix(_MEMBER_PREFIX), _decode(row))
            for name, row in rows.items()
            if name.startswith(_MEMBER_PREFIX)
        )
        return StoredShareGroup(int(group["epoch"]), int(group["assignment_epoch"]), members)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"the state of share group {group_id!r} cannot be read: {error!r}") from error


def _decode_member(member_id: str, value: dict[str, Any]) -> StoredMember:
    target = _assignment(value["target"])
    return StoredMember(
        member_id,
        value["client_id"],
        value["client_host"],
        value["rack_id"],
        tuple(value["topics"]),
        int(value["epoch"]),
        int(value["previous_epoch"]),
        _assignment(value["assigned"]) if "assigned" in value else target,
        target,
    )


def _assignment_value(assignment: Assignment) -> dict[str, list[int]]:
    """Runs of partitions as two numbers each, the first and the last: members of small groups have long runs."""
    value: dict[str, list[int]] = {}
    for topic_id, partitions in assignment.items():
        runs = value[str(topic_id)] = []
        for partition in partitions:
            if runs and runs[-1] == partition - 1:
                runs[-1] = partition
            else:
                runs += (partition, partition)
    return value


def _assignment(value: dict[str, list[int]]) -> Assignment:
    assignment: dict[UUID, tuple[int, ...]] = {}
    for topic_id, runs in value.items():
        pairs = zip(runs[::2], runs[1::2], strict=True)
        assignment[UUID(topic_id)] = tuple(number for first, last in pairs for number in range(first, last + 1))
    return assignment


def _encode(value: dict[str, Any]) -> bytes:
    return json.dumps({"version": _VERSION, **value}, separators=(",", ":")).encode()


def _decode(row: bytes) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(row)
    if value["version"] != _VERSION:
        raise ValueError(f"version {value['version']}")
    return value


class UnsavedRows:
    """Rows are named by any text."""

    def __init__(self) -> None:
        self._changed: dict[str, None] = {}  # as an ordered set
        # By row: the number of the last save that has it.
        self._saving: dict[str, int] = {}
        self._number = 0

    def __contains__(self, row: object) -> bool:
        return row in self._saving or row in self._changed

    def add(self, row: str) -> None:
        """This row has changed."""
        self._changed[row] = None

    def take(self) -> tuple[int, list[str]]:
        """The rows that have changed, which are saved from now on, and the number of that save."""
        self._number += 1
        taken = list(self._changed)
        self._changed.clear()
        self._saving.update(dict.fromkeys(taken, self._number))
        return self._number, taken

    def saved(self, number: int, taken: Iterable[str], *, failed: bool) -> None:
        """That save is durable, or has failed."""
        for row in taken:
            if self._saving.get(row) == number:
                del self._saving[row]
                if failed:
                    self._changed[row] = None

    @property
    def any_changed(self) -> bool:
        """Whether there is anything to ``take``."""
        return bool(self._changed)
