"""Settings of TLS, of the broker and of one listener."""

import pytest

from broker.config import load
from broker.config.per_listener import for_listener
from broker.errors import ConfigError


def test_kafkas_names_and_a_listeners_own_values() -> None:
    config = load(
        "listeners = 'kafka+ssl://:1?name=outer,kafka+ssl://:2?name=inner'\n"
        "ssl.keystore.location = 'a.pem'\nssl.keystore.type = 'PEM'\nssl.enabled.protocols = 'TLSv1.3'\n"
        "listener.name.inner.ssl.client.auth = 'required'\nlistener.name.inner.ssl.keystore.type = 'PKCS12'\n"
    )
    assert for_listener(config, "outer").ssl_client_auth == "none"
    inner = for_listener(config, "inner")
    assert (inner.ssl_client_auth, inner.ssl_keystore_location) == ("required", "a.pem")
    assert inner.ssl_enabled_protocols == ("TLSv1.3",)


@pytest.mark.parametrize("protocols", ["SSLv3", "TLSv1.1,TLSv1.2", ""])
def test_versions_that_are_not_safe_are_refused(protocols: str) -> None:
    with pytest.raises(ConfigError, match=r"Set ssl_enabled_protocols to TLSv1\.2 or TLSv1\.3 or both"):
        load(ssl_enabled_protocols=tuple(filter(None, protocols.split(","))))


def test_secrets_appear_in_no_repr_or_error() -> None:
    config = load(
        ssl_keystore_password="geheim",
        ssl_key_password="geheim",
        ssl_keystore_key="geheim",
        ssl_truststore_password="geheim",
        listener_settings={"kafka.ssl_key_password": "geheim"},
    )
    assert "geheim" not in repr(config)
    with pytest.raises(ConfigError) as raised:
        load(ssl_keystore_password=["geheim"])
    assert "geheim" not in str(raised.value)
    assert raised.value.__cause__ is None
    with pytest.raises(ConfigError) as raised:
        load("[ssl]\nkeystore.password = ['geheim']")
    assert "geheim" not in str(raised.value)
