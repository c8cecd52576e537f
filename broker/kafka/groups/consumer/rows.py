"""A consumer group as the rows that the catalogue stores.

A row is the group itself (key ""), and each member has two: ``m/<member id>`` has the member's own metadata, ``a/<member id>``
its epochs and partitions, as it was told. So a step of a member writes neither its subscription nor other members. The target
assignment is not stored: ``consumer_group.py`` says how it is restored.
"""

from base64 import b64decode, b64encode
from typing import Any
from uuid import UUID

import attrs

from broker.errors import StorageError
from broker.kafka.groups.consumer.members import ClassicMetadata, ConsumerMember, MemberState, Subscription
from broker.kafka.groups.consumer.values import Assignment
from broker.kafka.groups.coordinated import (
    GROUP_ROW,
    UNREADABLE,
    decode_row,
    encode_row,
    member_row,
    partitions_of,
    runs_of,
)
from broker.kafka.groups.group import GroupType


@attrs.frozen
class GroupRow:
    """``topics_hash``: of the input of the target assignment (``targets.hash_of``)."""

    epoch: int
    assignment_epoch: int
    topics_hash: str = ""


def assignment_row(member_id: str) -> str:
    return f"a/{member_id}"


def encode_group(row: GroupRow) -> bytes:
    return encode_row(
        {
            "type": GroupType.CONSUMER.value,
            "epoch": row.epoch,
            "assignment_epoch": row.assignment_epoch,
            "topics_hash": row.topics_hash,
        }
    )


def decode_group(group_id: str, data: bytes) -> GroupRow:
    """Raises StorageError if ``encode_group`` has not made these bytes."""
    try:
        value = decode_row(data)
        if value["type"] != GroupType.CONSUMER.value:
            raise ValueError(f"type {value['type']}")
        return GroupRow(int(value["epoch"]), int(value["assignment_epoch"]), str(value["topics_hash"]))
    except UNREADABLE as error:
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
    return encode_row(value)


def encode_assignment(member: ConsumerMember) -> bytes:
    return encode_row(
        {
            "epoch": member.epoch,
            "previous_epoch": member.previous_epoch,
            "state": member.state.value,
            "assigned": _ranges_by_topic(member.assigned),
            "revoking": _ranges_by_topic(member.revoking),
        }
    )


def decode_member(group_id: str, member_id: str, metadata: bytes, assignment: bytes) -> ConsumerMember:
    """Raises StorageError if the functions above have not made these bytes."""
    try:
        value = decode_row(metadata)
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
    except UNREADABLE as error:
        raise _unreadable(group_id, member_row(member_id), error) from error
    try:
        value = decode_row(assignment)
        member.epoch, member.previous_epoch = int(value["epoch"]), int(value["previous_epoch"])
        member.state = _state(value["state"])
        member.assigned = _partitions_by_topic(value["assigned"])
        member.revoking = _partitions_by_topic(value["revoking"])
    except UNREADABLE as error:
        raise _unreadable(group_id, assignment_row(member_id), error) from error
    return member


def _state(value: object) -> MemberState:
    try:
        return MemberState(value)
    except ValueError:
        return MemberState.UNKNOWN  # a newer version wrote it


def _unreadable(group_id: str, row: str, error: Exception) -> StorageError:
    return StorageError(f"the stored row {row!r} of group {group_id!r} cannot be read: {error!r}")


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


def _ranges_by_topic(assignment: Assignment) -> dict[str, list[int]]:
    return {topic_id.hex: runs_of(sorted(partitions)) for topic_id, partitions in assignment.items()}


def _partitions_by_topic(value: dict[str, list[int]]) -> Assignment:
    return {UUID(hex=topic_id): frozenset(partitions_of(runs)) for topic_id, runs in value.items()}
