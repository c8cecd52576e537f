"""The members of a share group, their subscriptions, and their rows in the catalogue.

Pure bookkeeping of a ``ShareGroup``, under the group's lock.

The row "" is the group: its epochs. The row ``m/<member id>`` is a member with its assignment, so that the members of a group
continue with their heartbeats after a restart of the broker. A change writes the rows that it concerns.

Tests: tests/kafka/groups/share/test_members.py, tests/kafka/groups/share/test_share_group.py.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

import attrs

from broker.errors import StorageError
from broker.kafka.groups.coordinated import (
    GROUP_ROW,
    MEMBER_PREFIX,
    UNREADABLE,
    Subscriptions,
    decode_row,
    encode_row,
    partitions_of,
    runs_of,
)
from broker.kafka.groups.group import GroupType
from broker.kafka.groups.share.simple_assignor import NOTHING, Assignment

# Memory of a member besides its texts and its partitions: the objects, their places in dicts.
_MEMBER_BYTES = 1000
_NAME_BYTES = 80
_PARTITION_BYTES = 10
_TOPIC_BYTES = 150


@attrs.frozen(cache_hash=True)
class Subscription:
    """``names``: sorted and without repetitions, so that subscriptions to the same topics are equal."""

    names: tuple[str, ...]

    @classmethod
    def to(cls, names: Iterable[str]) -> "Subscription":
        return cls(tuple(sorted(set(names))))

    @property
    def size_bytes(self) -> int:
        return sum(_NAME_BYTES + len(name) for name in self.names)


@attrs.define(eq=False)
class ShareMember:
    member_id: str
    client_id: str
    client_host: str
    rack_id: str | None
    subscription: Subscription
    # Its next heartbeat has this epoch, or the previous epoch if an answer was lost.
    epoch: int = 0
    previous_epoch: int = 0
    # The assignment that the member has been told, and its target.
    assigned: Assignment = NOTHING
    target: Assignment = NOTHING
    session_s: float = 0.0
    # The answer to its parked request has the assignment, even if that has not changed.
    wants_assignment: bool = False
    # The bytes that ``ShareMembers`` has counted for it.
    counted_bytes: int = 0

    @property
    def texts(self) -> int:
        """Length of the texts besides the id."""
        return texts_of(self.client_id, self.client_host, self.rack_id)


def texts_of(client_id: str, client_host: str, rack_id: str | None) -> int:
    return len(client_id) + len(client_host) + len(rack_id or "")


class ShareMembers:
    def __init__(self) -> None:
        self.subscriptions: Subscriptions[Subscription] = Subscriptions()
        self._members: dict[str, ShareMember] = {}
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
    def size_bytes(self) -> int:
        return self.subscriptions.size_bytes + self._member_bytes

    def growth(self, subscription: Subscription | None, member_id: str, texts: int) -> int:
        """The growth of the group if this member has this subscription (None: its present subscription) and texts of this
        length."""
        growth = 0 if subscription is None or subscription in self.subscriptions else subscription.size_bytes
        member = self._members.get(member_id)
        if member is None:
            return growth + _MEMBER_BYTES + len(member_id) + texts
        return growth + max(0, texts - member.texts)

    def add(self, member: ShareMember) -> None:
        self._members[member.member_id] = member
        self._subscribe(member, member.subscription)
        self._count(member)

    def remove(self, member_id: str) -> ShareMember:
        member = self._members.pop(member_id)
        self._member_bytes -= member.counted_bytes
        self.subscriptions.count(member.subscription, -1)
        return member

    def change_subscription(self, member: ShareMember, subscription: Subscription) -> None:
        before = member.subscription
        self._subscribe(member, subscription)
        self.subscriptions.count(before, -1)

    def rename(self, member: ShareMember, client_id: str, client_host: str, rack_id: str | None) -> None:
        """The member reports new metadata."""
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

    def _subscribe(self, member: ShareMember, subscription: Subscription) -> None:
        member.subscription = self.subscriptions.intern(subscription)
        self.subscriptions.count(member.subscription, 1)


@attrs.frozen
class StoredShareGroup:
    epoch: int
    assignment_epoch: int
    members: tuple[ShareMember, ...]


def encode_group(epoch: int, assignment_epoch: int) -> bytes:
    return encode_row({"type": GroupType.SHARE.value, "epoch": epoch, "assignment_epoch": assignment_epoch})


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
    return encode_row(value)


def decode(group_id: str, rows: Mapping[str, bytes]) -> StoredShareGroup:
    """Raises StorageError if ``encode_group`` and ``encode_member`` have not made the rows."""
    try:
        group = decode_row(rows[GROUP_ROW])
        members = tuple(
            _decode_member(name.removeprefix(MEMBER_PREFIX), decode_row(row))
            for name, row in rows.items()
            if name.startswith(MEMBER_PREFIX)
        )
        return StoredShareGroup(int(group["epoch"]), int(group["assignment_epoch"]), members)
    except UNREADABLE as error:
        raise StorageError(f"the state of share group {group_id!r} cannot be read: {error!r}") from error


def _decode_member(member_id: str, value: dict[str, Any]) -> ShareMember:
    target = _assignment(value["target"])
    return ShareMember(
        member_id,
        value["client_id"],
        value["client_host"],
        value["rack_id"],
        Subscription(tuple(value["topics"])),
        int(value["epoch"]),
        int(value["previous_epoch"]),
        _assignment(value["assigned"]) if "assigned" in value else target,
        target,
    )


def _assignment_value(assignment: Assignment) -> dict[str, list[int]]:
    return {str(topic_id): runs_of(partitions) for topic_id, partitions in assignment.items()}


def _assignment(value: dict[str, list[int]]) -> Assignment:
    return {UUID(topic_id): tuple(partitions_of(runs)) for topic_id, runs in value.items()}
