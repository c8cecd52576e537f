"""SaslHandshake on listeners with and without logins, and what else is answered around it."""

import pytest

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from tests.kafka.handlers.kafka_client import Kafka
from tests.kafka.sasl_client import CLIENT, SaslBroker


@pytest.fixture(scope="module")
def broker():  # type: ignore[no-untyped-def]
    with SaslBroker() as broker:
        yield broker


@pytest.mark.parametrize("version", [0, 1])
def test_the_mechanisms_of_the_listener_are_told(broker: SaslBroker, version: int) -> None:
    with broker.connect() as connection:
        answer = connection.handshake("SCRAM-SHA-512", version)
        assert (ErrorCode.none, ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")) == (answer.error_code, answer.mechanisms)


@pytest.mark.parametrize("mechanism", ["", "GSSAPI", "SCRAM-SHA-1", "scram-sha-256", "\u00fc" * 200, "x" * 30_000])
def test_unknown_mechanism_is_refused_with_the_available_ones(broker: SaslBroker, mechanism: str) -> None:
    with broker.connect() as connection:
        answer = connection.handshake(mechanism)
        assert ErrorCode.unsupported_sasl_mechanism == answer.error_code
        assert ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN") == answer.mechanisms
        assert connection.is_closed()


@pytest.mark.parametrize("version", [0, 1])
def test_listener_without_logins_refuses_and_goes_on(version: int) -> None:
    with Kafka() as kafka:
        answer = kafka.ask(ApiKey.SASL_HANDSHAKE, version, mechanism="PLAIN")
        assert (ErrorCode.illegal_sasl_state, ()) == (answer.error_code, answer.mechanisms)
        answer = kafka.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=b"\0alice\0secret")
        assert ErrorCode.illegal_sasl_state == answer.error_code
        assert ErrorCode.none == kafka.ask(ApiKey.API_VERSIONS, 3, **CLIENT).error_code


@pytest.mark.parametrize("version", range(4))
def test_api_versions_are_answered_before_and_after_login(broker: SaslBroker, version: int) -> None:
    with broker.connect() as connection:
        assert ErrorCode.none == connection.ask(ApiKey.API_VERSIONS, version, **CLIENT).error_code
        assert ErrorCode.none == connection.log_in().error_code
        assert connection.metadata().brokers
        for _ in range(3):
            assert ErrorCode.none == connection.ask(ApiKey.API_VERSIONS, version, **CLIENT).error_code


@pytest.mark.parametrize("key", [ApiKey.METADATA, ApiKey.PRODUCE, ApiKey.SASL_AUTHENTICATE, ApiKey.HEARTBEAT])
@pytest.mark.parametrize("versions_first", [False, True])
def test_before_the_handshake_nothing_else_is_answered(broker: SaslBroker, key: ApiKey, versions_first: bool) -> None:
    with broker.connect() as connection:
        if versions_first:
            connection.ask(ApiKey.API_VERSIONS, 0)
        connection.socket.sendall(b"\0\0\0\x10" + key.to_bytes(2, "big") + b"\0\x01\0\0\0\7\xff\xff" + bytes(6))
        assert connection.is_closed()


def test_after_the_handshake_nothing_but_tokens_is_answered(broker: SaslBroker) -> None:
    for key in (ApiKey.METADATA, ApiKey.SASL_HANDSHAKE):
        with broker.connect() as connection:
            connection.handshake()
            connection.tell(key, 1, **({"topics": []} if key is ApiKey.METADATA else {"mechanism": "PLAIN"}))
            assert connection.is_closed()


@pytest.mark.parametrize("version", range(4))
def test_api_versions_are_told_once_before_the_login(broker: SaslBroker, version: int) -> None:
    with broker.connect() as connection:
        connection.ask(ApiKey.API_VERSIONS, version, **CLIENT)
        connection.tell(ApiKey.API_VERSIONS, 0)
        assert connection.is_closed()


def test_api_versions_after_handshake_are_out_of_order(broker: SaslBroker) -> None:
    with broker.connect() as connection:
        connection.handshake()
        answer = connection.ask(ApiKey.API_VERSIONS, 3, **CLIENT)
        assert (ErrorCode.illegal_sasl_state, ()) == (answer.error_code, answer.api_keys)
        assert connection.is_closed()


def test_unknown_api_versions_version_may_be_retried(broker: SaslBroker) -> None:
    with broker.connect() as connection:
        connection.socket.sendall(b"\0\0\0\x0b\0\x12\0\x63\0\0\0\7\xff\xff\0")
        assert ErrorCode.unsupported_version == connection.answer(ApiKey.API_VERSIONS, 0).error_code
        assert ErrorCode.none == connection.ask(ApiKey.API_VERSIONS, 3, **CLIENT).error_code
        assert ErrorCode.none == connection.log_in().error_code
