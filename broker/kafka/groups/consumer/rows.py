"""A consumer group as the rows that the catalogue stores: JSON with a version, which people can read.

One row is the group itself (key ""), and each member has two: ``m/<member id>`` is what it has said of itself, ``a/<member
id>`` what it was told, its epochs and its partitions. So a step of a member writes neither its subscription nor other members.
The target assignment is not stored: ``restore.py`` says how it comes back.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

import attrs

from broker.errors import StorageError
from broker.kafka.groups.consumer.members import ClassicMetadata, ConsumerMember, MemberState, Subscription
from broker.kafka.groups.consumer.values import Assignment

_VERSION: Final = 1
GROUP_ROW: Final = ""
TYPE: Final = "consumer"


@attrs.frozen
class GroupRow:
    """``topics_hash``: of what the target assignment was computed from (``assignment_task.hash_of``)."""

    epoch: int
    assignment_epoch: int
    topics_hash: str = ""


def metadata_row(member_id: str) -> str:
    return f"m/{member_id}"


def assignment_row(member_id: str) -> str:
    return f"a/{member_id}"


def encode_group(row: GroupRow) -> bytes:
    return _encode(
        {
            "type": TYPE,
            "epoch": row.epoch,
            "assignment_epoch": row.assignment_epoch,
            "topics_hash": row.topics_hash,
        }
    )


def decode_group(group_id: str, data: bytes) -> GroupRow:
    """Raises StorageError if these are not bytes that ``encode_group`` made."""
    try:
        value = _decode(data)
        if value["type"] != TYPE:
            raise ValueError(f"type {value['type']}")
        return GroupRow(int(value["epoch"]), int(value["assignment_epoch"]), str(value["topics_hash"]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(group_id, GROUP_ROW, error) from error


def encode_metadata(member: ConsumerMember) -> bytes:
    value: dict[str, Any] = {
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "names": sorted(member.subscription.names),
        "regex": member.subscription.regex,
        "server_assignor": member.server_assignor,
    }
    if member.classic is not None:
        value["classic"] = {
            "session_timeout_ms": member.classic.session_timeout_ms,
            "protocols": [[name, b64encode(data).decode("ascii")] for name, data in member.classic.protocols],
        }
    return _encode(value)


def encode_assignment(member: ConsumerMember) -> bytes:
    return _encode(
        {
            "epoch": member.epoch,
            "previous_epoch": member.previous_epoch,
            "state": member.state.value,
            "assigned": _ranges_by_topic(member.assigned),
            "revoking": _ranges_by_topic(member.revoking),
        }
    )


def decode_member(group_id: str, member_id: str, metadata: bytes, assignment: bytes) -> ConsumerMember:
    """Raises StorageError if these are not bytes that the functions above made."""
    try:
        value = _decode(metadata)
        classic = value.get("classic")
        member = ConsumerMember(
            member_id,
            _text_or_none(value["instance_id"]),
            _text_or_none(value["rack_id"]),
            str(value["client_id"]),
            str(value["client_host"]),
            int(value["rebalance_timeout_ms"]),
            Subscription(frozenset(map(str, value["names"])), str(value["regex"])),
            _text_or_none(value["server_assignor"]),
            None
            if classic is None
            else ClassicMetadata(
                int(classic["session_timeout_ms"]),
                tuple((str(name), b64decode(data)) for name, data in classic["protocols"]),
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(group_id, metadata_row(member_id), error) from error
    try:
        value = _decode(assignment)
        member.epoch, member.previous_epoch = int(value["epoch"]), int(value["previous_epoch"])
        member.state = _state(value["state"])
        member.assigned = _partitions_by_topic(value["assigned"])
        member.revoking = _partitions_by_topic(value["revoking"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(group_id, assignment_row(member_id), error) from error
    return member


def _state(value: object) -> MemberState:
    try:
        return MemberState(value)
    except ValueError:
        return MemberState.UNKNOWN  # a newer version wrote it


def _encode(value: dict[str, Any]) -> bytes:
    return json.dumps({"version": _VERSION, **value}, separators=(",", ":")).encode()


def _decode(data: bytes) -> dict[str, Any]:
    value = json.loads(data)
    if value["version"] != _VERSION:
        raise ValueError(f"version {value['version']}")
    assert isinstance(value, dict)
    return value


def _unreadable(group_id: str, row: str, error: Exception) -> StorageError:
    return StorageError(f"the stored row {row!r} of group {group_id!r} cannot be read: {error!r}")


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


def _ranges_by_topic(assignment: Assignment) -> dict[str, list[int]]:
    return {topic_id.hex: _ranges(partitions) for topic_id, partitions in assignment.items()}


def _ranges(partitions: Iterable[int]) -> list[int]:
    """First and last partition of each run: partitions 0, 1, 2 and 5 are 0, 2, 5, 5."""
    runs: list[int] = []
    for partition in sorted(partitions):
        if runs and runs[-1] == partition - 1:
            runs[-1] = partition
        else:
            runs += (partition, partition)
    return runs


def _partitions_by_topic(value: dict[str, list[int]]) -> Assignment:
    return {UUID(hex=topic_id): _partitions(runs) for topic_id, runs in value.items()}


def _partitions(runs: list[int]) -> frozenset[int]:
    return frozenset(
        partition for first, last in zip(runs[::2], runs[1::2], strict=True) for partition in range(first, last + 1)
    )
