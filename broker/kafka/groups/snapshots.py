"""A group's generation as the bytes that the catalogue stores: JSON, which people can read and which can get new fields."""

import json
from base64 import b64decode, b64encode
from typing import Any

import attrs

from broker.errors import StorageError
from broker.kafka.groups.values import GroupSnapshot, MemberSnapshot

_VERSION = 1


@attrs.frozen
class StoredGroup:
    snapshot: GroupSnapshot
    since_ms: int  # wall clock, when it was saved: the age of an empty group's offsets counts from here


def encode(snapshot: GroupSnapshot, since_ms: int) -> bytes:
    members = [
        {
            "member_id": member.member_id,
            "group_instance_id": member.group_instance_id,
            "client_id": member.client_id,
            "client_host": member.client_host,
            "session_timeout_ms": member.session_timeout_ms,
            "rebalance_timeout_ms": member.rebalance_timeout_ms,
            "protocols": [[name, _text(metadata)] for name, metadata in member.protocols],
            "assignment": _text(member.assignment),
        }
        for member in snapshot.members
    ]
    value = {
        "version": _VERSION,
        "protocol_type": snapshot.protocol_type,
        "generation": snapshot.generation,
        "protocol_name": snapshot.protocol_name,
        "leader": snapshot.leader,
        "since_ms": since_ms,
        "members": members,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def decode(group_id: str, stored: bytes) -> StoredGroup:
    """Raises StorageError if the bytes are not what ``encode`` made."""
    try:
        value: dict[str, Any] = json.loads(stored)
        if value["version"] != _VERSION:
            raise ValueError(f"version {value['version']}")
        members = tuple(
            MemberSnapshot(
                member["member_id"],
                member["group_instance_id"],
                member["client_id"],
                member["client_host"],
                int(member["session_timeout_ms"]),
                int(member["rebalance_timeout_ms"]),
                tuple((name, b64decode(metadata)) for name, metadata in member["protocols"]),
                b64decode(member["assignment"]),
            )
            for member in value["members"]
        )
        snapshot = GroupSnapshot(
            value["protocol_type"], int(value["generation"]), value["protocol_name"], value["leader"], members
        )
        return StoredGroup(snapshot, int(value["since_ms"]))
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"the stored state of group {group_id!r} cannot be read: {error!r}") from error


def _text(data: bytes) -> str:
    return b64encode(data).decode("ascii")
