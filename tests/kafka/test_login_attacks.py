"""What logins cost at most, and who waits meanwhile.

Tests that need real clients for each mechanism are in this file, too: confluent-kafka, kafka-python and aiokafka.
"""

import asyncio
import gc
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AsyncTokenProvider
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient
from kafka.errors import KafkaError as KafkaPythonError

from broker.security.sasl import mechanisms
from broker.security.sasl.exchange import AuthenticationFailed, Step
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.sasl.scram import ScramClient
from tests.certificates import LOCAL, authority
from tests.kafka.sasl_client import PASSWORD, USER, SaslBroker
from tests.kafka.test_sasl_session_login import session_of
from tests.tokens import jwk, jwks, message, private_key, token
from tests.waiting import wait_for

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_bytes(jwks(jwk(private_key())))
    with SaslBroker(
        sasl_enabled_mechanisms=[*MECHANISMS, "OAUTHBEARER"],
        sasl_oauthbearer_jwks_endpoint_url=f"file://{path}",
        sasl_oauthbearer_expected_audience="broker",
    ) as broker:
        broker.server.kafka.logs.create_topic("topic", 1, {})
        yield broker


# Real clients -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka(broker: SaslBroker, mechanism: str) -> None:
    login = {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
    server = {"bootstrap.servers": broker.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT"}
    assert "topic" in AdminClient(server | login).list_topics(timeout=30).topics
    failed = threading.Event()

    def error(what: KafkaError) -> None:
        if what.code() == KafkaError._AUTHENTICATION:
            failed.set()

    wrong = Producer(server | login | {"sasl.password": "wrong", "error_cb": error})
    wait_for(lambda: bool(wrong.poll(0.01)) or failed.is_set())
    with pytest.raises(KafkaException):
        wrong.list_topics(timeout=0.1)


def test_confluent_kafka_with_a_token(broker: SaslBroker) -> None:
    asked = threading.Event()

    def log_in(_: str) -> tuple[str, float]:
        asked.set()
        return token(), time.time() + 600

    client = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "oauth_cb": log_in,
        }
    )
    wait_for(lambda: bool(client.poll(0.01)) or asked.is_set())
    assert "topic" in client.list_topics(timeout=30).topics


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(broker: SaslBroker, mechanism: str) -> None:
    server = {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
    }
    client = KafkaAdminClient(**server, sasl_plain_password=PASSWORD)
    assert "topic" in client.list_topics()
    client.close()
    with pytest.raises(KafkaPythonError):
        KafkaAdminClient(**server, sasl_plain_password="wrong", api_version_auto_timeout_ms=3000)


class Provider(AsyncTokenProvider):  # type: ignore[misc]
    async def token(self) -> str:
        return token()


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "OAUTHBEARER"])
def test_aiokafka(broker: SaslBroker, mechanism: str) -> None:
    async def produce() -> None:
        secret = (
            {"sasl_oauth_token_provider": Provider()}
            if mechanism == "OAUTHBEARER"
            else {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
        )
        producer = AIOKafkaProducer(
            bootstrap_servers=broker.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            **secret,
        )
        await producer.start()
        try:
            await producer.send_and_wait("topic", b"hello")
        finally:
            await producer.stop()

    asyncio.run(produce())


@pytest.mark.parametrize("client_auth", ["none", "required"])
def test_login_over_tls_decides_the_principal(tmp_path: Path, client_auth: str) -> None:
    server, shown = (
        authority().issue("broker", hosts=LOCAL).write(tmp_path),
        authority().issue("cn").write(tmp_path, "cn"),
    )
    with SaslBroker(
        listeners=("kafka+sasl+ssl://127.0.0.1:0",),
        ssl_keystore_location=str(server.both),
        ssl_truststore_location=str(server.authority),
        ssl_client_auth=client_auth,
    ) as broker:
        settings = {
            "bootstrap.servers": broker.bootstrap_servers,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(server.authority),
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
        if client_auth == "required":
            settings |= {"ssl.certificate.location": str(shown.certificate), "ssl.key.location": str(shown.key)}
        client = AdminClient(settings)

        def principals() -> set[str]:
            # Over a new connection, if the client has given up the first one.
            assert client.list_topics(timeout=30).brokers
            processors = broker.server.sockets.processors
            return {str(each.principal) for processor in processors for each in processor.connections.copy()}

        wait_for(lambda: "User:alice" in principals())


# Attacks ------------------------------------------------------------------------------------------------------------------


class Gate:
    """Exchanges that wait until they are let go, and then fail."""

    def __init__(self, broker: SaslBroker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.computed: list[bytes] = []
        self.go = threading.Event()
        # The dict of the listener, which all its sessions look into.
        monkeypatch.setitem(broker.server.security.mechanisms["kafka+sasl"], "PLAIN", lambda: self)  # type: ignore[arg-type]

    slow = True

    def evaluate(self, token: bytes) -> Step:
        self.computed.append(token)
        assert self.go.wait(60)
        raise AuthenticationFailed("let go")


def test_slow_logins_leave_handlers_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with SaslBroker(io_threads=4) as broker:
        gate = Gate(broker, monkeypatch)
        connections = [broker.connect() for _ in range(60)]
        for connection in connections:
            connection.handshake("PLAIN")
            connection.tell(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"x")
        wait_for(lambda: len(gate.computed) == 1)
        with broker.connect() as other:
            assert ErrorCode.none == other.log_in("SCRAM-SHA-256").error_code
            assert ErrorCode.none == other.ask(ApiKey.LIST_GROUPS, 4, states_filter=[]).error_code  # needs a handler
        assert [b"x"] == gate.computed  # one of four handlers
        gate.go.set()
        for connection in connections:
            assert ErrorCode.sasl_authentication_failed == connection.answer(ApiKey.SASL_AUTHENTICATE, 2).error_code
            connection.socket.close()


def test_login_of_a_disconnected_client_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    with SaslBroker(io_threads=1) as broker:
        gate = Gate(broker, monkeypatch)
        first, second = broker.connect(), broker.connect()
        for connection in (first, second):
            connection.handshake("PLAIN")
        first.tell(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"first")
        wait_for(lambda: gate.computed == [b"first"])
        second.tell(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"second")
        processors = broker.server.sockets.processors
        wait_for(lambda: 2 == sum(each.busy for processor in processors for each in processor.connections.copy()))
        # A reset, which is noticed at once: an end-of-file may come from somebody who waits for the answer.
        second.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        second.socket.close()
        wait_for(lambda: 1 == sum(len(processor.connections) for processor in processors))
        gate.go.set()
        assert ErrorCode.sasl_authentication_failed == first.answer(ApiKey.SASL_AUTHENTICATE, 2).error_code
        first.socket.close()
        with broker.connect() as third:
            third.log_in("PLAIN")  # after the second's turn
        assert [b"first"] == [token for token in gate.computed if token in (b"first", b"second")]


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "OAUTHBEARER"])
@pytest.mark.parametrize("size", [20_000, 500_000])
def test_long_tokens_are_refused_without_much_work(broker: SaslBroker, mechanism: str, size: int) -> None:
    first = {
        "PLAIN": b"\0" + b"u" * size + b"\0password",
        "OAUTHBEARER": message("e" * size),
    }.get(mechanism, b"n,,n=" + b"=2C" * (size // 3) + b",r=nonce")
    with broker.connect() as connection:
        connection.handshake(mechanism)
        assert ErrorCode.sasl_authentication_failed == connection.authenticate(first).error_code


def test_a_token_of_a_megabyte_is_not_read(broker: SaslBroker) -> None:
    with broker.connect() as connection:
        connection.handshake("PLAIN")
        connection.socket.sendall((1_000_000).to_bytes(4, "big"))
        assert connection.is_closed()


def test_what_half_finished_logins_keep_is_bounded() -> None:
    """The largest exchange that can be left unfinished, as an object: 4 KiB of message, its parts and the challenge."""
    with SaslBroker() as broker:
        new = broker.server.security.mechanisms["kafka+sasl"]["SCRAM-SHA-512"]
        first = ScramClient("SCRAM-SHA-512", "u" * 900, "x", "n" * 2900).first()
        kept = []
        gc.collect()
        before = _blocks()
        for _ in range(200):
            exchange = new()
            exchange.evaluate(first)
            kept.append(exchange)
        gc.collect()
        assert (_blocks() - before) / len(kept) < 100  # objects
        assert sum(sys.getsizeof(value) for value in _texts(kept[0])) < 32 * 1024


def _blocks() -> int:
    return sys.getallocatedblocks()


def _texts(exchange: object) -> list[object]:
    server = exchange._server  # type: ignore[attr-defined]
    return [getattr(server, name) for name in server.__slots__ if hasattr(server, name)]


def test_thousands_of_unfinished_logins_hinder_nobody_and_end() -> None:
    with SaslBroker() as broker:
        connections = [broker.connect() for _ in range(300)]
        for number, connection in enumerate(connections):
            if number % 3:
                connection.handshake("SCRAM-SHA-512")
            if number % 3 == 2:
                connection.authenticate(b"n,,n=alice,r=nonce")
        with broker.connect() as other:
            assert ErrorCode.none == other.log_in().error_code
            for session in [session_of(connection, broker) for connection in connections]:
                session.deadline = 0.0  # as if the time were over
            assert all(connection.is_closed() for connection in connections)
            assert other.metadata().brokers
        for connection in connections:
            connection.socket.close()
        wait_for(lambda: 300 == broker.logins()["unfinished"])


def test_unknown_users_take_the_same_steps(broker: SaslBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted instead of timed: what is computed from the password, and with which cost."""
    costs: list[tuple[str, int, int]] = []
    real = mechanisms.salted_password

    def counted(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
        costs.append((mechanism, len(salt), iterations))
        return real(mechanism, password, salt, iterations)

    monkeypatch.setattr(mechanisms, "salted_password", counted)
    for user in (USER, "nobody"):
        with broker.connect() as connection:
            connection.log_in("PLAIN", user, "wrong")
    known, unknown = costs
    assert known == unknown
