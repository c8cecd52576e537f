"""Which settings can be changed while the broker runs."""

import pytest

from broker.config import BrokerConfig, load, setting_infos
from broker.config.dynamic_settings import TABLE, Way, merged, parsed, setting_of, way_of
from broker.errors import ConfigError


def test_the_table_names_settings_only() -> None:
    assert TABLE.keys() <= {info.name for info in setting_infos(BrokerConfig)}


def test_setting_is_known_by_its_client_name() -> None:
    assert way_of("num.io.threads") is Way.HANDLERS
    assert way_of("io_threads") is None
    assert way_of("log.retention.ms") is Way.STORAGE
    assert way_of("listeners") is None
    setting = setting_of("listener.name.inner.net.connections.max.reauth.ms")
    assert setting is not None
    assert setting.name == "connections_max_reauth_ms"
    assert way_of("listener.name.inner.net.num.io.threads") is None  # no listener has handlers of its own


def test_later_changes_override_earlier_changes_and_configuration() -> None:
    config = merged(load(io_threads=2), [{"num.io.threads": "3"}, {"num.io.threads": "4", "background.threads": "5"}])
    assert config.io_threads == 4


def test_two_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="log_cleaner_min_compaction_lag_ms"):
        merged(load(log_cleaner_min_compaction_lag_ms=9), [{"log.cleaner.max.compaction.lag.ms": "8"}])


def test_limits_of_addresses_are_written_as_in_kafka() -> None:
    assert parsed("max.connections.per.ip.overrides", "10.0.0.1:7, ::1:8,name=9")[1] == {
        "10.0.0.1": 7,
        "::1": 8,
        "name": 9,
    }
