"""The kinds of groups that are served, as one table: how a group of each kind is made, and restored from its rows.

Tests: tests/kafka/groups/test_registry.py.
"""

from broker.config import BrokerConfig
from broker.errors import StorageError
from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.group import Group, GroupKind, GroupType
from broker.kafka.groups.group_rows import Rows
from broker.kafka.groups.rebalancer import GroupLimits


def kinds_of(config: BrokerConfig) -> tuple[GroupKind, ...]:
    return (_classic(config),)


def classic_limits(config: BrokerConfig) -> GroupLimits:
    return GroupLimits(config.group_max_size, config.group_initial_rebalance_delay_ms, config.group_max_bytes)


def _classic(config: BrokerConfig) -> GroupKind:
    limits = classic_limits(config)

    def make(group_id: str) -> Group:
        return ClassicGroup(group_id, limits)

    def restore(group_id: str, rows: Rows, now: float) -> Group:
        raise StorageError(f"the rows of group {group_id!r} are of a classic group, which has none")

    return GroupKind(GroupType.CLASSIC, make, restore)
