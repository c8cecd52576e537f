"""The settings of one listener."""

from collections.abc import Iterator

import pytest

from broker.config import BrokerConfig, per_listener
from broker.config.load import load
from broker.config.per_listener import check_names, for_listener
from broker.errors import ConfigError


@pytest.fixture(autouse=True)
def idle_time_is_of_listeners(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(per_listener, "OF_LISTENER", {"connections_max_idle_ms"})
    return


def config(**settings: str) -> BrokerConfig:
    return load(listeners=("kafka://:1", "kafka://:2?name=inner.Net"), **settings)


@pytest.mark.parametrize("key", ["inner.Net.connections_max_idle_ms", "inner.net.connections.max.idle.ms"])
def test_listener_s_setting_overrides_the_broker_s(key: str) -> None:
    both = config(listener_settings={key: "7"}, connections_max_idle_ms=5)
    check_names(both)
    assert 7 == for_listener(both, "inner.Net").connections_max_idle_ms
    assert 5 == for_listener(both, "kafka").connections_max_idle_ms


def test_kafka_spelling_at_top_level_is_equivalent() -> None:
    text = "listener.name.kafka.connections.max.idle.ms = 7\nlistener.name.kafka.plain.sasl.jaas.config = 'x'"
    both = load(text, listeners=("kafka://:1",), overrides=["listener.name.kafka.ssl.provider=x"])
    assert 7 == for_listener(both, "kafka").connections_max_idle_ms


def test_broker_wide_setting_of_a_listener_is_refused() -> None:
    with pytest.raises(ConfigError, match="Set io_threads for the whole broker"):
        for_listener(config(listener_settings={"kafka.io_threads": "7"}), "kafka")
    with pytest.raises(ConfigError, match="There is no setting 'conections_max_idle_ms'"):
        for_listener(config(listener_settings={"kafka.conections_max_idle_ms": "7"}), "kafka")
    with pytest.raises(
        ConfigError, match=r"Begin 'outer\.ssl_client_auth' .* with the name of a listener: kafka, inner"
    ):
        check_names(config(listener_settings={"outer.ssl_client_auth": "none"}))
