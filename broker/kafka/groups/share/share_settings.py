"""The settings of one share group: values, and how the reset of start offsets is written. Pure.

Tests: tests/kafka/groups/share/test_share_settings.py.
"""

import attrs

READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"
LATEST, EARLIEST, BY_DURATION = "latest", "earliest", "by_duration"


@attrs.frozen
class ShareSettings:
    """The settings in force for one group. The defaults are Kafka's. ``auto_offset_reset``: ``latest``, ``earliest`` or
    ``by_duration``, which goes back by ``reset_duration_ms``."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    record_lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    max_record_locks: int = 2_000
    auto_offset_reset: str = LATEST
    reset_duration_ms: int = 0
    isolation_level: str = READ_UNCOMMITTED
    renew_acknowledge_enable: bool = True

    @property
    def reads_committed(self) -> bool:
        return self.isolation_level == READ_COMMITTED


DEFAULTS = ShareSettings()
