"""Invalid logins: out of order, replayed, too early, too late, too large, as another user, noise."""

import hashlib
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from broker.network import expiry
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.errors import ErrorCode
from protocol.kafka.schema import control
from tests.faults.logins import (
    PASSWORD,
    USER,
    asks_in_vain,
    authenticate,
    handshake,
    is_in,
    log_in,
    plain_token,
)
from tests.faults.raw import API_VERSIONS, Faults, Raw, produce
from tests.kafka_connection import LENGTH
from tests.scram import ScramClient
from tests.waiting import wait_for

LOGIN = "kafka+sasl"
LISTENERS = ("kafka://127.0.0.1:0", "kafka+sasl://127.0.0.1:0", "shuffle://127.0.0.1:0")
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
OFFERED = "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN"
# Without delay, where a test is about something else.
SETTINGS = {
    "listeners": LISTENERS,
    "sasl_enabled_mechanisms": OFFERED,
    "connection_failed_authentication_delay_ms": 0,
}

shared = hypothesis_settings(
    max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    return SETTINGS | getattr(request, "param", {})


def with_settings(**values: Any) -> Any:
    return pytest.mark.parametrize("settings", [values], indirect=True, ids=["-".join(values)])


def put_user(faults: Faults, user: str = USER, password: str = PASSWORD, **changes: Any) -> list[int]:
    """Tries both mechanisms; returns the error codes."""
    salt, iterations = b"salt" * 8, changes.pop("iterations", 4096)
    rows = [
        {
            "name": user,
            "mechanism": code,
            "iterations": iterations,
            "salt": salt,
            "salted_password": hashlib.pbkdf2_hmac(name, password.encode(), salt, min(max(iterations, 1), 4096)),
        }
        for name, code in (("sha256", 1), ("sha512", 2))
    ]
    with faults.connect() as operator:  # Kafka takes one change of a user per request
        answers = [operator.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[], upsertions=[row]) for row in rows]
    return [result.error_code for answer in answers for result in answer.results]


@pytest.fixture
def users(faults: Faults) -> Faults:
    """A broker with one user."""
    assert set(put_user(faults)) == {0}
    return faults


def come(faults: Faults) -> Raw:
    return faults.connect(listener=LOGIN)


# -- out of order --------------------------------------------------------------------------------------------------------


def test_nothing_else_is_answered_before_a_login(users: Faults) -> None:
    allowed = {ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE}
    for key, version, request in users.all_requests():
        if key in allowed:
            continue
        with come(users) as raw:
            raw.try_send(request)
            assert raw.rest() == b"", (key, version)


def test_requests_sent_with_a_login_wait_for_it(users: Faults) -> None:
    request = control.encode_request(ApiKey.METADATA, 5, 9, "raw", {"topics": None})
    first = control.encode_request(ApiKey.SASL_HANDSHAKE, 1, 8, "raw", {"mechanism": "PLAIN"})
    with come(users) as raw:
        raw.try_send(first + request)
        answers = raw.rest()
    assert answers[4:8] == LENGTH.pack(8)
    rest = answers[4 + LENGTH.unpack(answers[:4])[0] :]
    assert len(rest) < 200  # an error at most, and no list of topics
    assert users.topic.encode() not in rest


@with_settings(sasl_enabled_mechanisms="SCRAM-SHA-512")
def test_a_disabled_mechanism_lets_nobody_in(users: Faults) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        with come(users) as raw:
            assert handshake(raw, mechanism).error_code == ErrorCode.unsupported_sasl_mechanism
            raw.try_send(control.encode_request(ApiKey.SASL_AUTHENTICATE, 2, 8, "raw", {"auth_bytes": plain_token()}))
            assert raw.rest() == b""
    with come(users) as raw:
        assert log_in(raw, "SCRAM-SHA-512").error_code == 0


# -- wrong ---------------------------------------------------------------------------------------------------------------


def test_a_recorded_login_is_of_no_use(users: Faults) -> None:
    """An eavesdropper has every message of the login, the client's nonce included."""
    with come(users) as raw:
        scram = ScramClient("SCRAM-SHA-256", USER, PASSWORD, "nonce")
        assert handshake(raw, "SCRAM-SHA-256").error_code == 0
        first = authenticate(raw, scram.first()).auth_bytes
        proof = scram.final(first)
        assert authenticate(raw, proof).error_code == 0
    nonces = {first.split(b",")[0]}
    for _ in range(5):
        with come(users) as raw:
            assert handshake(raw, "SCRAM-SHA-256").error_code == 0
            nonces.add(authenticate(raw, scram.first()).auth_bytes.split(b",")[0])
            assert authenticate(raw, proof).error_code == ErrorCode.sasl_authentication_failed
            assert asks_in_vain(raw)
    assert len(nonces) == 6


def test_a_client_that_repeats_its_nonce_comes_in(users: Faults) -> None:
    """As librdkafka before 2.6.1 does, and with it Debian's kcat."""
    with come(users) as raw:
        scram = ScramClient("SCRAM-SHA-256", USER, PASSWORD, "nonce")
        assert handshake(raw, "SCRAM-SHA-256").error_code == 0
        first = authenticate(raw, scram.first()).auth_bytes
        whole = first.decode().split(",")[0].removeprefix("r=")
        answer = authenticate(raw, scram.final(first, nonce="nonce" + whole))
        assert answer.error_code == 0
        assert scram.is_genuine(answer.auth_bytes)


def test_proof_is_not_taken_twice_on_a_connection(users: Faults) -> None:
    with come(users) as raw:
        scram = ScramClient("SCRAM-SHA-256", USER, PASSWORD, "nonce")
        assert handshake(raw, "SCRAM-SHA-256").error_code == 0
        proof = scram.final(authenticate(raw, scram.first()).auth_bytes)
        assert authenticate(raw, proof).error_code == 0
        raw.send(control.encode_request(ApiKey.SASL_AUTHENTICATE, 2, 8, "raw", {"auth_bytes": proof}))
        raw.frame()  # an error; it does nothing
        assert is_in(raw)


def test_credentials_with_unacceptable_iterations_are_not_stored(users: Faults) -> None:
    for iterations in (2**31 - 1, 1_000_000, 1, 0, -1):
        codes = put_user(users, "mallory", iterations=iterations)
        assert set(codes) == {ErrorCode.unacceptable_credential}, iterations
    with come(users) as raw:
        assert log_in(raw, "SCRAM-SHA-256", "mallory").error_code == ErrorCode.sasl_authentication_failed


def test_request_too_large_for_a_login_closes_connection(users: Faults) -> None:
    with come(users) as raw:
        raw.try_send(LENGTH.pack(524_289) + bytes(100_000))
        assert raw.rest() == b""
    with come(users) as raw:
        assert handshake(raw, "PLAIN", 0).error_code == 0
        raw.try_send(LENGTH.pack(524_289))
        assert raw.rest() == b""
    with come(users) as raw:  # after the login, it may send large requests
        assert log_in(raw).error_code == 0
        raw.send(produce(users.topic, b"v" * 900_000))
        assert raw.frame()


# -- again ---------------------------------------------------------------------------------------------------------------


@with_settings(connections_max_reauth_ms=600_000)
class TestAgain:
    """The login is renewed."""

    def test_same_user_may_reauthenticate_with_requests_in_flight(self, users: Faults) -> None:
        with come(users) as raw:
            lifetime_s = log_in(raw).session_lifetime.total_seconds()
            assert 0 < lifetime_s <= 600
            scram = ScramClient("SCRAM-SHA-256", USER, PASSWORD, "nonce")
            raw.send(produce(users.topic, b"x", acks=-1) * 3)
            raw.send(control.encode_request(ApiKey.SASL_HANDSHAKE, 1, 9, "raw", {"mechanism": "SCRAM-SHA-256"}))
            for _ in range(4):
                answer = raw.frame()
            assert control.parse_response(ApiKey.SASL_HANDSHAKE, 1, answer)[1].error_code == 0
            final = scram.final(authenticate(raw, scram.first()).auth_bytes)
            assert authenticate(raw, final).error_code == 0
            assert is_in(raw)

            # On a slow machine the second has passed before the first answer.

    def test_another_user_ends_the_connection(self, users: Faults) -> None:
        put_user(users, "bob")
        with come(users) as raw:
            assert log_in(raw, "PLAIN").error_code == 0
            assert handshake(raw, "PLAIN").error_code == 0
            answer = authenticate(raw, plain_token("bob"))
            assert answer.error_code == ErrorCode.sasl_authentication_failed
            assert asks_in_vain(raw)


@with_settings(connections_max_reauth_ms=200)
def test_a_session_that_is_not_renewed_ends(users: Faults) -> None:
    with come(users) as raw:
        assert log_in(raw).error_code == 0

        def ended() -> bool:
            raw.try_send(API_VERSIONS)
            try:
                return not raw.socket.recv(1 << 16)
            except ConnectionResetError:  # the request came after the end
                return True

        wait_for(ended)


# -- many ----------------------------------------------------------------------------------------------------------------


def test_three_hundred_wrong_passwords_delay_nobody(users: Faults) -> None:
    """Each costs the broker milliseconds of CPU: on handlers, not on processors."""
    clients = [come(users) for _ in range(300)]
    for raw in clients:
        raw.send(
            control.encode_request(ApiKey.SASL_HANDSHAKE, 1, 1, "raw", {"mechanism": "PLAIN"})
            + control.encode_request(
                ApiKey.SASL_AUTHENTICATE, 1, 2, "raw", {"auth_bytes": plain_token(password="wrong")}
            )
        )
    for _ in range(3):
        assert users.serves()
    for raw in clients:
        assert raw.rest()  # the refusal
    assert users.serves()


@with_settings(connection_failed_authentication_delay_ms=60_000)
def test_delayed_refusals_block_nobody_and_end_with_clients(users: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "_LINGER_S", 0.1)  # 10 s: those that have closed their side might still read
    clients = [come(users) for _ in range(50)]
    for raw in clients:
        assert handshake(raw, "PLAIN").error_code == 0
        raw.send(control.encode_request(ApiKey.SASL_AUTHENTICATE, 1, 2, "raw", {"auth_bytes": b"\0a\0b"}))
    assert users.serves()
    for number, raw in enumerate(clients):
        if number % 2:
            raw.close()
        else:
            raw.abort()


# -- noise ---------------------------------------------------------------------------------------------------------------

TOKENS = st.one_of(
    st.binary(max_size=80),
    st.sampled_from(
        [
            plain_token(password="wrong"),
            b"n,,n=alice,r=nonce",
            b"y,a=bob,n=alice,r=nonce",
            b"n,,n=alice=2,r=nonce",
            b"p=tls-unique,,n=alice,r=nonce",
            b"n,,n=alice,r=",
            b"n,,m=x,n=alice,r=nonce",
            b"c=biws,r=nonce,p=AAAA",
            b"c=biws,r=nonce",
            b"n,,n=" + b"a" * 500 + b",r=" + b"n" * 500,
            b"n,auth=Bearer x\x01\x01",
            b"\0" * 40,
            b"\xff\xfe",
        ]
    ),
)
STEPS = st.one_of(
    st.tuples(st.just("handshake"), st.integers(0, 3), st.sampled_from([*MECHANISMS, "OAUTHBEARER", "GSSAPI", ""])),
    st.tuples(st.just("authenticate"), st.integers(0, 4), TOKENS),
    st.tuples(st.just("token"), st.just(0), TOKENS),
    st.tuples(st.just("other"), st.integers(0, 12), st.sampled_from([0, 1, 3, 10, 18, 18, 19, 22, 29, 36, 42, 50])),
    st.tuples(st.just("bytes"), st.just(0), st.binary(min_size=1, max_size=60)),
)


def _frame(step: tuple[str, int, Any]) -> bytes:
    kind, version, payload = step
    try:
        if kind == "handshake":
            return control.encode_request(ApiKey.SASL_HANDSHAKE, min(version, 1), 5, "raw", {"mechanism": payload})
        if kind == "authenticate":
            return control.encode_request(ApiKey.SASL_AUTHENTICATE, min(version, 2), 6, "raw", {"auth_bytes": payload})
    except (KeyError, ValueError):
        return b""
    if kind == "token":
        return LENGTH.pack(len(payload)) + bytes(payload)
    if kind == "other":
        head = int(payload).to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\x07\0\x03raw\0\0\0\0\0\0"
        return LENGTH.pack(len(head)) + head
    return bytes(payload)


@given(steps=st.lists(STEPS, min_size=1, max_size=8), seed=st.integers(0, 2**16))
@shared
def test_logins_of_any_order_size_and_version(users: Faults, steps: list[tuple[str, int, Any]], seed: int) -> None:
    rng = random.Random(seed)
    data = bytearray(b"".join(map(_frame, steps)))
    if data and rng.random() < 0.3:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    with come(users) as raw:
        raw.try_send(bytes(data))
        raw.finish()
        answers = raw.rest()
    assert users.topic.encode() not in answers  # only logged-in clients learn the topic's name


def test_the_broker_serves_after_all_of_that(users: Faults) -> None:
    rng = random.Random(5)
    for _ in range(300):
        with come(users) as raw:
            size = rng.choice([0, 1, 3, 20, 300, 70_000])
            raw.try_send(rng.randbytes(rng.randrange(8)) + LENGTH.pack(size) + rng.randbytes(min(size, 1000)))
            if rng.random() < 0.5:
                raw.abort()
    assert users.serves()
    with come(users) as raw:
        assert log_in(raw).error_code == 0
