"""OAUTHBEARER: the client sends a signed token (JWT), whose claims say who it is and for how long.

Checking a token takes 0.1 to 1 ms, so it runs on a handler. The signature is checked first, by an asymmetric algorithm that fits
the key; then the claims, by the broker's clock. A token that is not accepted is answered with RFC 7628's error; the client
acknowledges it, and then the login fails. The client is not told what was wrong.
"""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

import attrs
import jwt

from broker.runtime.clock import Clock
from broker.security.sasl.exchange import AuthenticationFailed, Identity, Step, subject_of
from broker.security.sasl.jwks import ALGORITHMS, KeySet
from protocol.errors import ProtocolError
from protocol.sasl import oauthbearer

# HTTP servers take as much in a header. What takes longer to read than a signature to check is refused.
MESSAGE_MAX_BYTES = 16 * 1024
# Later than this (ms since the epoch, in the year 2286) is as good as never.
_LATEST_MS = 9_999_999_999_999


@attrs.frozen
class TokenRules:
    """What is required of a token's claims. An empty audience, and no issuer: any is accepted."""

    audience: tuple[str, ...] = ()
    issuer: str | None = None
    sub_claim: str = "sub"
    scope_claim: str = "scope"
    clock_skew_s: int = 30


def identify(claims: Mapping[str, Any], rules: TokenRules, now_ms: int) -> Identity:
    """Who the claims are about. ``now_ms``: wall clock. Raises AuthenticationFailed."""
    skew_ms = rules.clock_skew_s * 1000
    expires_ms = _time_ms(claims, "exp")
    if expires_ms is None:
        raise AuthenticationFailed("a token without the time of its end")
    if now_ms >= expires_ms + skew_ms:
        raise AuthenticationFailed("an expired token")
    issued_ms = _time_ms(claims, "iat")
    if issued_ms is None:
        raise AuthenticationFailed("a token without the time of its issue")
    for begins_ms in (issued_ms, _time_ms(claims, "nbf")):
        if begins_ms is not None and now_ms < begins_ms - skew_ms:
            raise AuthenticationFailed("a token that is not valid yet")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise AuthenticationFailed("a token of another issuer")
    if rules.audience and not set(_texts(claims.get("aud"))) & set(rules.audience):
        raise AuthenticationFailed("a token for another audience")
    scope = claims.get(rules.scope_claim)
    if scope is not None and scope != [] and not _texts(scope):
        raise AuthenticationFailed("a token with a scope that is no text")
    return Identity(subject_of(claims.get(rules.sub_claim)), expires_ms)


def _time_ms(claims: Mapping[str, Any], name: str) -> int | None:
    """A NumericDate in ms. None if there is none. Raises AuthenticationFailed."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (isinstance(value, int) or isfinite(value)):
        raise AuthenticationFailed(f"a token whose {name} is no time")
    return int(max(0, min(value, _LATEST_MS // 1000)) * 1000)


def _texts(value: Any) -> list[str]:
    """A text, or a list of them. Empty for anything else."""
    values = value if isinstance(value, list) else [value]
    return values if all(isinstance(each, str) for each in values) else []


def verified_claims(token: str, keys: KeySet) -> Mapping[str, Any]:
    """The claims of a token that was signed by one of the keys. Raises AuthenticationFailed."""
    try:
        header = jwt.get_unverified_header(token)
        algorithm, kid = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise AuthenticationFailed("a token with an algorithm that is not accepted")
        key = keys.find(kid, algorithm)
        if key is None:
            raise AuthenticationFailed("a token with an unknown key")
        claims = json.loads(jwt.PyJWS([algorithm]).decode(token, key.public, [algorithm]))
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # The errors of the library name what it has read.
        raise AuthenticationFailed("a token that is not signed by a known key, or cannot be read") from None
    if not isinstance(claims, dict):
        raise AuthenticationFailed("a token without claims")
    return claims


class OAuthBearerExchange:
    def __init__(self, keys: KeySet, rules: TokenRules, clock: Clock) -> None:
        self.slow = True
        self._keys = keys
        self._rules = rules
        self._clock = clock
        self._failure: AuthenticationFailed | None = None

    def evaluate(self, token: bytes) -> Step:
        if self._failure is not None:  # whatever the client says to it
            raise self._failure
        try:
            message = oauthbearer.parse(token, MESSAGE_MAX_BYTES)
        except ProtocolError as error:
            raise AuthenticationFailed(str(error)) from None
        try:
            identity = identify(verified_claims(message.token, self._keys), self._rules, self._clock.time_ms())
        except AuthenticationFailed as error:
            self._failure = error
            self.slow = False
            return Step(oauthbearer.INVALID_TOKEN)
        if message.authzid and message.authzid != identity.principal.name:
            raise AuthenticationFailed("an authorization id that is not the token's subject")
        return Step(b"", identity)
