"""The kinds of groups that are served, as one table: how a group of each kind is made, and restored from its rows.

Tests: tests/kafka/groups/test_registry.py, tests/kafka/groups/test_consumer_coordinator.py.
"""

from broker.config import BrokerConfig
from broker.errors import StorageError
from broker.kafka.configs.group_settings import GroupConfigs
from broker.kafka.groups.classic_group import ClassicGroup
from broker.kafka.groups.consumer import ConsumerGroup
from broker.kafka.groups.consumer.values import ConsumerGroupLimits, MigrationPolicy
from broker.kafka.groups.group import Group, GroupKind, GroupType
from broker.kafka.groups.group_rows import Rows
from broker.kafka.groups.rebalancer import GroupLimits
from broker.kafka.groups.share.share_group import ShareGroup
from broker.kafka.groups.share.values import ShareGroupLimits


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
