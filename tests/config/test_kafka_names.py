"""The names of Kafka's settings that have no effect here."""

from broker.config import BrokerConfig, setting_infos
from broker.config.kafka_names import COARSER, REMOVED, WITHOUT_EFFECT, answer, is_secret, spelled


def test_no_setting_is_both_known_and_without_effect() -> None:
    known = {info.kafka for info in setting_infos(BrokerConfig)} | COARSER.keys()
    assert not known & WITHOUT_EFFECT
    assert all(name == name.strip().lower() and "." in name for name in WITHOUT_EFFECT)


def test_secrets_are_known_by_their_names() -> None:
    secret = [name for name in WITHOUT_EFFECT if is_secret(name)]
    assert {"sasl.jaas.config", "delegation.token.secret.key"} <= set(secret)
    assert is_secret("ssl.keystore.password")
    assert not is_secret("ssl.client.auth")


def test_conversions_lead_to_existing_settings() -> None:
    names = {info.name for info in setting_infos(BrokerConfig)}
    assert {name for name, _, _ in COARSER.values()} <= names


def test_no_setting_is_both_known_and_removed() -> None:
    known = {info.kafka for info in setting_infos(BrokerConfig)} | COARSER.keys() | WITHOUT_EFFECT
    assert not known & REMOVED.keys()
    assert answer("zookeeper.connect") is not None
    assert answer("listeners") is None


def test_underscores_replace_dots_only_in_kafka_names() -> None:
    known = {info.name for info in setting_infos(BrokerConfig)}
    assert "log.retention.hours" == spelled("log_retention_hours", known)
    assert "log_retention_ms" == spelled("log_retention_ms", known)
    assert "num.replica.fetchers" == spelled("num_replica_fetchers", known)
    assert "zookeeper.connect" == spelled("zookeeper_connect", known)
    assert "no_such_setting" == spelled("no_such_setting", known)
