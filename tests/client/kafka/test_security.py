import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from broker.client import Broker
from broker.client.kafka import ClientConfig, Cluster
from broker.client.kafka.errors import AuthenticationError, UnreachableError
from broker.errors import ConfigError
from protocol.kafka.records.records import build_batch
from tests.client.kafka.logs import values
from tests.client.kafka.sasl_gate import MECHANISMS, SaslGate

CERTIFICATES = Path(__file__).parent / "certificates"
USERS = {"alice": "s3cret-Ä", "a,b=c": "other"}


def server_side(wants_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(CERTIFICATES / "ca.pem"))
    context.load_cert_chain(CERTIFICATES / "broker.pem")
    if wants_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@contextmanager
def gate(context: ssl.SSLContext | None = None, kind: type[SaslGate] = SaslGate) -> Iterator[SaslGate]:
    with (
        kind(USERS, context) as one,
        Broker(listeners=(f"kafka://127.0.0.1:0?advertised=localhost:{one.port}",)) as running,
    ):
        one.forward_to(running.server.listeners["kafka"])
        running.server.kafka.logs.create_topic("topic", 1, {})
        yield one


def cluster(gate: SaslGate, **settings: str) -> Cluster:
    given = {name.replace("_", "."): value for name, value in settings.items()}
    # A TLS handshake takes long on a busy machine.
    patience = {"socket.connection.setup.timeout.ms": 2000, "default.api.timeout.ms": 20000}
    return Cluster(ClientConfig.from_properties({"bootstrap.servers": f"localhost:{gate.port}"} | patience | given))


def as_user(mechanism: str, user: str = "alice", password: str = "s3cret-Ä") -> dict[str, str]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_username": user,
        "sasl_password": password,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("user", USERS)
def test_who_knows_the_password_gets_in_with_every_connection(mechanism: str, user: str) -> None:
    with gate() as one, cluster(one, **as_user(mechanism, user, USERS[user])) as client:
        with client.producer() as producer:
            producer.send("topic", 0, build_batch([(None, b"v", [], 0)]), 1)
            producer.flush()
        found = [value for fetched in client.fetcher("topic", 0, 0, 1) for value in values(fetched.data)]
        assert [b"v"] == found
        assert 3 == one.let_in  # control, producer, fetcher


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_gets_in_too(mechanism: str) -> None:
    with gate() as one:
        admin = AdminClient(
            {
                "bootstrap.servers": f"localhost:{one.port}",
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": mechanism,
                "sasl.username": "alice",
                "sasl.password": USERS["alice"],
            }
        )
        assert "topic" in admin.list_topics(timeout=20).topics


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_one_sentence_without_it(mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with gate() as one, cluster(one, **as_user(mechanism, password="wrong-one")) as client:
        with pytest.raises(AuthenticationError) as failure:
            client.topics()
        where = f"The broker at localhost:{one.port} refuses 'alice' with {mechanism}: Authentication failed"
        assert str(failure.value).startswith(where)
        assert "wrong-one" not in str(failure.value) + repr(client.config) + caplog.text
        if mechanism != "PLAIN":  # SCRAM does not even tell the broker
            assert b"wrong-one" not in one.seen
        assert 0 == one.let_in


class Impostor(SaslGate):
    """Accepts every login without knowing a password."""

    def _scram(self, algorithm: str, tokens: list[bytes]) -> Iterator[bytes]:
        nonce = tokens[0].decode().rpartition("r=")[2]
        yield f"r={nonce}more,s=AAAA,i=4096".encode()
        yield b"v=AAAA"


def test_a_server_that_does_not_know_the_password_is_found_out() -> None:
    found_out = pytest.raises(AuthenticationError, match="the server does not know the password either")
    with gate(kind=Impostor) as one, cluster(one, **as_user("SCRAM-SHA-256")) as client, found_out:
        client.topics()


def test_a_broker_without_sasl_says_so() -> None:
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
        with Cluster(config) as client, pytest.raises(Exception, match="SASL_HANDSHAKE"):
            client.topics()


# TLS ----------------------------------------------------------------------------------------------------------------------


def over_tls(**settings: str) -> dict[str, str]:
    trust = {"ssl_ca_location": str(CERTIFICATES / "ca.pem")}
    return as_user("PLAIN") | {"security_protocol": "SASL_SSL"} | trust | settings


def test_over_tls() -> None:
    records = [bytes([number]) * 300_000 for number in range(4)]  # larger than a TLS record, and than a socket buffer
    with gate(server_side()) as one, cluster(one, **over_tls()) as client:
        with client.producer() as producer:
            for record in records:
                producer.send("topic", 0, build_batch([(None, record, [], 0)]), 1)
            producer.flush()
        found = [value for fetched in client.fetcher("topic", 0, 0, 4) for value in values(fetched.data)]
        assert records == found


def test_with_a_certificate_of_our_own() -> None:
    certificate = str(CERTIFICATES / "client.pem")
    with gate(server_side(wants_certificate=True)) as one:
        with cluster(one, **over_tls(ssl_certificate_location=certificate)) as client:
            assert "topic" in client.topics()
        with cluster(one, **over_tls()) as client, pytest.raises((AuthenticationError, UnreachableError)):
            client.topics()


def test_an_authority_given_as_text() -> None:
    text = (CERTIFICATES / "ca.pem").read_text()
    settings = over_tls() | {"ssl_ca_pem": text}
    del settings["ssl_ca_location"]
    with gate(server_side()) as one, cluster(one, **settings) as client:
        assert "topic" in client.topics()


def test_a_certificate_of_nobody_we_know_is_not_taken() -> None:
    settings = over_tls()
    del settings["ssl_ca_location"]
    refused = pytest.raises(AuthenticationError, match=r"No TLS connection to .*: its certificate is not accepted")
    with gate(server_side()) as one, cluster(one, **settings) as client, refused:
        client.topics()


def test_a_certificate_of_another_host_is_not_taken_unless_asked() -> None:
    with gate(server_side()) as one:
        elsewhere = {"bootstrap_servers": f"127.0.0.1:{one.port}"}
        with cluster(one, **over_tls(**elsewhere)) as client, pytest.raises(AuthenticationError, match="certificate"):
            client.topics()
        lenient = over_tls(ssl_endpoint_identification_algorithm="none", **elsewhere)
        with cluster(one, **lenient) as client:
            assert "topic" in client.topics()


def test_tls_where_there_is_none_and_none_where_there_is() -> None:
    with gate() as one, cluster(one, **over_tls()) as client, pytest.raises((AuthenticationError, UnreachableError)):
        client.topics()
    plain = pytest.raises(
        UnreachableError, match=r"gave no answer to the first request .* Is security.protocol right\?"
    )
    with gate(server_side()) as one, cluster(one, **as_user("PLAIN")) as client, plain:
        client.topics()


def test_files_that_are_not_there_are_named() -> None:
    refused = pytest.raises(ConfigError, match=r"The certificates of the client cannot be used")
    with gate() as one, cluster(one, **over_tls(ssl_ca_location="/no/such/file")) as client, refused:
        client.topics()
