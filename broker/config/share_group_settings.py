"""Settings of share groups (KIP-932), for all of them. A group may have its own values of those that
``broker/kafka/configs/group_settings.py`` lists, within the bounds that are set here.

Tests: tests/config/test_setting.py, tests/config/test_share_group_settings.py.
"""

import attrs

from broker.config.kafka_setting import INT_MAX
from broker.config.setting import KAFKA, setting


@attrs.frozen(kw_only=True, slots=False)
class ShareGroupSettings:
    """Share groups."""

    group_share_max_size: int = setting(
        200, unit="members", least=1, most=1000, doc="The largest number of members of one share group.", reason=KAFKA
    )
    group_share_session_timeout_ms: int = setting(
        45_000, least=1, most=INT_MAX, doc="Remove a member that has sent no heartbeat for this long.", reason=KAFKA
    )
    group_share_min_session_timeout_ms: int = setting(
        45_000, least=1, most=INT_MAX, doc="The shortest such time that a group may be given.", reason=KAFKA
    )
    group_share_max_session_timeout_ms: int = setting(
        60_000, least=1, most=INT_MAX, doc="The longest such time that a group may be given.", reason=KAFKA
    )
    group_share_heartbeat_interval_ms: int = setting(
        5_000,
        least=1,
        most=INT_MAX,
        doc="How often members are told to send heartbeats. A member learns of new partitions with its next heartbeat.",
        reason=KAFKA,
    )
    group_share_min_heartbeat_interval_ms: int = setting(
        5_000, least=1, most=INT_MAX, doc="The shortest such interval that a group may be given.", reason=KAFKA
    )
    group_share_max_heartbeat_interval_ms: int = setting(
        15_000, least=1, most=INT_MAX, doc="The longest such interval that a group may be given.", reason=KAFKA
    )
    group_share_record_lock_duration_ms: int = setting(
        30_000,
        least=1_000,
        most=3_600_000,
        doc="How long a record stays with the member that has acquired it. Then another member may get it.",
        reason=KAFKA,
    )
    group_share_min_record_lock_duration_ms: int = setting(
        15_000, least=1_000, most=30_000, doc="The shortest such time that a group may be given.", reason=KAFKA
    )
    group_share_max_record_lock_duration_ms: int = setting(
        60_000, least=30_000, most=3_600_000, doc="The longest such time that a group may be given.", reason=KAFKA
    )
    group_share_delivery_count_limit: int = setting(
        5,
        unit="deliveries",
        least=2,
        most=25,
        doc="How often a record is delivered that is not acknowledged. Then it is given up (archived).",
        reason=KAFKA,
    )
    group_share_min_delivery_count_limit: int = setting(
        2, unit="deliveries", least=2, most=5, doc="The smallest such number that a group may be given.", reason=KAFKA
    )
    group_share_max_delivery_count_limit: int = setting(
        10, unit="deliveries", least=5, most=25, doc="The largest such number that a group may be given.", reason=KAFKA
    )
    group_share_partition_max_record_locks: int = setting(
        2_000,
        unit="records",
        least=100,
        most=10_000,
        doc="How many records of a partition the members of a group may hold at a time. No more are delivered until some "
        "are acknowledged.",
        reason=KAFKA,
    )
    group_share_min_partition_max_record_locks: int = setting(
        100,
        unit="records",
        least=100,
        most=2_000,
        doc="The smallest such number that a group may be given.",
        reason=KAFKA,
    )
    group_share_max_partition_max_record_locks: int = setting(
        4_000,
        unit="records",
        least=2_000,
        most=10_000,
        doc="The largest such number that a group may be given.",
        reason=KAFKA,
    )
    group_share_max_share_sessions: int = setting(
        2_000, unit="sessions", least=1, most=INT_MAX, doc="The largest number of share sessions.", reason=KAFKA
    )


# Settings of which each has a least and a greatest value for single groups.
BOUNDED = (
    "group_share_{}session_timeout_ms",
    "group_share_{}heartbeat_interval_ms",
    "group_share_{}record_lock_duration_ms",
    "group_share_{}delivery_count_limit",
    "group_share_{}partition_max_record_locks",
)
