"""Settings of share groups: Kafka's defaults and bounds, and what contradicts itself."""

import pytest

from broker.config import BrokerConfig
from broker.config.group_settings import BOUNDED
from broker.errors import ConfigError


@pytest.mark.parametrize("name", BOUNDED)
def test_each_default_lies_within_its_bounds(name: str) -> None:
    settings = BrokerConfig()
    least, value, most = (getattr(settings, name.format(part)) for part in ("min_", "", "max_"))
    assert least <= value <= most


@pytest.mark.parametrize(
    "changes",
    [
        {"group_share_session_timeout_ms": 44_999},
        {"group_share_max_session_timeout_ms": 44_999},
        {"group_share_min_heartbeat_interval_ms": 5_001},
        {"group_share_record_lock_duration_ms": 60_001},
        {"group_share_delivery_count_limit": 11},
        {"group_share_max_partition_max_record_locks": 2_000, "group_share_partition_max_record_locks": 2_001},
        {"group_share_max_heartbeat_interval_ms": 50_000, "group_share_heartbeat_interval_ms": 46_000},
        {"group_share_max_size": 1000, "group_share_max_share_sessions": 999},
        {"group_share_max_size": 1001},
    ],
)
def test_contradictory_settings_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="group_share_"):
        BrokerConfig(**changes)
