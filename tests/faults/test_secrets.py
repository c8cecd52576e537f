"""Planted secrets appear in no event, error, repr, DescribeConfigs or answer."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.config import BrokerConfig, load, setting_infos
from broker.errors import ConfigError
from protocol.kafka.api_keys import ApiKey
from tests import certificates
from tests.kafka_connection import KafkaConnection
from tests.process.broker_process import BrokerProcess

SECRET = "Planted-Secret-4711"
SECRETS = [info.name for info in setting_infos(BrokerConfig) if info.secret and info.name != "listener_settings"]


def test_settings_named_like_secrets_are_secret() -> None:
    sounds = {
        info.name
        for info in setting_infos(BrokerConfig)
        if info.name.endswith(("password", "_key", "_chain", "_certificates", "secret"))
    }
    assert sounds <= set(SECRETS)


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_setting_does_not_show(name: str) -> None:
    value = f"alice:{SECRET}" if name == "users" else SECRET
    config = load(**{name: value}, listeners="kafka+sasl://127.0.0.1:0")
    assert getattr(config, name) == ((value,) if name == "users" else value)
    assert SECRET not in repr(config)
    assert SECRET not in str(config)
    of_listener = load(listener_settings={f"kafka.{name}": value})
    assert SECRET not in repr(of_listener)


@pytest.mark.parametrize("name", SECRETS)
def test_error_about_secret_setting_does_not_show_it(name: str) -> None:
    for value in (f"[{SECRET}", f'{{a = "{SECRET}"}}', [SECRET], {SECRET: 1}):
        errors = []
        try:
            load(**{name: value})
            load(f"{name} = {value!r}")
        except ConfigError as error:
            errors.append(str(error))
        assert SECRET not in "".join(errors)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """With an encrypted key, and everything logged."""
    identity = certificates.server()
    key, chain = tmp_path / "server.key", tmp_path / "server.crt"
    key.write_text(identity.key_pem(SECRET))
    chain.write_text(identity.certificate)
    store = tmp_path / "server.pem"
    store.write_text(key.read_text() + chain.read_text())
    settings = [f"ssl_keystore_location={store}", f"ssl_key_password={SECRET}", "logging_level=debug"]
    with BrokerProcess(tmp_path, *settings, more_listeners=["kafka+ssl://127.0.0.1:0"]) as broker:
        yield broker


def test_a_running_broker_does_not_show_its_secrets(broker: BrokerProcess) -> None:
    with KafkaConnection(broker.address) as client:
        node = "0"
        described = client.ask(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            resources=[{"resource_type": 4, "resource_name": node, "configuration_keys": None}],
            include_synonyms=True,
            include_documentation=True,
        )
        assert SECRET not in repr(described)
        for name in ("ssl.key.password", "ssl_key_password"):
            change = {"name": name, "config_operation": 0, "value": SECRET}
            resource = {"resource_type": 4, "resource_name": node, "configs": [change]}
            answer = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
            assert SECRET not in repr(answer)
        described = client.ask(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            resources=[{"resource_type": 4, "resource_name": node, "configuration_keys": ["ssl.key.password"]}],
            include_synonyms=True,
        )
        assert SECRET not in repr(described)
    assert broker.stop() == 0
    assert SECRET not in broker.output
    assert "PRIVATE KEY" not in broker.output


def test_wrong_key_password_is_not_in_the_message(tmp_path: Path) -> None:
    identity = certificates.server()
    store = tmp_path / "server.pem"
    store.write_text(identity.key_pem("another") + identity.certificate)
    settings = [f"ssl_keystore_location={store}", f"ssl_key_password={SECRET}"]
    broker = BrokerProcess(tmp_path, *settings, more_listeners=["kafka+ssl://127.0.0.1:0"])
    broker.launch()
    assert broker.process.wait(60) == 2
    assert SECRET not in broker.output
    assert "password" in broker.output.lower()
    assert "Traceback" not in json.dumps(broker.output)
