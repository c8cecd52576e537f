"""Tokens that expire during a connection, and forged or invalid tokens."""

import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from protocol.kafka.errors import ErrorCode
from tests.faults.logins import asks_in_vain, authenticate, handshake, is_in
from tests.faults.raw import API_VERSIONS, Faults, Raw
from tests.waiting import wait_for

LOGIN = "kafka+sasl"


@pytest.fixture(scope="module")
def key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture
def settings(tmp_path: Path, key: rsa.RSAPrivateKey) -> dict[str, Any]:
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key()))
    keys = {"keys": [{**public, "kid": "test", "alg": "RS256", "use": "sig"}]}
    (tmp_path / "jwks.json").write_text(json.dumps(keys))
    return {
        "listeners": ("kafka://127.0.0.1:0", "kafka+sasl://127.0.0.1:0"),
        "sasl_enabled_mechanisms": "OAUTHBEARER",
        "sasl_oauthbearer_jwks_endpoint_url": f"file://{tmp_path}/jwks.json",
        "sasl_oauthbearer_expected_audience": "broker",
        "sasl_oauthbearer_clock_skew_seconds": 0,
        "connection_failed_authentication_delay_ms": 0,
    }


def token(key: Any, *, algorithm: str = "RS256", **changes: Any) -> str:
    now = int(time.time())
    claims = {"sub": "alice", "aud": "broker", "iat": now, "exp": now + 3600} | changes
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": "test"})


def log_in(raw: Raw, text: str) -> Any:
    assert handshake(raw, "OAUTHBEARER").error_code == 0
    return authenticate(raw, f"n,,\x01auth=Bearer {text}\x01\x01".encode())


def test_a_session_ends_with_its_token(faults: Faults, key: rsa.RSAPrivateKey) -> None:
    """On a slow machine the token may have expired before it is checked: then the next token lives longer."""
    for lifetime_s in (3, 10, 30):
        raw = faults.connect(listener=LOGIN)
        answer = log_in(raw, token(key, exp=int(time.time()) + lifetime_s))
        if not answer.error_code:
            break
    assert 0 < answer.session_lifetime.total_seconds() <= lifetime_s

    def ended() -> bool:
        raw.try_send(API_VERSIONS)
        try:
            return not raw.socket.recv(1 << 16)
        except ConnectionError:
            return True

    wait_for(ended)


def test_a_good_token_lets_its_subject_in(faults: Faults, key: rsa.RSAPrivateKey) -> None:
    raw = faults.connect(listener=LOGIN)
    assert not log_in(raw, token(key)).error_code
    assert is_in(raw)


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": 1},
        {"exp": None},
        {"aud": "another"},
        {"aud": None},
        {"sub": None},
        {"sub": ""},
        {"sub": ["alice"]},
        {"nbf": 2**33},
        {"exp": "soon"},
    ],
    ids=str,
)
def test_a_token_with_bad_claims_lets_nobody_in(faults: Faults, key: rsa.RSAPrivateKey, changes: Any) -> None:
    now = int(time.time())
    claims = {"sub": "alice", "aud": "broker", "iat": now, "exp": now + 3600} | changes
    payload = {name: value for name, value in claims.items() if value is not None}
    text = jwt.api_jws.encode(json.dumps(payload).encode(), key, "RS256", headers={"kid": "test"})
    refused(faults, text)


def test_token_signed_otherwise_is_refused(faults: Faults, key: rsa.RSAPrivateKey) -> None:
    other = rsa.generate_private_key(65537, 2048)
    public = key.public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    good = token(key)
    header, payload, _ = good.split(".")
    unsigned = jwt.encode({"sub": "alice", "aud": "broker", "exp": 2**33}, None, algorithm="none")
    # The public key used as an HMAC secret: the oldest attack on JWT.
    confused_head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"test"}').rstrip(b"=").decode()
    mac = hmac.digest(pem, f"{confused_head}.{payload}".encode(), hashlib.sha256)
    confused = f"{confused_head}.{payload}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    for text in (
        token(other),
        unsigned,
        confused,
        f"{header}.{payload}.",
        f"{header}.{payload}",
        good + "x",
        "",
        "." * 9,
    ):
        refused(faults, text)


def refused(faults: Faults, text: str) -> None:
    with faults.connect(listener=LOGIN) as raw:
        answer = log_in(raw, text)
        # RFC 7628: the broker may first send an error, which the client confirms.
        if not answer.error_code:
            assert b"status" in bytes(answer.auth_bytes), "it was let in"
            answer = authenticate(raw, b"\x01")
        assert answer.error_code == ErrorCode.sasl_authentication_failed
        assert text == "" or text not in (answer.error_message or "")
        assert asks_in_vain(raw)
