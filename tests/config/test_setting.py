"""What is known of each setting, and that a value is checked wherever it comes from."""

import pytest

from broker.config import BrokerConfig, load, setting_infos
from broker.errors import ConfigError


def test_a_value_given_in_python_is_checked_too() -> None:
    with pytest.raises(ConfigError, match=r"Set network_threads to a whole number from 1 to 1024: it is '3'\."):
        BrokerConfig(network_threads="3")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="did you mean 'io_threads'"):
        load(io_thread=3)
    assert "9310" in str(BrokerConfig(listeners=["kafka://localhost:9310"]).listeners[0])  # type: ignore[arg-type]


def test_every_setting_has_purpose_and_reason_for_default() -> None:
    for info in setting_infos(BrokerConfig):
        assert info.doc.endswith("."), info.name
        assert info.reason.endswith("."), info.name
        assert info.kafka or info.reason != "Kafka's default.", info.name
        assert info.section, info.name


def test_units_come_last_in_names() -> None:
    for info in setting_infos(BrokerConfig):
        if info.unit == "ms":
            assert info.name.endswith("_ms"), info.name


def test_defaults_are_within_bounds_and_writable_as_arguments() -> None:
    for info in setting_infos(BrokerConfig):
        if info.plain_type in (int, float, str, bool) and info.default is not None:
            config = load(
                overrides=[f"{info.name}={str(info.default).lower() if info.plain_type is bool else info.default}"]
            )
            assert info.default == getattr(config, info.name)
