import base64
from pathlib import Path

import pytest

from broker.client.embedded import Broker
from broker.errors import ConfigError
from tests.pulsar.wire import Wire

KEY = bytes(range(32))


@pytest.mark.parametrize("key", ["", "not base64!", base64.b64encode(KEY[:31]).decode(), "file:///does/not/exist"])
def test_unusable_key_is_refused_and_not_shown(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match="pulsar_token_secret_key") as refused:
        Broker(str(tmp_path), listeners=["pulsar+sasl://127.0.0.1:0"], pulsar_token_secret_key=key).start()
    assert not key or key not in str(refused.value)


@pytest.mark.parametrize("prefix", ["", "data:;base64,", "file://"])
def test_key_comes_from_text_or_file(tmp_path: Path, prefix: str) -> None:
    if prefix == "file://":
        (tmp_path / "key").write_bytes(KEY)
        key = f"file://{tmp_path}/key"
    else:
        key = prefix + base64.b64encode(KEY).decode()
    data = str(tmp_path / "data")
    with Broker(data, listeners=["pulsar+sasl://127.0.0.1:0"], pulsar_token_secret_key=key) as broker:
        assert KEY.decode("latin-1") not in repr(broker.server.part("pulsar").context.config)  # type: ignore[union-attr]
        assert broker.address("pulsar+sasl")


def test_client_not_connecting_in_time_is_disconnected(tmp_path: Path) -> None:
    with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"], handshake_timeout_ms=1) as broker:
        wire = Wire(broker.address("pulsar"), connect=False)
        assert wire.is_closed()
        wire.close()


def test_clients_are_told_maximum_message_size(tmp_path: Path) -> None:
    with Broker(str(tmp_path), listeners=["pulsar://127.0.0.1:0"], pulsar_max_message_bytes=1_024_000) as broker:
        wire = Wire(broker.address("pulsar"))
        assert 1_024_000 == wire.connected.max_message_size
        wire.close()
