import logging
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from broker.client import Broker
from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.connection import Connection
from broker.client.kafka.errors import AuthenticationError, UnreachableError
from broker.errors import ConfigError
from broker.runtime.clock import SystemClock
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.records.records import build_batch
from tests.client.kafka.logs import values
from tests.client.kafka.sasl_gate import HASHES, SaslGate

MECHANISMS = ["PLAIN", *HASHES]
CERTIFICATES = Path(__file__).parent / "certificates"
USERS = {"alice": "s3cret-Ä", "a,b=c": "other"}


def server_side(wants_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(CERTIFICATES / "ca.pem"))
    context.load_cert_chain(CERTIFICATES / "broker.pem")
    if wants_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextmanager
def gate(
    context: ssl.SSLContext | None = None, kind: type[SaslGate] = SaslGate, lifetime_ms: int = 0
) -> Iterator[SaslGate]:
    with (
        kind(USERS, context, lifetime_ms) as server,
        Broker(listeners=(f"kafka://127.0.0.1:0?advertised=localhost:{server.port}",)) as running,
    ):
        server.forward_to(running.server.listeners["kafka"])
        running.server.kafka.logs.create_topic("topic", 1, {})
        yield server


class ManualClock(SystemClock):
    """Monotonic time advances by itself and by ``now``."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:  # type: ignore[override]
        return super().monotonic() + self.now


def configured(gate: SaslGate, **settings: object) -> ClientConfig:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    # A TLS handshake takes long on a busy machine.
    patience = {"socket.connection.setup.timeout.ms": 2000, "default.api.timeout.ms": 20000}
    return ClientConfig.from_properties({"bootstrap.servers": f"localhost:{gate.port}"} | patience | given)


def cluster(gate: SaslGate, **settings: object) -> Cluster:
    return Cluster(configured(gate, **settings))


def as_user(mechanism: str, user: str = "alice", password: str = "s3cret-Ä") -> dict[str, str]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_username": user,
        "sasl_password": password,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", USERS)
def test_right_password_opens_every_connection(mechanism: str, user: str) -> None:
    with gate() as server, cluster(server, **as_user(mechanism, user, USERS[user])) as client:
        with client.producer() as producer:
            producer.send("topic", 0, build_batch([(None, b"v", [], 0)]), 1)
            producer.flush()
        received = [value for fetched in client.fetcher("topic", 0, 0, 1) for value in values(fetched.data)]
        assert [b"v"] == received
        assert 3 == server.let_in  # control, producer, fetcher


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_logs_in_too(mechanism: str) -> None:
    with gate() as server:
        admin = AdminClient(
            {
                "bootstrap.servers": f"localhost:{server.port}",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": mechanism,
                "sasl.username": "alice",
                "sasl.password": USERS["alice"],
            }
        )
        assert "topic" in admin.list_topics(timeout=20).topics


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_password_is_one_sentence_without_it(mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with gate() as server, cluster(server, **as_user(mechanism, password="wrong-one")) as client:
        with pytest.raises(AuthenticationError) as failure:
            client.topics()
        where = f"The broker at localhost:{server.port} refuses 'alice' with {mechanism}: Authentication failed"
        assert str(failure.value).startswith(where)
        assert "wrong-one" not in str(failure.value) + repr(client.config) + caplog.text
        if mechanism != "PLAIN":  # SCRAM does not even tell the broker
            assert b"wrong-one" not in server.seen
        assert 0 == server.let_in


class Impostor(SaslGate):
    """Accepts every login without knowing a password."""

    def _scram(self, algorithm: str, tokens: list[bytes]) -> Iterator[bytes]:
        nonce = tokens[0].decode().rpartition("r=")[2]
        yield f"r={nonce}more,s=AAAA,i=4096".encode()
        yield b"v=AAAA"


def test_server_without_the_password_is_detected() -> None:
    found_out = pytest.raises(AuthenticationError, match="the server does not know the password either")
    with gate(kind=Impostor) as server, cluster(server, **as_user("SCRAM-SHA-256")) as client, found_out:
        client.topics()


# Tokens --------------------------------------------------------------------------------------------------------------


def bearing(**token: object) -> dict[str, object]:
    return {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"} | token


def test_token_and_changing_token_file_log_in(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("good.token\n")
    with gate() as server:
        for token in (
            {"sasl_oauthbearer_token": "good.token"},
            {"sasl_oauthbearer_token": lambda: "good.token"},
            {"sasl_oauthbearer_token_file": str(file)},
        ):
            with cluster(server, **bearing(**token)) as client:
                assert "topic" in client.topics()
        assert 3 == server.let_in
        with cluster(server, **bearing(sasl_oauthbearer_token_file=str(file))) as client:
            client.topics()
            client.close()
            file.write_text("an.old.one")
            with pytest.raises(
                AuthenticationError, match=r"refuses the token with OAUTHBEARER: .*invalid_token"
            ) as failure:
                client.topics()
            assert "an.old.one" not in str(failure.value)
            file.write_text("good.token")
            client.topics()


@pytest.mark.parametrize("token", ["two words", "line\n\x01auth=x", "ä", " "])
def test_token_with_another_message_is_not_sent(token: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(token)
    with gate() as server, cluster(server, **bearing(sasl_oauthbearer_token_file=str(tmp_path / "token"))) as client:
        with pytest.raises(ConfigError, match="printable") as failure:
            client.topics()
        assert 0 == server.let_in
    assert token.strip() == "" or token not in str(failure.value)


def test_missing_token_file_is_named() -> None:
    named = pytest.raises(ConfigError, match="/no/such/file")
    with gate() as server, cluster(server, **bearing(sasl_oauthbearer_token_file="/no/such/file")) as client, named:
        client.topics()


# Logging in again (KIP-368) --------------------------------------------------------------------------------------------


def test_connection_logs_in_again_before_login_ends() -> None:
    with gate(lifetime_ms=60_000) as server:
        clock = ManualClock()
        config = configured(server, **as_user("SCRAM-SHA-256"))
        connection = Connection(config.bootstrap[0], config, None, clock)
        connection.open()
        fields = {"topics": None}
        connection.ask(ApiKey.METADATA, 1, fields)
        assert 0 == server.renewed
        clock.now += 58
        assert connection.login_due
        connection.ask(ApiKey.METADATA, 1, fields)
        assert (1, 1) == (server.let_in, server.renewed)
        assert not connection.login_due
        connection.close()


def test_producer_and_fetcher_live_longer_than_their_login() -> None:
    count = 300
    with gate(lifetime_ms=300) as server, cluster(server, **as_user("PLAIN")) as client:
        client.topics()
        started = time.monotonic()
        with client.producer() as producer:
            sent = 0
            while sent < count or time.monotonic() < started + 1:
                producer.send("topic", 0, build_batch([(None, str(sent).encode() * 100, [], 0)]), 1)
                producer.flush() if sent % 7 == 0 else None
                sent += 1
            producer.flush()
        started = time.monotonic()
        received = []
        for fetched in client.fetcher("topic", 0, 0, sent, max_bytes=2000):
            if time.monotonic() < started + 0.7:
                time.sleep(0.02)
            received += values(fetched.data)
        assert [str(number).encode() * 100 for number in range(sent)] == received
        assert server.renewed > 0


def test_broker_without_login_renewal_gets_new_connection() -> None:
    """Kafka's rule: not within a second of the last login."""
    with Broker(listeners=("kafka+sasl://127.0.0.1:0",), connections_max_reauth_ms=60_000) as running:
        running.add_user("alice", "s3cret")
        config = ClientConfig.from_properties(
            {"bootstrap.servers": running.bootstrap_servers}
            | {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": "alice",
                "sasl.password": "s3cret",
            }
        )
        clock = ManualClock()
        with Cluster(config, clock) as client:
            client.topics()
            first = client.routing.any_connection()
            clock.now += 58  # for the broker less than a second may have passed
            client.topics()
            assert first.is_open or client.routing.any_connection() is not first


def test_refused_second_login_is_reported() -> None:
    with gate(lifetime_ms=60_000) as server:
        clock = ManualClock()
        config = configured(server, **as_user("SCRAM-SHA-256"))
        connection = Connection(config.bootstrap[0], config, None, clock)
        connection.open()
        server.forget("alice")
        clock.now += 58
        with pytest.raises(AuthenticationError, match="refuses 'alice' with SCRAM-SHA-256"):
            connection.ask(ApiKey.METADATA, 1, {"topics": None})
        assert not connection.is_open


def test_broker_without_sasl_is_reported() -> None:
    with Broker() as running:
        config = ClientConfig.from_properties(
            {
                "bootstrap.servers": running.bootstrap_servers,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "u",
                "sasl.password": "p",
            }
        )
        with (
            Cluster(config) as client,
            pytest.raises(AuthenticationError, match=r"takes no logins on this listener: .* to PLAINTEXT"),
        ):
            client.topics()


# TLS ----------------------------------------------------------------------------------------------------------------------


def over_tls(**settings: str) -> dict[str, str]:
    trust = {"ssl_ca_location": str(CERTIFICATES / "ca.pem")}
    return as_user("PLAIN") | {"security_protocol": "SASL_SSL"} | trust | settings


def test_over_tls() -> None:
    records = [bytes([number]) * 300_000 for number in range(4)]  # larger than a TLS record, and than a socket buffer
    with gate(server_side()) as server, cluster(server, **over_tls()) as client:
        with client.producer() as producer:
            for record in records:
                producer.send("topic", 0, build_batch([(None, record, [], 0)]), 1)
            producer.flush()
        received = [value for fetched in client.fetcher("topic", 0, 0, 4) for value in values(fetched.data)]
        assert records == received


def test_with_a_certificate_of_our_own() -> None:
    certificate = str(CERTIFICATES / "client.pem")
    with gate(server_side(wants_certificate=True)) as server:
        with cluster(server, **over_tls(ssl_certificate_location=certificate)) as client:
            assert "topic" in client.topics()
        with cluster(server, **over_tls()) as client, pytest.raises((AuthenticationError, UnreachableError)):
            client.topics()


def test_authority_may_be_text() -> None:
    text = (CERTIFICATES / "ca.pem").read_text()
    settings = over_tls() | {"ssl_ca_pem": text}
    del settings["ssl_ca_location"]
    with gate(server_side()) as server, cluster(server, **settings) as client:
        assert "topic" in client.topics()


def test_certificate_of_unknown_authority_is_refused() -> None:
    settings = over_tls()
    del settings["ssl_ca_location"]
    refused = pytest.raises(AuthenticationError, match=r"No TLS connection to .*: its certificate is not accepted")
    with gate(server_side()) as server, cluster(server, **settings) as client, refused:
        client.topics()


def test_certificate_of_other_host_needs_permission() -> None:
    with gate(server_side()) as server:
        elsewhere = {"bootstrap_servers": f"127.0.0.1:{server.port}"}
        with (
            cluster(server, **over_tls(**elsewhere)) as client,
            pytest.raises(AuthenticationError, match="certificate"),
        ):
            client.topics()
        lenient = over_tls(ssl_endpoint_identification_algorithm="none", **elsewhere)
        with cluster(server, **lenient) as client:
            assert "topic" in client.topics()


def test_tls_and_plaintext_mismatches_are_reported() -> None:
    with (
        gate() as server,
        cluster(server, **over_tls()) as client,
        pytest.raises((AuthenticationError, UnreachableError)),
    ):
        client.topics()
    plain = pytest.raises(
        UnreachableError, match=r"gave no answer to the first request .* Is security.protocol right\?"
    )
    with gate(server_side()) as server, cluster(server, **as_user("PLAIN")) as client, plain:
        client.topics()


def test_missing_files_are_named() -> None:
    refused = pytest.raises(ConfigError, match=r"The certificates of the client cannot be used")
    with gate() as server, cluster(server, **over_tls(ssl_ca_location="/no/such/file")) as client, refused:
        client.topics()
