"""Tokens: which are accepted, and what happens to all others."""

import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.runtime.clock import SystemClock
from broker.security.principal import Principal
from broker.security.sasl.exchange import AuthenticationFailed, Identity
from broker.security.sasl.oauthbearer import (
    ALGORITHMS,
    MESSAGE_MAX_BYTES,
    KeySet,
    OAuthBearerExchange,
    Schedule,
    TokenRules,
    identify,
    verified_claims,
)
from tests.loops import loop_over
from tests.tokens import AUDIENCE, ISSUER, claims, jwk, jwks, message, private_key, token, unsigned

NOW_MS = 1_700_000_000_000
NOW = NOW_MS // 1000
RULES = TokenRules(audience=(AUDIENCE, "other"), issuer=ISSUER)


class Fetcher:
    def start(self, *_: object) -> None: ...


def keys(*entries: dict[str, Any]) -> KeySet:
    made = KeySet("https://x/", Schedule(1, 1, 1), Fetcher(), SystemClock(), None)  # type: ignore[arg-type]
    made.use(jwks(*(entries or (jwk(private_key()),))))
    return made


@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS))
def test_every_algorithm_is_checked(algorithm: str) -> None:
    own = keys(jwk(private_key(algorithm)))
    assert "alice" == verified_claims(token(algorithm), own)["sub"]
    head, payload, signature = token(algorithm).split(".")
    spoiled = ("A" if signature[5] != "A" else "B").join((signature[:5], signature[6:]))
    with pytest.raises(AuthenticationFailed, match="not signed by a known key"):
        verified_claims(".".join((head, payload, spoiled)), own)
    other = token(algorithm, sub="mallory").split(".")[1]
    with pytest.raises(AuthenticationFailed, match="not signed by a known key"):
        verified_claims(".".join((head, other, signature)), own)


def test_token_without_key_id_needs_a_single_key() -> None:
    assert verified_claims(token(kid=None), keys())
    two = keys(jwk(private_key(), "key-1"), jwk(ec.generate_private_key(ec.SECP256R1()), "key-2"))
    with pytest.raises(AuthenticationFailed, match="unknown key"):
        verified_claims(token(kid=None), two)
    assert verified_claims(token(kid=None), keys(jwk(private_key()), jwk(private_key("RS256"), "rsa")))


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "HS256", "HS512", "", None, 5, "ES256K", [], {}])
def test_symmetric_algorithm_is_not_accepted(algorithm: Any) -> None:
    for signature in (b"", b"x" * 32):
        with pytest.raises(AuthenticationFailed):
            verified_claims(unsigned({"alg": algorithm, "kid": "key-1"}, claims(), signature), keys())


def test_the_public_key_is_no_password() -> None:
    public = private_key("RS256").public_key()
    for secret in (
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    ):
        body = unsigned({"alg": "HS256", "kid": "key-1"}, claims()).rpartition(".")[0]
        forged = body + "." + jwt.utils.base64url_encode(_hmac(secret, body.encode())).decode()
        with pytest.raises(AuthenticationFailed, match="algorithm that is not accepted"):
            verified_claims(forged, keys(jwk(private_key("RS256"))))


def _hmac(secret: bytes, data: bytes) -> bytes:
    import hmac

    return hmac.digest(secret, data, "sha256")


def test_a_key_signs_with_its_own_algorithm_only() -> None:
    declared = keys(jwk(private_key("RS256"), alg="RS256"))
    assert verified_claims(token("RS256"), declared)
    with pytest.raises(AuthenticationFailed, match="unknown key"):
        verified_claims(token("PS256", key=private_key("RS256")), declared)
    with pytest.raises(AuthenticationFailed, match="unknown key"):
        verified_claims(token("ES256"), declared)


def test_somebody_else_s_key_is_not_accepted() -> None:
    stranger = ec.generate_private_key(ec.SECP256R1())
    with pytest.raises(AuthenticationFailed, match="not signed by a known key"):
        verified_claims(token(key=stranger), keys())
    embedded = jwt.encode(claims(), stranger, "ES256", {"kid": "key-1", "jwk": jwk(stranger), "jku": "https://evil/"})
    with pytest.raises(AuthenticationFailed, match="not signed by a known key"):
        verified_claims(embedded, keys())


@pytest.mark.parametrize(
    "forged",
    [
        "",
        ".",
        "..",
        "a.b.c",
        unsigned({}, {}),
        unsigned([], {}),
        unsigned(b"\xff", {}),
        unsigned(b"[" * 5000, {}),
        unsigned({"alg": "ES256", "kid": 5}, {}),
        unsigned({"alg": "ES256", "kid": ["key-1"]}, {}),
        unsigned({"alg": "ES256", "kid": "key-1", "crit": ["x"]}, {}),
        unsigned({"alg": "ES256", "kid": "key-1", "b64": False, "crit": ["b64"]}, b""),
        unsigned({"alg": "ES256", "kid": "key-1"}, b"[" * 5000, b"x" * 64),
    ],
)
def test_malformed_token_is_refused(forged: str) -> None:
    with pytest.raises(AuthenticationFailed):
        verified_claims(forged, keys())


@pytest.mark.parametrize("payload", [b"[1]", b"5", b'"text"', b"{", b"\xff", b"[" * 5000, b"1" * 5000])
def test_signed_claims_are_an_object(payload: bytes) -> None:
    signed = jwt.PyJWS().encode(payload, private_key(), "ES256", {"kid": "key-1"})
    with pytest.raises(AuthenticationFailed):
        verified_claims(signed, keys())


def valid(**changes: Any) -> dict[str, Any]:
    return claims(**{"iat": NOW - 10, "exp": NOW + 600} | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"aud": ["x", "other"]},
        {"scope": None},
        {"scope": []},
        {"scope": ["a", "b"]},
        {"exp": NOW - 29},
        {"exp": NOW + 0.5},
        {"iat": NOW + 29},
        {"nbf": NOW + 29},
        {"sub": "Ä,=:" * 50},
    ],
)
def test_good_claims_give_principal_and_expiry(changes: dict[str, Any]) -> None:
    good = valid(**changes)
    expected = Identity(Principal("User", good["sub"]), int(good["exp"] * 1000))
    assert expected == identify(good, RULES, NOW_MS)


@loop_over(
    ("changes", "reason"),
    [
        ({"exp": None}, "without the time of its end"),
        ({"exp": NOW - 30}, "expired"),
        ({"exp": -(10**400)}, "expired"),
        ({"exp": "1700000600"}, "exp is no time"),
        ({"exp": True}, "exp is no time"),
        ({"exp": float("nan")}, "exp is no time"),
        ({"exp": float("inf")}, "exp is no time"),
        ({"exp": []}, "exp is no time"),
        ({"iat": None}, "without the time of its issue"),
        ({"iat": NOW + 31}, "not valid yet"),
        ({"iat": {}}, "iat is no time"),
        ({"nbf": NOW + 31}, "not valid yet"),
        ({"nbf": "x"}, "nbf is no time"),
        ({"iss": None}, "another issuer"),
        ({"iss": ISSUER + "/"}, "another issuer"),
        ({"iss": [ISSUER]}, "another issuer"),
        ({"aud": None}, "another audience"),
        ({"aud": "brok"}, "another audience"),
        ({"aud": ["x"]}, "another audience"),
        ({"aud": [AUDIENCE, 5]}, "another audience"),
        ({"aud": {AUDIENCE: 1}}, "another audience"),
        ({"scope": 5}, "scope that is no text"),
        ({"scope": [5]}, "scope that is no text"),
        ({"sub": None}, "without a subject"),
        ({"sub": ""}, "without a subject"),
        ({"sub": 5}, "without a subject"),
        ({"sub": "a" * 1001}, "without a subject"),
        ({"sub": "alice\ud800"}, "without a subject"),
    ],
)
def test_other_claims_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(AuthenticationFailed, match=reason):
        identify(valid(**changes), RULES, NOW_MS)


def test_a_token_for_ever_is_one_for_centuries() -> None:
    expires_ms = identify(valid(exp=10**400), RULES, NOW_MS).expires_ms
    assert expires_ms is not None
    assert NOW_MS < expires_ms < 2**53


def test_other_claims_may_name_the_user() -> None:
    rules = TokenRules(sub_claim="preferred_username", scope_claim="scp")
    assert "bob" == identify(valid(preferred_username="bob", aud=None, iss=None), rules, NOW_MS).principal.name
    with pytest.raises(AuthenticationFailed, match="subject"):
        identify(valid(), rules, NOW_MS)


def exchange() -> OAuthBearerExchange:
    return OAuthBearerExchange(keys(), RULES, SystemClock())


def test_a_good_token_ends_the_exchange() -> None:
    for authzid in ("", "alice"):
        step = exchange().evaluate(message(token(), authzid, host="x"))
        assert step.identity is not None
        assert (b"", Principal("User", "alice")) == (step.token, step.identity.principal)


@pytest.mark.parametrize(
    "then", [b"\x01", b"", message("again"), message(token())], ids=["as it should", "nothing", "bad", "good"]
)
def test_bad_token_gets_standard_error_and_ends_login(then: bytes) -> None:
    login = exchange()
    step = login.evaluate(message(token(exp=1)))
    assert {"status": "invalid_token"} == json.loads(step.token)
    assert step.identity is None
    with pytest.raises(AuthenticationFailed, match="expired"):
        login.evaluate(then)


def test_authorization_id_of_another_user_is_refused() -> None:
    with pytest.raises(AuthenticationFailed, match="authorization id"):
        exchange().evaluate(message(token(), "bob"))


def test_a_long_token_is_not_looked_at() -> None:
    with pytest.raises(AuthenticationFailed, match="too long"):
        exchange().evaluate(message("a" * MESSAGE_MAX_BYTES))


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_names = st.sampled_from(["sub", "iss", "aud", "iat", "exp", "nbf", "scope"])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(_names, _json))
def test_any_claims_are_accepted_or_refused(changes: dict[str, Any]) -> None:
    try:
        identify(valid() | changes, RULES, NOW_MS)
    except AuthenticationFailed:
        pass


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(st.sampled_from(["alg", "kid", "crit", "b64", "typ", "x"]), _json), _json, st.binary(max_size=80)
)
def test_any_token_that_is_not_signed_is_refused(header: dict[str, Any], payload: Any, signature: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        verified_claims(unsigned({"alg": "ES256", "kid": "key-1"} | header, payload, signature), keys())


@given(st.text(st.characters(codec="utf-8"), max_size=100))
def test_any_text_is_refused(text: str) -> None:
    with pytest.raises(AuthenticationFailed):
        verified_claims(text, keys())


def test_short_rsa_keys_are_not_used() -> None:
    weak = rsa.generate_private_key(65537, 1024)
    with pytest.raises(ValueError, match="no public key that can be used"):
        keys(jwk(weak))
