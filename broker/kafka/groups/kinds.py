"""The kinds of groups that are served, as one table, and the forms in which the catalogue stores them.

The rows of groups are documents of the kind ``group-rows`` with the key group id, NUL, name of the row. A group id may contain
any character; in a key its NULs are escaped, so that no row can be taken for another group's. ``SINCE`` is the registry's own
row: since when the group is empty, which is where the age of its offsets begins.

``encode`` and ``decode`` convert a classic group's generation: JSON, which people can read and which can get new fields.

Pure, except for the changes of the catalogue.

Tests: tests/kafka/groups/test_registry.py,
tests/kafka/groups/test_consumer_coordinator.py.
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping

import attrs

from broker.config import BrokerConfig
from broker.errors import StorageError
from broker.kafka.configs.group_settings import GroupConfigs
from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.consumer import ConsumerGroup
from broker.kafka.groups.consumer.values import ConsumerGroupLimits, MigrationPolicy
from broker.kafka.groups.coordinated import GROUP_ROW, decode_row, encode_row
from broker.kafka.groups.group import Group, GroupKind, GroupType
from broker.kafka.groups.rebalancer import GroupLimits
from broker.kafka.groups.share.share_group import ShareGroup
from broker.kafka.groups.share.values import ShareGroupLimits
from broker.kafka.groups.values import GroupSnapshot, MemberSnapshot
from broker.metadata.catalogue import Catalogue

KIND = "group-rows"
SINCE = "empty-since-ms"

Rows = Mapping[str, bytes]


def prefix_of(group_id: str) -> str:
    """The common prefix of the keys of a group's rows, which no other key has."""
    return group_id.replace("%", "%25").replace("\0", "%00") + "\0"


def by_group(documents: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, dict[str, bytes]]]:
    """Each group's id, and its rows by name."""
    groups: dict[str, dict[str, bytes]] = {}
    for key, body in documents:
        escaped, _, row = key.partition("\0")
        groups.setdefault(escaped, {})[row] = body
    for escaped, rows in groups.items():
        yield escaped.replace("%00", "\0").replace("%25", "%"), rows


def type_of(group_id: str, rows: Rows) -> GroupType:
    """The kind of the group with these rows. Raises StorageError if they name no kind, or an unknown kind."""
    try:
        return GroupType(json.loads(rows[GROUP_ROW])["type"])
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"the rows of group {group_id!r} do not name a kind of group: {error!r}") from error


def take_since_ms(rows: dict[str, bytes]) -> int | None:
    """Remove the registry's row. Returns since when the group is empty; None if unknown."""
    try:
        return int(rows.pop(SINCE))
    except (KeyError, ValueError):
        return None


def since_row(since_ms: int) -> bytes | None:
    """The registry's row; ``since_ms`` is 0 for a group with members."""
    return str(since_ms).encode() if since_ms else None


@attrs.frozen
class Save:
    """A change of the catalogue: writes rows of a group, after deleting its state as a group of the kind ``replaced``."""

    group_id: str
    put: Mapping[str, bytes | None]
    replaced: GroupType | None = None

    def __call__(self, catalogue: Catalogue) -> None:
        if self.replaced is None:
            self._put(catalogue)
        else:
            catalogue.together([Delete(self.group_id, self.replaced), self._put])

    def _put(self, catalogue: Catalogue) -> None:
        prefix = prefix_of(self.group_id)
        catalogue.alter_documents([(KIND, prefix + row, body) for row, body in self.put.items()])


@attrs.frozen
class Delete:
    """A change of the catalogue: deletes a group's state, as its kind stores it."""

    group_id: str
    type: GroupType

    def __call__(self, catalogue: Catalogue) -> None:
        if self.type is GroupType.CLASSIC:
            catalogue.delete_group(self.group_id)
        else:
            catalogue.delete_documents(KIND, prefix_of(self.group_id))


def kinds_of(config: BrokerConfig, configs: GroupConfigs) -> tuple[GroupKind, ...]:
    return _classic(config), _consumer(config, configs), _share(config, configs)


def classic_limits(config: BrokerConfig) -> GroupLimits:
    return GroupLimits(config.group_max_size, config.group_initial_rebalance_delay_ms, config.group_max_bytes)


def consumer_limits(config: BrokerConfig, configs: GroupConfigs, group_id: str) -> ConsumerGroupLimits:
    return ConsumerGroupLimits(
        max_size=config.group_consumer_max_size,
        session_timeout_ms=configs.value(group_id, "consumer.session.timeout.ms"),
        heartbeat_interval_ms=configs.value(group_id, "consumer.heartbeat.interval.ms"),
        assignors=config.group_consumer_assignors,
        migration_policy=MigrationPolicy(config.group_consumer_migration_policy),
        classic_max_size=config.group_max_size,
        regex_refresh_interval_ms=config.group_consumer_regex_refresh_interval_ms,
        max_bytes=config.group_max_bytes,
    )


def share_limits(config: BrokerConfig, configs: GroupConfigs, group_id: str) -> ShareGroupLimits:
    session_s = configs.value(group_id, "share.session.timeout.ms") / 1000
    return ShareGroupLimits(config.group_share_max_size, config.group_max_bytes, session_s)


def _classic(config: BrokerConfig) -> GroupKind:
    limits = classic_limits(config)

    def make(group_id: str) -> Group:
        return ClassicGroup(group_id, limits)

    def restore(group_id: str, rows: Rows, now: float) -> Group:
        raise StorageError(f"the rows of group {group_id!r} are of a classic group, which has none")

    return GroupKind(GroupType.CLASSIC, make, restore)


def _consumer(config: BrokerConfig, configs: GroupConfigs) -> GroupKind:
    def make(group_id: str) -> Group:
        return ConsumerGroup(group_id, consumer_limits(config, configs, group_id))

    def restore(group_id: str, rows: Rows, now: float) -> Group:
        return ConsumerGroup.restore(group_id, consumer_limits(config, configs, group_id), rows, now)

    return GroupKind(GroupType.CONSUMER, make, restore)


def _share(config: BrokerConfig, configs: GroupConfigs) -> GroupKind:
    def make(group_id: str) -> Group:
        return ShareGroup(group_id, share_limits(config, configs, group_id))

    def restore(group_id: str, rows: Rows, now: float) -> Group:
        return ShareGroup.restore(group_id, share_limits(config, configs, group_id), rows, now)

    return GroupKind(GroupType.SHARE, make, restore)


@attrs.frozen
class StoredGroup:
    snapshot: GroupSnapshot
    since_ms: int  # wall clock of the save: the age of an empty group's offsets begins here


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
        "protocol_type": snapshot.protocol_type,
        "generation": snapshot.generation,
        "protocol_name": snapshot.protocol_name,
        "leader": snapshot.leader,
        "since_ms": since_ms,
        "members": members,
    }
    return encode_row(value)


def decode(group_id: str, stored: bytes) -> StoredGroup:
    """Raises StorageError if ``encode`` has not made these bytes."""
    try:
        value = decode_row(stored)
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
