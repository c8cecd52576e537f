"""Settings of the coordinators: consumer groups and transactions.

Tests: tests/config/test_setting.py, tests/config/test_settings.py.
"""

from collections.abc import Mapping

import attrs

from broker.config.kafka_setting import INT_MAX
from broker.config.setting import KAFKA, setting


@attrs.frozen(kw_only=True, slots=False)
class FeatureSettings:
    """Features."""

    feature_max_levels: Mapping[str, int] = setting(
        attrs.Factory(dict),
        kafka=None,
        doc="The highest level at which each of these features may be, also by UpdateFeatures: feature = level. With "
        "`transaction.version` = 1 every producer uses the classic flow of transactions; 0 turns a feature off.",
        reason="Every feature may be at the highest level that this version of the broker has.",
    )


@attrs.frozen(kw_only=True, slots=False)
class TransactionSettings:
    """Transactions."""

    transaction_max_timeout_ms: int = setting(
        900_000,
        least=1,
        most=INT_MAX,
        doc="The longest `transaction.timeout.ms` that a producer may ask for. A transaction that is open for longer than "
        "its producer asked for is aborted.",
        reason="Kafka's default: 15 minutes.",
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000,
        least=1,
        most=INT_MAX,
        doc="Forget a transactional id that has not been used for this long.",
        reason="Kafka's default: a week.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, least=1, most=INT_MAX, doc="How often to look for such transactional ids.", reason=KAFKA
    )


@attrs.frozen(kw_only=True, slots=False)
class GroupSettings:
    """Consumer groups."""

    group_min_session_timeout_ms: int = setting(
        6_000, least=0, most=INT_MAX, doc="The shortest session timeout that a member may ask for.", reason=KAFKA
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000, least=0, most=INT_MAX, doc="The longest session timeout that a member may ask for.", reason=KAFKA
    )
    group_initial_rebalance_delay_ms: int = setting(
        100,
        least=0,
        most=INT_MAX,
        doc="How long the first rebalance of an empty group waits for more members, and as long again while more come.",
        reason="[Decision 0018](decisions/0018-initial-rebalance-delay.md): members that start together are one rebalance, and "
        "a member alone has its first message 0.1 s later than with 0. Kafka's 3000 makes everybody wait 3 s.",
    )
    group_max_size: int = setting(
        INT_MAX, unit="members", least=1, most=INT_MAX, doc="The largest number of members of one group.", reason=KAFKA
    )
    group_max_bytes: int = setting(
        4 * 1024 * 1024,
        kafka=None,
        least=64 * 1024,
        most=INT_MAX,
        doc="Memory for the members of one group: about 1 KiB for each, and what they send and are assigned. A member that "
        "would exceed it is refused with GROUP_MAX_SIZE_REACHED, an assignment with UNKNOWN_SERVER_ERROR.",
        reason="In Kafka a group has to fit into message.max.bytes (1 MiB), with one protocol of each member; here all "
        "protocols count.",
    )
    coordinator_max_bytes: int = setting(
        256 * 1024 * 1024,
        kafka=None,
        least=1024 * 1024,
        doc="Memory for all groups, committed offsets and transactional ids. What would exceed it is refused with "
        "COORDINATOR_NOT_AVAILABLE, and an event is logged; existing groups, offsets and transactions go on.",
        reason="30,000 groups, or 600,000 committed offsets. Kafka has no limit: one connection can fill its memory.",
    )
    offset_metadata_max_bytes: int = setting(
        4096,
        kafka="offset.metadata.max.bytes",
        least=0,
        most=INT_MAX,
        doc="The longest text that may be stored with a committed offset.",
        reason=KAFKA,
    )
    offsets_retention_minutes: int = setting(
        10_080,
        least=1,
        most=INT_MAX,
        doc="Forget the offsets of a group that has been empty for this long.",
        reason="Kafka's default: a week.",
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, least=1, doc="How often to look for such offsets.", reason=KAFKA
    )
