import pytest

from broker.config import load
from broker.config.per_listener import for_listener
from broker.errors import ConfigError


@pytest.mark.parametrize("value", ["PLAIN,SCRAM-SHA-256", "PLAIN, SCRAM-SHA-256,PLAIN", ["PLAIN", "SCRAM-SHA-256"]])
def test_mechanisms_are_a_list(value: str) -> None:
    assert ("PLAIN", "SCRAM-SHA-256") == load(sasl_enabled_mechanisms=value).sasl_enabled_mechanisms


def test_passwords_are_not_sent_without_being_asked_for() -> None:
    assert "PLAIN" not in load().sasl_enabled_mechanisms


@pytest.mark.parametrize("value", ["", "GSSAPI", "plain", "PLAIN,GSSAPI"])
def test_an_unknown_mechanism_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="Set sasl_enabled_mechanisms to some of"):
        load(sasl_enabled_mechanisms=value)


def test_a_listener_has_its_own() -> None:
    config = load(
        'listeners = ["kafka+sasl://:9093?name=inside"]\nlistener.name.inside.sasl.enabled.mechanisms = "PLAIN"\n'
        "listener.name.inside.connections.max.reauth.ms = 1000\n"
    )
    inside = for_listener(config, "inside")
    assert (("PLAIN",), 1000) == (inside.sasl_enabled_mechanisms, inside.connections_max_reauth_ms)
    assert 0 == config.connections_max_reauth_ms
