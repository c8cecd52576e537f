"""The rows of a share group in the catalogue: JSON, which people can read and which can get new fields.

The row "" is the group: its epochs. The row ``m/<member id>`` is a member with its assignment, so that the members of a group go
on with their heartbeats after a restart of the broker. A change writes the rows that it concerns.

Which rows of a share group are not durable yet: changed since they were last handed out to be saved, or being saved.

Pure bookkeeping of a ``ShareGroup``, under the group's lock. A row that could not be saved counts as changed again, so that the
next save, of whatever, writes it too: one failure leaves nothing behind.

Tests: tests/kafka/groups/share/test_share_rows.py.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import attrs

from broker.errors import StorageError
from broker.kafka.groups.group import GroupType
from broker.kafka.groups.share.members import ShareMember
from broker.kafka.groups.share.simple_assignor import Assignment

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
