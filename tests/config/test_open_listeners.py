"""Listeners that let anybody in."""

import pytest

from broker.config import BrokerConfig, load
from broker.config.open_listeners import is_loopback, unauthenticated
from broker.errors import ConfigError
from tests.config.sentences import sentence


def names(config: BrokerConfig) -> list[str]:
    return [listener.name for listener in unauthenticated(config)]


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost", "127.0.0.1", "127.9.9.9", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1"]
)
def test_only_this_machine_reaches_a_loopback_address(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "", "10.0.0.1", "128.0.0.1", "::2", "::ffff:10.0.0.1", "fe80::1%eth0"]
    + ["localhost.example", "127.0.0.1.example", "127.1"],
)
def test_other_names_and_addresses_are_reachable_from_elsewhere(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("scheme", ["kafka", "shuffle", "kafka+ssl"])
def test_open_listener_is_refused_until_it_is_allowed(scheme: str) -> None:
    listeners = ["kafka://127.0.0.1:1", f"{scheme}://0.0.0.0:2?name=outer"]
    with pytest.raises(ConfigError) as raised:
        unauthenticated(load(listeners=listeners))
    text = sentence(raised.value)
    assert f"{scheme}://0.0.0.0:2?name=outer" in text
    assert "kafka://127.0.0.1:1" not in text
    assert "allow_anonymous_listeners" in text
    assert ["outer"] == names(load(listeners=listeners, allow_anonymous_listeners=True))


def test_the_control_listener_is_no_exception() -> None:
    with pytest.raises(ConfigError, match=r"kafka://\[::\]:2\?name=control"):
        unauthenticated(load(control_listener="kafka://[::]:2"))
    assert ["control"] == names(load(control_listener="kafka://[::]:2", allow_anonymous_listeners=True))


@pytest.mark.parametrize("url", ["kafka+sasl://:1", "kafka+sasl+ssl://:1", "kafka://localhost:1", "kafka://[::1]:1"])
def test_authenticated_or_local_listener_needs_no_permission(url: str) -> None:
    assert [] == names(load(listeners=[url]))
    assert [] == names(load(listeners=[url], allow_anonymous_listeners=True))


@pytest.mark.parametrize(("client_auth", "asks"), [("none", False), ("requested", False), ("required", True)])
def test_required_certificate_authenticates(client_auth: str, asks: bool) -> None:
    settings = {"outer.ssl.client.auth": client_auth, "outer.ssl.keystore.location": "x.pem"}
    if client_auth != "none":
        settings["outer.ssl.truststore.location"] = "y.pem"
    config = load(listeners=["kafka+ssl://:1?name=outer"], listener_settings=settings, allow_anonymous_listeners=True)
    assert ([] if asks else ["outer"]) == names(config)
