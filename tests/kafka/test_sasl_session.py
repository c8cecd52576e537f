"""Any frames in any order, over a socket: what is answered, and when the broker closes the connection, as the tables say."""

import struct
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.kafka.sasl_session import ANSWERED, LoginEvent, LoginState, next_state
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema import control
from protocol.sasl.scram import ScramClient
from tests.kafka.sasl_client import CLIENT, PASSWORD, USER, Connection, SaslBroker
from tests.kafka.test_sasl_session_login import may_log_in_again

S, E = LoginState, LoginEvent
GOOD = f"\0{USER}\0{PASSWORD}".encode()
CLOSED = "closed"


@pytest.fixture(scope="module")
def broker() -> Iterator[SaslBroker]:
    with SaslBroker(connections_max_reauth_ms=600_000) as broker:
        yield broker


class Model:
    """What a client sees of a login by PLAIN: each method returns the error code that it gets, or CLOSED."""

    def __init__(self) -> None:
        self.state = S.INITIAL_REQUEST
        self.mechanism = ""
        self.wrong_mechanism = False

    def takes(self, key: ApiKey) -> bool:
        answered = ANSWERED[self.state]
        return answered is None or key in answered

    def versions(self, error: ErrorCode) -> ErrorCode | str:
        if not self.takes(ApiKey.API_VERSIONS):
            return CLOSED
        if self.state is S.AUTHENTICATE:
            self.state = S.FAILED
            return ErrorCode.illegal_sasl_state
        if self.state is S.INITIAL_REQUEST and not error:
            self.state = next_state(self.state, E.VERSIONS_TOLD)
        return error

    def handshake(self, mechanism: str, version: int) -> ErrorCode | str:
        if not self.takes(ApiKey.SASL_HANDSHAKE):
            return CLOSED
        if mechanism == "GSSAPI":
            self.state = next_state(self.state, E.REFUSED)
            return ErrorCode.unsupported_sasl_mechanism
        self.wrong_mechanism = self.state is S.COMPLETE and mechanism != self.mechanism
        if not self.wrong_mechanism:
            self.mechanism = mechanism
        self.state = next_state(self.state, E.MECHANISM_CHOSEN if version else E.MECHANISM_CHOSEN_V0)
        return ErrorCode.none

    def token(self, good: bool) -> ErrorCode | str:
        """In a request."""
        if not self.takes(ApiKey.SASL_AUTHENTICATE):
            return CLOSED
        if self.state is S.COMPLETE:
            return ErrorCode.illegal_sasl_state
        if self._proves(good):
            return ErrorCode.none
        return ErrorCode.sasl_authentication_failed

    def raw(self, good: bool) -> ErrorCode | str:
        assert self.state is S.AUTHENTICATE_RAW
        return ErrorCode.none if self._proves(good) else CLOSED

    def _proves(self, good: bool) -> bool:
        right = good and self.mechanism == "PLAIN" and not self.wrong_mechanism
        self.state = next_state(self.state, E.PROVED if right else E.REFUSED)
        return right

    def other(self) -> ErrorCode | str:
        return ErrorCode.none if self.takes(ApiKey.METADATA) else CLOSED


def result(read: Callable[[], ErrorCode]) -> ErrorCode | str:
    try:
        return read()
    except (AssertionError, ConnectionError):
        return CLOSED


_steps = st.one_of(
    st.just(("versions",)),
    st.just(("invalid versions",)),
    st.just(("newer versions",)),
    st.tuples(
        st.just("handshake"), st.sampled_from(["PLAIN", "PLAIN", "PLAIN", "SCRAM-SHA-256", "GSSAPI"]), st.integers(0, 1)
    ),
    st.tuples(st.just("token"), st.sampled_from([True, True, False])),
    st.just(("other",)),
)


def _send(step: tuple, model: Model, connection: Connection) -> tuple[ErrorCode | str, ErrorCode | str]:  # type: ignore[type-arg]
    """Expected and actual."""
    if model.state is S.AUTHENTICATE_RAW:
        good = step == ("token", True)
        token = GOOD if good else b"\0" + repr(step).encode()
        expected = model.raw(good)

        def raw() -> ErrorCode:
            connection.token(token)
            return ErrorCode.none

        return expected, result(raw)
    if step[0] == "versions":
        return model.versions(ErrorCode.none), result(
            lambda: connection.ask(ApiKey.API_VERSIONS, 3, **CLIENT).error_code
        )
    if step[0] == "invalid versions":
        said = {"client_software_name": "-", "client_software_version": ""}
        return model.versions(ErrorCode.invalid_request), result(
            lambda: connection.ask(ApiKey.API_VERSIONS, 3, **said).error_code
        )
    if step[0] == "newer versions":

        def newer() -> ErrorCode:
            connection.socket.sendall(b"\0\0\0\x0b\0\x12\0\x63\0\0\0\7\xff\xff\0")
            return connection.answer(ApiKey.API_VERSIONS, 0).error_code  # type: ignore[no-any-return]

        return model.versions(ErrorCode.unsupported_version), result(newer)
    if step[0] == "handshake":
        _, mechanism, version = step
        return model.handshake(mechanism, version), result(lambda: connection.handshake(mechanism, version).error_code)
    if step[0] == "token":
        token = GOOD if step[1] else b"\0alice\0wrong"
        return model.token(step[1]), result(lambda: connection.authenticate(token).error_code)

    def metadata() -> ErrorCode:
        connection.metadata()
        return ErrorCode.none

    return model.other(), result(metadata)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=st.lists(_steps, max_size=10))
def test_frames_in_any_order_follow_the_tables(broker: SaslBroker, steps: list[tuple]) -> None:  # type: ignore[type-arg]
    model = Model()
    with broker.connect() as connection:
        for step in steps:
            may_log_in_again(broker)
            expected, actual = _send(step, model, connection)
            assert expected == actual, f"{step} in {model.state}"
            if expected == CLOSED:
                return
            if model.state is S.FAILED:
                assert connection.is_closed()
                return


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    mechanism=st.sampled_from([None, "PLAIN", "SCRAM-SHA-256"]),
    version=st.integers(0, 1),
    garbage=st.binary(max_size=200),
    framed=st.booleans(),
)
def test_any_bytes_let_nobody_in(
    broker: SaslBroker, mechanism: str | None, version: int, garbage: bytes, framed: bool
) -> None:
    before = broker.logins().get("succeeded", 0)
    with broker.connect() as connection:
        if mechanism is not None:
            connection.handshake(mechanism, version)
        connection.socket.sendall(struct.pack(">i", len(garbage)) + garbage if framed else garbage)
        connection.socket.shutdown(1)
        while connection.socket.recv(65536):
            pass
    assert before == broker.logins().get("succeeded", 0)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(version=st.integers(0, 2), cut=st.integers(0, 200), change=st.integers(0, 255), place=st.integers(0, 200))
def test_a_spoiled_proof_lets_nobody_in(broker: SaslBroker, version: int, cut: int, change: int, place: int) -> None:
    client = ScramClient("SCRAM-SHA-256", USER, PASSWORD, "nonce")
    with broker.connect() as connection:
        connection.handshake()
        proof = bytearray(client.final(connection.authenticate(client.first(), version).auth_bytes))
        good = bytes(proof)
        proof[place % len(proof)] ^= change
        del proof[len(proof) - cut % 3 :]
        answer = connection.authenticate(bytes(proof), version)
        assert (ErrorCode.none if bytes(proof) == good else ErrorCode.sasl_authentication_failed) == answer.error_code


def test_frames_may_arrive_split_or_together(broker: SaslBroker) -> None:
    frames = [
        control.encode_request(ApiKey.API_VERSIONS, 3, 7, "test", CLIENT),
        control.encode_request(ApiKey.SASL_HANDSHAKE, 1, 7, "test", {"mechanism": "PLAIN"}),
        control.encode_request(ApiKey.SASL_AUTHENTICATE, 2, 7, "test", {"auth_bytes": GOOD}),
        control.encode_request(ApiKey.METADATA, 9, 7, "test", {"topics": [], "allow_auto_topic_creation": False}),
    ]
    for size in (1, 1000):
        with broker.connect() as connection:
            data = b"".join(frames)
            for start in range(0, len(data), size):
                connection.socket.sendall(data[start : start + size])
            assert ErrorCode.none == connection.answer(ApiKey.API_VERSIONS, 3).error_code
            assert ErrorCode.none == connection.answer(ApiKey.SASL_HANDSHAKE, 1).error_code
            assert ErrorCode.none == connection.answer(ApiKey.SASL_AUTHENTICATE, 2).error_code
            assert connection.answer(ApiKey.METADATA, 9).brokers


def test_frames_after_a_failed_login_are_not_answered(broker: SaslBroker) -> None:
    with broker.connect() as connection:
        connection.handshake("PLAIN")
        wrong = control.encode_request(ApiKey.SASL_AUTHENTICATE, 2, 7, "test", {"auth_bytes": b"\0alice\0wrong"})
        right = control.encode_request(ApiKey.SASL_AUTHENTICATE, 2, 7, "test", {"auth_bytes": GOOD})
        connection.socket.sendall(wrong + right)
        assert ErrorCode.sasl_authentication_failed == connection.answer(ApiKey.SASL_AUTHENTICATE, 2).error_code
        assert connection.is_closed()
