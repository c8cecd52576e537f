"""Every listener of a real broker is recognized, and a silent or absent one is not."""

import socket

import pytest

from broker.cli.shuffle import what_listens
from broker.client import Broker
from broker.runtime.client_tls import TlsSettings, tls_context

_LISTENERS = {"Kafka": "kafka", "Pulsar": "pulsar", "HTTP": "http", None: "shuffle"}


def test_every_listener_is_recognized() -> None:
    with Broker(listeners=[f"{scheme}://127.0.0.1:0" for scheme in _LISTENERS.values()]) as broker:
        for expected, scheme in _LISTENERS.items():
            host, _, port = broker.address(scheme).rpartition(":")
            assert expected == what_listens(host, int(port), timeout_s=10.0 if expected else 0.3)


def test_silent_or_absent_listener_is_not_recognized() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert what_listens("127.0.0.1", port, timeout_s=0.05) is None
        assert what_listens("127.0.0.1", port, tls_context(TlsSettings(verify=False)), timeout_s=0.05) is None
    assert what_listens("127.0.0.1", port, timeout_s=0.05) is None


@pytest.mark.parametrize("host", ["no.such.host.invalid", "\x00"])
def test_invalid_host_name_is_not_recognized(host: str) -> None:
    assert what_listens(host, 1, timeout_s=0.05) is None
