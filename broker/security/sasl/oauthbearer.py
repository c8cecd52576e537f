"""OAUTHBEARER: the client sends a signed token (JWT), whose claims are its identity and the end of its validity.

Checking a token takes 0.1 to 1 ms, so it runs on a handler. The signature is checked first, with an asymmetric
algorithm that fits the key; then the claims, by the broker's clock. A token that is not accepted is answered with RFC
7628's error; the client acknowledges it, and then the login fails. The client is not told the reason.

`KeySet` has the public keys that verify tokens: a JWKS (RFC 7517) of a file or a URL, fetched again from time to time.
Logins do not wait for the server of the URL: a fetch runs on its own thread (``runtime/web.py``), one at a time, and
the present keys stay in use until it has succeeded. A token with an unknown key id starts a fetch, at most once in
``_UNKNOWN_EVERY_S``. Any thread may look a key up.
"""

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

import attrs
import jwt
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from broker.log import get_logger
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer
from broker.runtime.web import Fetcher
from broker.security.sasl.exchange import AuthenticationFailed, Identity, Step, subject_of
from protocol.errors import ProtocolError
from protocol.sasl import oauthbearer

log = get_logger("security")

# A JWKS has a few keys of 1 KiB each.
MAX_BYTES = 1024 * 1024
_KEYS_MAX = 200
TIMEOUT_S = 10.0
# Clients may send tokens with made-up key ids.
_UNKNOWN_EVERY_S = 10.0
_RSA_BITS_MIN = 2048

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey

_OF_RSA = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
_OF_CURVE = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_OF_ED25519 = frozenset({"EdDSA"})
# Only asymmetric algorithms: with a symmetric algorithm, anybody who has the public key could sign.
ALGORITHMS = _OF_RSA | _OF_ED25519 | frozenset(_OF_CURVE.values())


@attrs.frozen
class Key:
    """``algorithms``: the algorithms that this key may have signed with."""

    kid: str | None
    public: PublicKey = attrs.field(repr=False)
    algorithms: frozenset[str]


def parse_jwks(content: bytes) -> list[Key]:
    """The keys for signatures. Keys of other kinds and RSA keys that are too short are left out. Raises ValueError if
    no key remains."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("it has no list of keys")
    if len(entries) > _KEYS_MAX:
        raise ValueError(f"it has more than {_KEYS_MAX} keys")
    keys = [key for key in map(_parse_key, entries) if key is not None]
    if not keys:
        raise ValueError("it has no public key that can be used")
    return keys


def _parse_key(entry: Any) -> Key | None:
    if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or entry.get("kty") == "oct":
        return None
    kid, declared = entry.get("kid"), entry.get("alg")
    try:
        key = jwt.PyJWK(entry).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    if hasattr(key, "public_key"):  # a private key: only its public half is used
        key = key.public_key()
    algorithms = _algorithms_of(key)
    if isinstance(declared, str):
        algorithms &= {declared}
    return Key(kid if isinstance(kid, str) else None, key, algorithms) if algorithms else None


def _algorithms_of(key: Any) -> frozenset[str]:
    if isinstance(key, RSAPublicKey):
        return _OF_RSA if key.key_size >= _RSA_BITS_MIN else frozenset()
    if isinstance(key, EllipticCurvePublicKey):
        return frozenset({_OF_CURVE[key.curve.name]} if key.curve.name in _OF_CURVE else ())
    return _OF_ED25519 if isinstance(key, Ed25519PublicKey) else frozenset()


@attrs.frozen
class Schedule:
    """Seconds: between two fetches, and after a failed fetch, at first and at most."""

    refresh_s: float
    backoff_s: float
    backoff_max_s: float


class KeySet:
    def __init__(self, url: str, schedule: Schedule, fetcher: Fetcher, clock: Clock, timer: Timer) -> None:
        self.url = url
        self._schedule = schedule
        self._fetcher = fetcher
        self._clock = clock
        self._timer = timer
        self._keys: Mapping[str | None, list[Key]] = {}
        self._lock = Lock()  # guards the fields below
        self._fetching = False
        self._turn = 0  # the number of the timer's turn; earlier turns are cancelled
        self._failures = 0
        self._unknown_at = -_UNKNOWN_EVERY_S

    def use(self, content: bytes) -> None:
        """Use these keys from now on. On ValueError the present keys stay."""
        keys: dict[str | None, list[Key]] = {}
        for key in parse_jwks(content):
            keys.setdefault(key.kid, []).append(key)
        self._keys = keys

    def find(self, kid: str | None, algorithm: str) -> Key | None:
        """The key that may have signed with this algorithm. Without ``kid``: the only such key.

        None without such a key; if no key has this ``kid``, the keys will be fetched."""
        known = self._keys
        candidates = known.get(kid, []) if kid is not None else [key for keys in known.values() for key in keys]
        fitting = [key for key in candidates if algorithm in key.algorithms]
        if kid is not None and not candidates:
            self._ask()
        return fitting[0] if len(fitting) == 1 or (fitting and kid is not None) else None

    def begin(self) -> None:
        """Fetch now, unless a fetch is going on. Does not wait."""
        with self._lock:
            if self._fetching:
                return
            self._fetching = True
            self._turn += 1
        self._fetcher.start(self.url, TIMEOUT_S, MAX_BYTES, self._fetched)

    def begin_later(self) -> None:
        """Fetch after the refresh time."""
        self._again_after(self._schedule.refresh_s)

    def _ask(self) -> None:
        now = self._clock.monotonic()
        with self._lock:
            if now < self._unknown_at + _UNKNOWN_EVERY_S:
                return
            self._unknown_at = now
        self.begin()

    def _fetched(self, result: bytes | OSError) -> None:
        """On the fetcher's thread."""
        error: Exception | None = None
        if isinstance(result, OSError):
            error = result
        else:
            try:
                self.use(result)
            except ValueError as invalid:
                error = invalid
        with self._lock:
            self._fetching = False
            self._failures = self._failures + 1 if error else 0
            failures = self._failures
        if error is None:
            self._again_after(self._schedule.refresh_s)
            return
        if failures & (failures - 1) == 0:  # the 1st, 2nd, 4th, 8th ... in a row
            log.warning("jwks_failed", url=self.url, failures=failures, error=str(error))
        delay_s = self._schedule.backoff_s * 2 ** min(failures - 1, 30)
        self._again_after(min(delay_s, self._schedule.backoff_max_s))

    def _again_after(self, seconds: float) -> None:
        with self._lock:
            self._turn += 1
            turn = self._turn

        def begin() -> None:
            if turn == self._turn:
                self.begin()

        self._timer.at(self._clock.monotonic() + seconds, begin)


# HTTP servers accept headers of this size. Larger messages, which take longer to parse than a signature to check, are
# refused.
MESSAGE_MAX_BYTES = 16 * 1024
# Times later than this (ms since the epoch, in the year 2286) count as never.
_LATEST_MS = 9_999_999_999_999


@attrs.frozen
class TokenRules:
    """The required claims of a token. An empty audience, and no issuer: any is accepted."""

    audience: tuple[str, ...] = ()
    issuer: str | None = None
    sub_claim: str = "sub"
    scope_claim: str = "scope"
    clock_skew_s: int = 30


def identify(claims: Mapping[str, Any], rules: TokenRules, now_ms: int) -> Identity:
    """The identity of the claims. ``now_ms``: wall clock. Raises AuthenticationFailed."""
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
    """A NumericDate in ms; None if it is missing. Raises AuthenticationFailed."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (isinstance(value, int) or isfinite(value)):
        raise AuthenticationFailed(f"a token whose {name} is no time")
    return int(max(0, min(value, _LATEST_MS // 1000)) * 1000)


def _texts(value: Any) -> list[str]:
    """A text, or a list of texts. Empty for any other value."""
    values = value if isinstance(value, list) else [value]
    return values if all(isinstance(each, str) for each in values) else []


def verified_claims(token: str, keys: KeySet) -> Mapping[str, Any]:
    """The claims of a token that a key of ``keys`` has signed. Raises AuthenticationFailed."""
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
        # The library's errors quote its input.
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
        if self._failure is not None:  # whatever the client sends
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
