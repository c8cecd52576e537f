from typing import Any

import jwt
import pytest

from broker.config.security_settings import PLAIN
from broker.security.principal import ANONYMOUS, USER, Principal
from broker.security.proofs import Authentication, SecretTokens
from broker.security.sasl.exchange import AuthenticationFailed, Identity, Step
from tests.storage.helpers import HandClock

KEY = b"0123456789abcdef0123456789abcdef"
CERTIFIED = Principal(USER, "CN=client")
CLOCK = HandClock()
NOW_S = CLOCK.time_ms() // 1000


class Passwords:
    """Lets alice in."""

    slow = True

    def evaluate(self, token: bytes) -> Step:
        if token != b"\0alice\0secret:with colon":
            raise AuthenticationFailed("wrong password", "alice")
        return Step(b"", Identity(Principal(USER, "alice")))


ASKING = Authentication(exchanges={PLAIN: Passwords}, tokens=SecretTokens(KEY, CLOCK))


def token(key: bytes = KEY, algorithm: str = "HS256", **claims: Any) -> bytes:
    return jwt.encode(claims, key, algorithm).encode()


def test_no_proof_is_needed_without_logins() -> None:
    assert CERTIFIED == Authentication().authenticate("token", b"nonsense", CERTIFIED).principal


def test_token_without_expiry_is_always_valid() -> None:
    identity = ASKING.authenticate("token", token(sub="bob"), ANONYMOUS)
    assert (Principal(USER, "bob"), None) == (identity.principal, identity.expires_ms)
    assert ASKING.valid_for_ms(identity, CLOCK.time_ms()) is None


def test_token_ends_at_expiry_or_listener_s_limit() -> None:
    identity = ASKING.authenticate("token", token(sub="bob", exp=NOW_S + 60, nbf=NOW_S, iat=1), ANONYMOUS)
    assert NOW_S * 1000 + 60_000 == identity.expires_ms
    limited = Authentication(exchanges={}, max_reauth_ms=1000)
    assert 1000 == limited.valid_for_ms(identity, NOW_S * 1000)


@pytest.mark.parametrize(
    "proof",
    [
        pytest.param(token(key=KEY[::-1], sub="bob"), id="another key"),
        pytest.param(token(), id="no subject"),
        pytest.param(token(sub=""), id="an empty subject"),
        pytest.param(token(sub="b" * 10_000), id="a subject without measure"),
        pytest.param(token(sub="alice\ud800"), id="half a character"),
        pytest.param(token(sub="bob", exp=NOW_S), id="expired"),
        pytest.param(token(sub="bob", nbf=NOW_S + 10), id="not yet valid"),
        pytest.param(token(sub="bob", exp="soon"), id="a time that is none"),
        pytest.param(token(sub="bob", exp=1e300), id="a time without measure"),
        pytest.param(jwt.encode({"sub": "bob"}, None, "none").encode(), id="not signed"),
        pytest.param(b"a.b.c", id="no token"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"x" * 100_000, id="too long"),
    ],
)
def test_invalid_token_is_refused_and_not_quoted(proof: bytes) -> None:
    with pytest.raises(AuthenticationFailed) as failed:
        ASKING.authenticate("token", proof, ANONYMOUS)
    assert proof.decode("latin-1") not in failed.value.reason or not proof


def test_a_password_is_compared_as_by_plain() -> None:
    identity = ASKING.authenticate("basic", b"alice:secret:with colon", ANONYMOUS)
    assert Principal(USER, "alice") == identity.principal
    half = b"\xed\xa0\x80"  # of a character
    for proof in (b"alice:wrong", b"alice", b"alice\0x:secret", b":", b"alice" + half + b":secret"):
        with pytest.raises(AuthenticationFailed):
            ASKING.authenticate("basic", proof, ANONYMOUS)


@pytest.mark.parametrize("method", ["none", "", "tls", "unknown", "athenz"])
def test_client_without_proof_is_certified_anonymous_or_refused(method: str) -> None:
    assert CERTIFIED == ASKING.authenticate(method, b"", CERTIFIED).principal
    with pytest.raises(AuthenticationFailed):
        ASKING.authenticate(method, b"", ANONYMOUS)
    open_to_all = Authentication(exchanges={}, anonymous=Principal(USER, "guest"))
    assert Principal(USER, "guest") == open_to_all.authenticate(method, b"", ANONYMOUS).principal


def test_wrong_proof_does_not_make_client_anonymous() -> None:
    open_to_all = Authentication(
        exchanges={PLAIN: Passwords}, tokens=SecretTokens(KEY, CLOCK), anonymous=Principal(USER, "guest")
    )
    for method in ("token", "basic"):
        with pytest.raises(AuthenticationFailed):
            open_to_all.authenticate(method, b"wrong:wrong", ANONYMOUS)


def test_a_key_is_in_no_repr() -> None:
    assert KEY.decode() not in repr(ASKING)
