"""The settings of one share group, as share partitions use them. Pure.

Tests: tests/kafka/share/test_share_partition.py, tests/kafka/handlers/test_share_fetch.py.
"""

import attrs

READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"


@attrs.frozen
class ShareSettings:
    """The defaults are Kafka's. ``auto_offset_reset``: ``latest``, ``earliest``, or ``by_duration:`` and an ISO-8601 duration,
    whose length in ms is then ``reset_duration_ms``."""

    record_lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    max_record_locks: int = 2_000
    auto_offset_reset: str = "latest"
    reset_duration_ms: int = 0
    isolation_level: str = READ_UNCOMMITTED
    renew_acknowledge_enable: bool = True
    # Of its members.
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000

    @property
    def reads_committed(self) -> bool:
        return self.isolation_level == READ_COMMITTED


DEFAULTS = ShareSettings()
