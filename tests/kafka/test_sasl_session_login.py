"""Logins over their time: how long they are valid, how they are renewed, and what failed ones wait for."""

import socket
from collections.abc import Iterator
from math import inf
from typing import Any

import pytest

from broker.kafka import logins as logins_module
from broker.kafka.logins import LoginFailures, Logins
from broker.kafka.sasl_session import SaslSession
from broker.kafka.service import KafkaService
from broker.network.connection import ProcessorConnection
from broker.network.service import Peer
from broker.security.client_quotas import DEFAULT, Entity, Kind
from broker.security.principal import Principal
from broker.security.sasl.exchange import AuthenticationFailed, LoginCounters
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.sasl_client import CLIENT, PASSWORD, USER, Connection, SaslBroker
from tests.kafka_connection import fetch_fields
from tests.waiting import wait_for

LONG_MS = 600_000


@pytest.fixture(scope="module")
def broker() -> Iterator[SaslBroker]:
    with SaslBroker(connections_max_reauth_ms=LONG_MS) as broker:
        broker.add("bob", "SCRAM-SHA-256", PASSWORD)
        yield broker


def inside(connection: Connection, broker: SaslBroker) -> ProcessorConnection:
    port = connection.socket.getsockname()[1]
    return next(
        each
        for processor in broker.server.sockets.processors
        for each in processor.connections.copy()
        if each.peer.port == port
    )


def session_of(connection: Connection, broker: SaslBroker) -> SaslSession:
    session = inside(connection, broker).session
    assert isinstance(session, SaslSession)
    return session


def may_log_in_again(broker: SaslBroker) -> None:
    """As if the second had passed in which a client may not log in once more."""
    for processor in broker.server.sockets.processors:
        for connection in processor.connections.copy():
            connection.session._reauthentication_allowed_at = 0.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
@pytest.mark.parametrize(("version", "told_ms"), [(0, None), (1, LONG_MS), (2, LONG_MS)])
def test_client_is_told_the_lifetime_of_its_login(
    broker: SaslBroker, mechanism: str, version: int, told_ms: int | None
) -> None:
    with broker.connect() as connection:
        answer = connection.log_in(mechanism, version=version)
        lifetime = getattr(answer, "session_lifetime", None)
        assert told_ms == (None if lifetime is None else lifetime.total_seconds() * 1000)


def test_client_reauthenticates_on_the_same_connection(broker: SaslBroker) -> None:
    with broker.connect() as connection:
        connection.log_in()
        for _ in range(3):
            may_log_in_again(broker)
            assert ErrorCode.none == connection.log_in().error_code
            assert connection.metadata().brokers


def test_client_may_reauthenticate_in_the_oldest_way(broker: SaslBroker) -> None:
    with broker.connect() as connection:
        connection.log_in("PLAIN")
        may_log_in_again(broker)
        assert ErrorCode.none == connection.handshake("PLAIN", version=0).error_code
        assert b"" == connection.token(f"\0{USER}\0{PASSWORD}".encode())
        assert connection.metadata().brokers


def test_requests_before_the_handshake_are_answered_first(broker: SaslBroker) -> None:
    with broker.connect() as connection:
        connection.log_in()
        may_log_in_again(broker)
        connection.tell(ApiKey.METADATA, 9, topics=[], allow_auto_topic_creation=False)
        connection.tell(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
        assert connection.answer(ApiKey.METADATA, 9).brokers
        assert ErrorCode.none == connection.answer(ApiKey.SASL_HANDSHAKE, 1).error_code


def test_requests_during_a_login_are_not_answered(broker: SaslBroker) -> None:
    with broker.connect() as connection:
        connection.log_in()
        may_log_in_again(broker)
        connection.handshake()
        connection.tell(ApiKey.METADATA, 9, topics=[], allow_auto_topic_creation=False)
        assert connection.is_closed()


def test_reauthentication_within_a_second_is_refused(broker: SaslBroker) -> None:
    with broker.connect() as connection:
        connection.log_in()
        assert ErrorCode.none == connection.log_in().error_code  # the first time, at once, as in Kafka
        assert ErrorCode.illegal_sasl_state == connection.handshake().error_code
        assert connection.metadata().brokers


def test_a_client_cannot_become_somebody_else(broker: SaslBroker) -> None:
    with broker.connect() as connection:
        connection.log_in()
        may_log_in_again(broker)
        answer = connection.log_in(user="bob")
        assert ErrorCode.sasl_authentication_failed == answer.error_code
        assert answer.error_message.startswith("Authentication failed during re-authentication")
        assert connection.is_closed()


def test_a_client_cannot_change_the_mechanism(broker: SaslBroker) -> None:
    with broker.connect() as connection:
        connection.log_in("SCRAM-SHA-256")
        may_log_in_again(broker)
        answer = connection.log_in("SCRAM-SHA-512")
        assert ErrorCode.sasl_authentication_failed == answer.error_code
        assert connection.is_closed()


def test_wrong_password_at_reauthentication_closes_the_connection() -> None:
    with SaslBroker(connections_max_reauth_ms=LONG_MS) as broker, broker.connect() as connection:
        connection.log_in("PLAIN")
        may_log_in_again(broker)
        assert ErrorCode.sasl_authentication_failed == connection.log_in("PLAIN", password="wrong").error_code
        assert connection.is_closed()
        assert {"succeeded": 1, "reauthentication_failed": 1} == broker.logins()


def test_idle_connection_is_closed_when_its_login_expires() -> None:
    with SaslBroker(connections_max_reauth_ms=200) as broker, broker.connect() as connection:
        assert 0.2 == connection.log_in().session_lifetime.total_seconds()
        assert connection.is_closed()
        assert 1 == broker.logins()["expired"]


def test_request_in_progress_is_answered_before_expiry_closes() -> None:
    with SaslBroker(connections_max_reauth_ms=LONG_MS) as broker, broker.connect() as connection:
        broker.server.kafka.logs.create_topic("topic", 1, {})
        connection.log_in()
        connection.tell(ApiKey.FETCH, 4, **fetch_fields("topic", max_wait=3000))
        wait_for(lambda: inside(connection, broker).busy)  # it waits for records
        expiry = session_of(connection, broker).expiry
        assert expiry is not None
        expiry.deadline = 0.0  # as if the time were over
        over = expiry.take()
        assert over is not None
        over()
        assert ErrorCode.none == connection.answer(ApiKey.FETCH, 4).responses[0].partitions[0].error_code
        assert connection.is_closed()
        assert 1 == broker.logins()["expired"]


@pytest.mark.parametrize(
    ("key", "fields", "error"),
    [
        (ApiKey.API_VERSIONS, {"client_software_name": "a" * 10_000, "client_software_version": "1"}, ErrorCode.none),
        (ApiKey.SASL_HANDSHAKE, {"mechanism": "a" * 10_000}, ErrorCode.illegal_sasl_state),
    ],
)
def test_login_may_expire_during_a_handlers_login_request(
    key: ApiKey, fields: dict[str, str], error: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SaslBroker(connections_max_reauth_ms=LONG_MS) as broker, broker.connect() as connection:
        connection.log_in()
        session = session_of(connection, broker)
        handle = KafkaService.handle

        def end_meanwhile(service: KafkaService, request: Any, *others: Any) -> None:
            if request.connection.session is session:
                assert session.expiry is not None
                session.expiry.deadline = 0.0  # as if the time were over
                over = session.expiry.take()
                assert over is not None
                over()
            handle(service, request, *others)

        monkeypatch.setattr(KafkaService, "handle", end_meanwhile)
        version = 3 if key is ApiKey.API_VERSIONS else 1
        assert connection.ask(key, version, **fields).error_code == error
        assert connection.is_closed()


def test_a_client_that_renews_its_login_stays() -> None:
    with SaslBroker(connections_max_reauth_ms=2000) as broker, broker.connect() as connection:
        connection.log_in()
        session = session_of(connection, broker)
        first = session.expiry
        connection.log_in()
        assert first is not None
        assert first is not session.expiry
        assert first.take() is None, "the first end was not called off"
        assert {"succeeded": 1, "reauthenticated": 1} == broker.logins()


def test_who_sends_nothing_is_closed() -> None:
    with SaslBroker(handshake_timeout_ms=100) as broker, broker.connect() as connection:
        assert connection.is_closed()
        wait_for(lambda: {"unfinished": 1} == broker.logins())


@pytest.mark.parametrize("again", [False, True])
def test_late_reauthentication_is_closed_the_second_time_too(broker: SaslBroker, again: bool) -> None:
    with broker.connect() as connection:
        if again:
            connection.log_in()
            may_log_in_again(broker)
        connection.handshake()
        session = session_of(connection, broker)
        assert session.deadline < inf
        session.deadline = 0.0  # as if the time were over
        assert connection.is_closed()


def test_who_has_logged_in_in_time_stays() -> None:
    with SaslBroker() as broker, broker.connect() as connection:
        connection.handshake()
        session = session_of(connection, broker)
        assert session.deadline < inf
        connection.authenticate(b"")
    with SaslBroker() as broker, broker.connect() as connection:
        connection.log_in()
        assert inf == session_of(connection, broker).deadline


# Failures -----------------------------------------------------------------------------------------------------------------


def test_failure_is_answered_later_without_a_waiting_thread() -> None:
    with SaslBroker(connection_failed_authentication_delay_ms=60_000, io_threads=1, network_threads=1) as broker:
        failures = broker.server.kafka.logins.failures
        with broker.connect() as failed, broker.connect() as other:
            failed.handshake("PLAIN")
            failed.tell(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"\0alice\0wrong")
            wait_for(lambda: 1 == failures.waiting)
            assert ErrorCode.none == other.log_in("PLAIN").error_code
            assert 1 == failures.waiting
        wait_for(lambda: 0 == failures.waiting)  # closed by the client


def test_half_close_does_not_shorten_the_delay() -> None:
    with SaslBroker(connection_failed_authentication_delay_ms=60_000) as broker, broker.connect() as connection:
        failures = broker.server.kafka.logins.failures
        connection.handshake("PLAIN")
        connection.tell(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"\0alice\0wrong")
        wait_for(lambda: 1 == failures.waiting)
        connection.socket.shutdown(socket.SHUT_WR)
        wait_for(lambda: inside(connection, broker).finished)
        connection.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.socket.recv(1)
        assert 1 == failures.waiting


def test_stopping_broker_does_not_wait_for_the_delay() -> None:
    with SaslBroker(connection_failed_authentication_delay_ms=60_000) as broker, broker.connect() as connection:
        connection.handshake("PLAIN")
        connection.tell(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"\0alice\0wrong")
        wait_for(lambda: 1 == broker.server.kafka.logins.failures.waiting)
        broker.stop()
        answer = connection.answer(ApiKey.SASL_AUTHENTICATE, 2)
        assert ErrorCode.sasl_authentication_failed == answer.error_code


def test_beyond_the_bound_failures_are_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.kafka.logins.WAITING_OF_ADDRESS_MAX", 3)
    with SaslBroker(connection_failed_authentication_delay_ms=60_000) as broker:
        connections = [broker.connect() for _ in range(4)]
        for number, connection in enumerate(connections):
            connection.tell(ApiKey.SASL_HANDSHAKE, 1, mechanism="GSSAPI")
            wait_for(lambda number=number: min(number + 1, 3) == broker.server.kafka.logins.failures.waiting)  # type: ignore[misc]
        assert connections[3].is_closed()
        for connection in connections:
            connection.socket.close()
        wait_for(lambda: 0 == broker.server.kafka.logins.failures.waiting)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Recorder:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def warning(self, event: str, **values: Any) -> None:
        assert "authentication_failed" == event
        self.events.append(values)


def test_repeated_failures_are_logged_seldom_and_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, clock = Recorder(), Clock()
    monkeypatch.setattr(logins_module, "log", recorder)
    logins = Logins(clock, LoginCounters(), LoginFailures(clock, None))  # type: ignore[arg-type]
    error = AuthenticationFailed("unknown user or wrong password", "al\nice\x1b[31m\u202e" + "x" * 1000)
    for host in ("a", "a", "b"):
        logins.log_failure(Peer(host, 1, "kafka+sasl", ("127.0.0.1", 1)), "PLAIN", error)
    assert ["a", "b"] == [event["peer"] for event in recorder.events]
    user = recorder.events[0]["user"]
    assert user.startswith("'al\\nice\\x1b[31m\\u202e")
    assert user.isprintable()
    assert len(user) < 150
    clock.now += 10
    logins.log_failure(Peer("a", 1, "kafka+sasl", ("127.0.0.1", 1)), "PLAIN", error)
    assert 3 == len(recorder.events)


def test_passwords_are_neither_logged_nor_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with SaslBroker() as broker, broker.connect() as connection:
        connection.log_in("PLAIN", password="pass-wort-one")
        with broker.connect() as other:
            other.log_in("PLAIN")
            shown = repr(broker.server.config) + repr(broker.server.security) + repr(broker.server.kafka.logins)
        printed = capsys.readouterr()
        for secret in ("pass-wort-one", PASSWORD):
            assert secret not in printed.err + printed.out + shown


def test_principal_stays_during_a_reauthentication(broker: SaslBroker) -> None:
    with broker.connect() as connection:
        connection.log_in()
        may_log_in_again(broker)
        connection.handshake()
        assert Principal("User", USER) == inside(connection, broker).principal


# -- quotas --------------------------------------------------------------------------------------------------------------


def test_requests_before_the_login_count_for_no_quota(broker: SaslBroker) -> None:
    """Otherwise whoever can connect could use up the quota of a client id that is not its own, and delay logins."""
    quotas = broker.server.security.quotas
    entities = [Entity(client_id="test"), Entity(user=DEFAULT)]
    quotas.alter([(entity, Kind.REQUEST, 1e-9) for entity in entities])
    try:
        with broker.connect() as connection:
            connection.ask(ApiKey.API_VERSIONS, 3, **CLIENT)
            assert connection.log_in("PLAIN", password="wrong").error_code == ErrorCode.sasl_authentication_failed
        with broker.connect() as connection:
            assert connection.log_in("PLAIN").error_code == 0
            assert quotas.sensors == 0
            assert connection.metadata().throttle_time.total_seconds() > 0
            assert quotas.sensors > 0
    finally:
        quotas.alter([(entity, Kind.REQUEST, None) for entity in entities])
