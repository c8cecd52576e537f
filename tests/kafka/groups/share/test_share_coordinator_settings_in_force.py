"""The settings in force for share groups."""

from broker.config import BrokerConfig
from broker.kafka.configs.group_settings import GroupConfigs
from broker.kafka.groups.share.share_coordinator import SettingsInForce
from broker.kafka.share.share_partition import ShareSettings
from broker.metadata.sqlite import SqliteCatalogue


def loaded(catalogue: SqliteCatalogue, config: BrokerConfig) -> tuple[GroupConfigs, SettingsInForce]:
    configs = GroupConfigs(catalogue, config)
    settings = SettingsInForce(configs)
    configs.load()
    settings.load()
    return configs, settings


def alter(configs: GroupConfigs, group_id: str, **changes: str | None) -> None:
    named = {f"share.{name.replace('_', '.')}": value for name, value in changes.items()}
    configs.alter(group_id, lambda own, usual: named)


def test_defaults_are_kafka_s(catalogue: SqliteCatalogue) -> None:
    _, settings = loaded(catalogue, BrokerConfig())
    assert settings.of("g") == ShareSettings()


def test_broker_settings_apply_to_groups_without_their_own(catalogue: SqliteCatalogue) -> None:
    config = BrokerConfig(group_share_heartbeat_interval_ms=6_000, group_share_delivery_count_limit=3)
    configs, settings = loaded(catalogue, config)
    assert settings.of("g") == ShareSettings(heartbeat_interval_ms=6_000, delivery_count_limit=3)
    alter(configs, "g", delivery_count_limit="4")
    assert settings.of("g") == ShareSettings(heartbeat_interval_ms=6_000, delivery_count_limit=4)


def test_change_is_in_force_immediately_and_after_restart(catalogue: SqliteCatalogue) -> None:
    configs, settings = loaded(catalogue, BrokerConfig())
    changes = {
        "auto_offset_reset": "by_duration:PT1H",
        "isolation_level": "read_committed",
        "renew_acknowledge_enable": "false",
        "partition_max_record_locks": "100",
        "record_lock_duration_ms": "15000",
        "session_timeout_ms": "50000",
    }
    alter(configs, "g", **changes)
    expected = ShareSettings(
        auto_offset_reset="by_duration:PT1H",
        reset_duration_ms=3_600_000,
        isolation_level="read_committed",
        renew_acknowledge_enable=False,
        max_record_locks=100,
        record_lock_duration_ms=15_000,
        session_timeout_ms=50_000,
    )
    assert settings.of("g") == expected
    assert settings.of("other") == ShareSettings()
    assert loaded(catalogue, BrokerConfig())[1].of("g") == expected
    alter(configs, "g", **dict.fromkeys(changes))
    assert settings.of("g") == ShareSettings()


def test_forbidden_value_becomes_the_nearest_allowed(catalogue: SqliteCatalogue) -> None:
    configs, _ = loaded(catalogue, BrokerConfig())
    alter(configs, "g", delivery_count_limit="10")
    _, settings = loaded(catalogue, BrokerConfig(group_share_max_delivery_count_limit=7))
    assert settings.of("g").delivery_count_limit == 7
