"""A listener's mechanisms, and settings of OAUTHBEARER that cannot be carried out."""

from pathlib import Path
from typing import Any

import pytest

from broker.client import Broker
from broker.errors import ConfigError
from protocol.kafka.errors import ErrorCode
from tests.kafka.sasl_client import SaslBroker
from tests.runtime.test_web import server
from tests.tokens import jwk, jwks, message, private_key, token
from tests.waiting import wait_for

LISTENERS = ("kafka+sasl://127.0.0.1:0",)


def start(**settings: Any) -> None:
    with Broker(**{"listeners": LISTENERS, "sasl_enabled_mechanisms": "OAUTHBEARER"} | settings):
        pass


@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        "keys.json",
        "/etc/keys.json",
        "ftp://x/keys",
        "http:///keys",
        "https://",
        "file://host/keys",
        "http://user:secret@x/keys",
        "http://x:99999/keys",
        "http://[/keys",
    ],
)
def test_tokens_need_a_url_with_keys(url: str | None) -> None:
    with pytest.raises(ConfigError, match="sasl_oauthbearer_jwks_endpoint_url") as refused:
        start(sasl_oauthbearer_jwks_endpoint_url=url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("content", [None, b"", b"{}", jwks()])
def test_useless_file_is_reported_at_the_start(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"Put a JWKS at sasl_oauthbearer_jwks_endpoint_url \(file://"):
        start(sasl_oauthbearer_jwks_endpoint_url=f"file://{path}")


def test_a_url_is_not_waited_for() -> None:
    start(sasl_oauthbearer_jwks_endpoint_url="http://127.0.0.1:1/keys")


def test_too_open_settings_are_reported_at_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(jwks(jwk(private_key())))
    url = f"file://{path}"
    start(sasl_oauthbearer_jwks_endpoint_url=url, sasl_oauthbearer_expected_audience="broker")
    start(sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256")
    assert "" == capsys.readouterr().err
    start(sasl_oauthbearer_jwks_endpoint_url=url)
    assert "token_audience_unchecked" in capsys.readouterr().err
    start(sasl_enabled_mechanisms="PLAIN", listeners=("kafka+sasl://0.0.0.0:0",))
    assert "login_unencrypted" in capsys.readouterr().err


def bearer_login(broker: SaslBroker) -> bytes:
    """What the broker says to a good token: nothing, if it accepts it."""
    with broker.connect() as connection:
        connection.handshake("OAUTHBEARER")
        return bytes(connection.authenticate(message(token())).auth_bytes)


def test_a_server_that_hangs_costs_nobody_else_anything() -> None:
    with (
        server(b"", then_hang=True) as url,
        SaslBroker(
            sasl_enabled_mechanisms="OAUTHBEARER,SCRAM-SHA-256",
            sasl_oauthbearer_jwks_endpoint_url=url,
            sasl_oauthbearer_expected_audience="broker",
            io_threads=1,
        ) as broker,
    ):
        for _ in range(20):
            assert b'{"status":"invalid_token"}' == bearer_login(broker)
        with broker.connect() as connection:
            assert ErrorCode.none == connection.log_in("SCRAM-SHA-256").error_code
        inside = broker.server
        broker.stop()
        assert 0 == inside.left_behind


def test_keys_come_from_a_server() -> None:
    content = jwks(jwk(private_key()))
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(content), content)
    unavailable = b"HTTP/1.1 503 Service Unavailable\r\n\r\n"
    with (
        server(unavailable, b"", answer) as url,
        SaslBroker(
            sasl_enabled_mechanisms="OAUTHBEARER",
            sasl_oauthbearer_jwks_endpoint_url=url,
            sasl_oauthbearer_expected_audience="broker",
        ) as broker,
    ):
        wait_for(lambda: b"" == bearer_login(broker))
