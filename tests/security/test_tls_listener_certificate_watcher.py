"""The thread that looks for changed certificates, and what is counted of them."""

from pathlib import Path

import pytest

from broker.config import load
from broker.errors import ConfigError
from broker.metrics import Registry
from broker.metrics.registry import render
from broker.runtime import system_runtime
from broker.security.tls_listener import CertificateWatcher, open_tls, register_tls_metrics, tls_config
from tests import certificates
from tests.certificates import LOCAL, authority


def test_changed_file_is_noticed_by_step_or_wakeup(tmp_path: Path) -> None:
    files = certificates.server().write(tmp_path)
    config = load(
        listeners=["kafka+ssl://127.0.0.1:0", "kafka://127.0.0.1:0?name=plain"], ssl_keystore_location=str(files.both)
    )
    tls = open_tls(config, config.listeners, system_runtime())
    assert list(tls) == ["kafka+ssl"]
    watcher = CertificateWatcher(list(tls.values()), every_s=60.0)
    renewed = authority().issue("broker", hosts=LOCAL)
    files.both.write_text(renewed.key + renewed.certificate)
    watcher.step(0.0)
    assert tls["kafka+ssl"].reloads == 1
    watcher.wakeup()
    assert watcher.step(None)
    registry = Registry()
    register_tls_metrics(registry, tls.values())
    text = render(registry).decode()
    assert 'broker_tls_reloads_total{listener="kafka+ssl"} 1.0' in text
    assert 'broker_tls_failed_reloads_total{listener="kafka+ssl"} 0.0' in text
    assert "broker_tls_certificate_expiry_seconds" in text


def test_listener_without_certificate_is_refused_by_name() -> None:
    config = load(listeners=["kafka+ssl://127.0.0.1:0"])
    with pytest.raises(
        ConfigError, match=r"^Correct the TLS settings of the listener kafka\+ssl: ssl_keystore_location"
    ):
        open_tls(config, config.listeners, system_runtime())


@pytest.mark.parametrize("key", ["kafka+sasl+ssl.ssl_client_auth", "KAFKA+sasl+ssl.ssl.client.auth"])
def test_login_listener_asks_certificates_only_if_set(key: str) -> None:
    listeners = ["kafka+sasl+ssl://127.0.0.1:0", "kafka+ssl://127.0.0.1:0"]
    for own, expected in (({}, ["none", "required"]), ({key: "requested"}, ["requested", "required"])):
        config = load(listeners=listeners, ssl_client_auth="required", listener_settings=own)
        assert [tls_config(config, each).ssl_client_auth for each in config.listeners] == expected


def test_login_listener_needs_no_matching_rule() -> None:
    listeners = ["kafka+sasl+ssl://127.0.0.1:0", "kafka+ssl://127.0.0.1:0"]
    config = load(listeners=listeners, ssl_principal_mapping_rules="RULE:^CN=alice$/alice/")
    rules = [tls_config(config, each).ssl_principal_mapping_rules for each in config.listeners]
    assert rules == ["DEFAULT", "RULE:^CN=alice$/alice/"]
