"""SaslAuthenticate with every mechanism, and logins that fail."""

import time
from collections.abc import Iterator

import pytest

from broker.metrics.registry import render
from broker.security.principal import ANONYMOUS, Principal
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.sasl.scram import ScramClient
from tests.kafka.sasl_client import PASSWORD, USER, Connection, SaslBroker
from tests.tokens import AUDIENCE, ISSUER, jwk, jwks, message, private_key, token

MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
ODD_USERS = ["a,b=c", "Ä=2C", "ﬁ", "😀", "a b:c"]


@pytest.fixture(scope="module")
def broker() -> Iterator[SaslBroker]:
    with SaslBroker() as broker:
        for user in ODD_USERS:
            broker.add(user, "SCRAM-SHA-256", PASSWORD)
        yield broker


def principals(broker: SaslBroker) -> set[Principal]:
    """Of all connections."""
    return {
        connection.principal
        for processor in broker.server.sockets.processors
        for connection in processor.connections.copy()
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("version", [0, 1, 2])
def test_correct_password_logs_in_under_its_name(broker: SaslBroker, mechanism: str, version: int) -> None:
    with broker.connect() as connection:
        answer = connection.log_in(mechanism, version=version)
        assert (ErrorCode.none, None) == (answer.error_code, answer.error_message)
        assert connection.metadata().brokers
        assert Principal("User", USER) in principals(broker)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
@pytest.mark.parametrize("user", ODD_USERS)
def test_names_may_be_odd(broker: SaslBroker, mechanism: str, user: str) -> None:
    with broker.connect() as connection:
        assert ErrorCode.none == connection.log_in(mechanism, user).error_code
        assert Principal("User", user) in principals(broker)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    ("user", "password"), [(USER, "wrong"), ("nobody", PASSWORD), ("fi", PASSWORD), ("a" * 990, PASSWORD)]
)
def test_every_failure_gets_the_same_answer_and_close(
    broker: SaslBroker, mechanism: str, user: str, password: str
) -> None:
    with broker.connect() as connection:
        answer = connection.log_in(mechanism, user, password)
        assert ErrorCode.sasl_authentication_failed == answer.error_code
        message = (
            f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
        )
        assert (message, b"") == (answer.error_message, answer.auth_bytes)
        assert connection.is_closed()


def test_unknown_user_is_challenged_like_a_known_one(broker: SaslBroker) -> None:
    def challenge(user: str) -> dict[str, str]:
        with broker.connect() as connection:
            connection.handshake("SCRAM-SHA-512")
            answer = connection.authenticate(ScramClient("SCRAM-SHA-512", user, "x", "nonce").first())
            return dict(part.split("=", 1) for part in answer.auth_bytes.decode().split(","))

    known, unknown, again = challenge(USER), challenge("nobody"), challenge("nobody")
    assert {"r", "s", "i"} == set(known) == set(unknown)
    assert (known["i"], len(known["s"]), len(known["r"])) == (unknown["i"], len(unknown["s"]), len(unknown["r"]))
    assert unknown["s"] == again["s"]
    assert unknown["r"] != again["r"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\0",
        bytes(3),
        b"\xff" * 100,
        b"n,,",
        b"n,a=bob,n=alice,r=nonce",
        b"bob\0alice\0s3cret-\xc3\x84",
        b"x" * 400_000,
    ],
)
def test_invalid_token_is_a_failed_login(broker: SaslBroker, mechanism: str, token: bytes) -> None:
    with broker.connect() as connection:
        connection.handshake(mechanism)
        assert ErrorCode.sasl_authentication_failed == connection.authenticate(token).error_code
        assert connection.is_closed()


def test_who_acts_as_himself_may_say_so(broker: SaslBroker) -> None:
    with broker.connect() as connection:
        connection.handshake("PLAIN")
        assert ErrorCode.none == connection.authenticate(f"{USER}\0{USER}\0{PASSWORD}".encode()).error_code


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_token_after_the_login_is_out_of_order(broker: SaslBroker, mechanism: str) -> None:
    with broker.connect() as connection:
        connection.log_in(mechanism)
        answer = connection.authenticate(b"\0bob\0wrong")
        assert ErrorCode.illegal_sasl_state == answer.error_code
        assert connection.metadata().brokers


def test_handshake_after_endless_login_is_out_of_order(broker: SaslBroker) -> None:
    with broker.connect() as connection:
        connection.log_in()
        assert ErrorCode.illegal_sasl_state == connection.handshake().error_code
        assert connection.metadata().brokers


def raw_login(connection: Connection, user: str, password: str) -> None:
    connection.handshake("SCRAM-SHA-256", version=0)
    client = ScramClient("SCRAM-SHA-256", user, password, "nonce")
    client.verify(connection.token(client.final(connection.token(client.first()))))


def test_after_the_oldest_handshake_tokens_come_without_requests(broker: SaslBroker) -> None:
    with broker.connect() as connection:
        raw_login(connection, USER, PASSWORD)
        assert connection.metadata().brokers
    with broker.connect() as connection:
        connection.handshake("PLAIN", version=0)
        assert b"" == connection.token(f"\0{USER}\0{PASSWORD}".encode())
        assert connection.metadata().brokers


@pytest.mark.parametrize("token", [b"", b"x", b"\0alice\0wrong", bytes(10_000)])
def test_a_failure_without_a_request_has_no_answer(broker: SaslBroker, token: bytes) -> None:
    with broker.connect() as connection:
        connection.handshake("PLAIN", version=0)
        connection.socket.sendall(len(token).to_bytes(4, "big") + token)
        assert connection.is_closed()


@pytest.mark.parametrize("length", [-1, 5000, 2**31 - 1])
@pytest.mark.parametrize("handshake", [None, 0, 1])
def test_before_the_login_requests_are_short(length: int, handshake: int | None) -> None:
    with SaslBroker(sasl_server_max_receive_size=4096) as broker, broker.connect() as connection:
        if handshake is not None:
            connection.handshake(version=handshake)
        connection.socket.sendall(length.to_bytes(4, "big", signed=True))
        assert connection.is_closed()


def test_after_the_login_requests_may_be_long() -> None:
    with SaslBroker(sasl_server_max_receive_size=4096) as broker, broker.connect() as connection:
        connection.log_in()
        answer = connection.ask(ApiKey.METADATA, 9, topics=[{"name": f"{number:0200}"} for number in range(100)])
        assert 100 == len(answer.topics)


def test_deleted_user_stays_connected_but_cannot_log_in(broker: SaslBroker) -> None:
    broker.add("leaver", "SCRAM-SHA-256", PASSWORD)
    with broker.connect() as before, broker.connect() as after:
        assert ErrorCode.none == before.log_in(user="leaver").error_code
        broker.server.security.credentials.alter([], [("leaver", "SCRAM-SHA-256")])
        assert ErrorCode.sasl_authentication_failed == after.log_in(user="leaver").error_code
        assert before.metadata().brokers


def test_logins_are_counted(broker: SaslBroker) -> None:
    with SaslBroker() as fresh:
        with fresh.connect() as connection:
            connection.log_in("PLAIN")
        with fresh.connect() as connection:
            connection.log_in("SCRAM-SHA-256", password="wrong")
        with fresh.connect() as connection:
            connection.handshake("GSSAPI")
        text = render(fresh.server.metrics).decode()
        assert 'broker_sasl_logins_total{listener="kafka+sasl",mechanism="PLAIN",result="succeeded"} 1.0' in text
        assert 'broker_sasl_logins_total{listener="kafka+sasl",mechanism="SCRAM-SHA-256",result="failed"} 1.0' in text
        assert 'broker_sasl_logins_total{listener="kafka+sasl",mechanism="",result="failed"} 1.0' in text


def test_client_without_a_login_is_anonymous(broker: SaslBroker) -> None:
    with SaslBroker() as fresh, fresh.connect() as connection:
        connection.handshake()
        assert {ANONYMOUS} == principals(fresh)


# OAUTHBEARER --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bearer_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_bytes(jwks(jwk(private_key())))
    with SaslBroker(
        sasl_enabled_mechanisms="OAUTHBEARER",
        sasl_oauthbearer_jwks_endpoint_url=f"file://{path}",
        sasl_oauthbearer_expected_audience=AUDIENCE,
        sasl_oauthbearer_expected_issuer=ISSUER,
    ) as broker:
        yield broker


def test_bearer_token_is_valid_until_it_expires(bearer_broker: SaslBroker) -> None:
    with bearer_broker.connect() as connection:
        connection.handshake("OAUTHBEARER")
        answer = connection.authenticate(message(token(sub="carol")))
        assert ErrorCode.none == answer.error_code
        assert 500 < answer.session_lifetime.total_seconds() <= 600
        assert connection.metadata().brokers
        assert Principal("User", "carol") in principals(bearer_broker)


def test_a_bad_token_is_answered_in_two_steps(bearer_broker: SaslBroker) -> None:
    with bearer_broker.connect() as connection:
        connection.handshake("OAUTHBEARER")
        answer = connection.authenticate(message(token(exp=1)))
        assert (ErrorCode.none, b'{"status":"invalid_token"}') == (answer.error_code, answer.auth_bytes)
        answer = connection.authenticate(b"\x01")
        assert ErrorCode.sasl_authentication_failed == answer.error_code
        assert "expired" not in answer.error_message
        assert connection.is_closed()


@pytest.mark.parametrize("first", [b"", b"\x01", b"n,,\x01auth=Bearer \x01\x01", b"x" * 400_000])
def test_invalid_bearer_message_is_a_failed_login(bearer_broker: SaslBroker, first: bytes) -> None:
    with bearer_broker.connect() as connection:
        connection.handshake("OAUTHBEARER")
        assert ErrorCode.sasl_authentication_failed == connection.authenticate(first).error_code
        assert connection.is_closed()


def test_a_token_that_expires_ends_the_connection(bearer_broker: SaslBroker) -> None:
    with bearer_broker.connect() as connection:
        connection.handshake("OAUTHBEARER")
        assert ErrorCode.none == connection.authenticate(message(token(exp=int(time.time()) + 1))).error_code
        assert connection.is_closed()
