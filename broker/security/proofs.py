"""Authentication with one message: Pulsar's CONNECT and AUTH_RESPONSE, and HTTP's Authorization header.

On listeners with ``+sasl`` every client has to authenticate; on other listeners a client's proof is ignored, as in
Pulsar. The methods, by the names that clients use:

| method | proof |
|---|---|
| token | a JWT: signed with ``pulsar_token_secret_key`` (HS256, HS384, HS512), or one that OAUTHBEARER accepts |
| basic | ``user:password``, compared with the stored credential as PLAIN does |
| tls | the certificate, which the handshake has verified |
| any other, or none | none: such a client is ``pulsar_anonymous_user`` if that is set, and is refused otherwise |

Checking a token or a password takes up to some milliseconds, so ``authenticate`` runs on a handler.

Tests: tests/security/test_proofs.py.
"""

import base64
from collections.abc import Mapping
from typing import Any, Final

import attrs

from broker.config import BrokerConfig, Listener
from broker.config.per_listener import for_listener
from broker.config.security_settings import OAUTHBEARER, PLAIN
from broker.errors import ConfigError
from broker.runtime.clock import Clock
from broker.runtime.web import read_url
from broker.security.principal import ANONYMOUS, USER, Principal
from broker.security.sasl.exchange import AuthenticationFailed, Identity, NewExchange, subject_of

TOKEN, BASIC, TLS = "token", "basic", "tls"
_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
# As for OAUTHBEARER: HTTP servers accept headers of this size.
_PROOF_MAX_BYTES = 16 * 1024
# RFC 7518: a key for HS256 has at least as many bytes as the hash.
_KEY_MIN_BYTES = 32
_KEY_MAX_BYTES = 64 * 1024
_KEY_TIMEOUT_S = 5.0


@attrs.frozen
class SecretTokens:
    """Verifies tokens that are signed with a secret key. ``exp`` and ``nbf`` are optional, as in Pulsar's own
    tokens."""

    key: bytes = attrs.field(repr=False)
    clock: Clock

    def identify(self, token: bytes) -> Identity:
        """Raises AuthenticationFailed, without quoting the token."""
        import jwt  # takes 0.1 s, and most brokers have no such key

        try:
            claims = jwt.decode(
                token.decode("ascii"),
                self.key,
                algorithms=list(_ALGORITHMS),
                # The times are compared with the broker's clock below.
                options={
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    "verify_aud": False,
                    "verify_iss": False,
                },
            )
        except (jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise AuthenticationFailed("a token that is not signed with the key, or cannot be read") from None
        principal = subject_of(claims.get("sub"))
        now_ms = self.clock.time_ms()
        expires_ms, begins_ms = _time_ms(claims, "exp"), _time_ms(claims, "nbf")
        if expires_ms is not None and now_ms >= expires_ms:
            raise AuthenticationFailed("an expired token")
        if begins_ms is not None and now_ms < begins_ms:
            raise AuthenticationFailed("a token that is not valid yet")
        return Identity(principal, expires_ms)


def _time_ms(claims: Mapping[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e11:
        raise AuthenticationFailed(f"a token whose {name} is no time")
    return int(value * 1000)


@attrs.frozen
class Authentication:
    """The authentication of one listener. ``exchanges``: None if clients are not authenticated."""

    exchanges: Mapping[str, NewExchange] | None = None
    tokens: SecretTokens | None = None
    anonymous: Principal | None = None
    delay_s: float = 0.0  # before a failure is answered
    max_reauth_ms: int = 0  # the longest time that a proof is valid; 0: unlimited

    @property
    def asks(self) -> bool:
        return self.exchanges is not None

    def authenticate(self, method: str, proof: bytes, certified: Principal) -> Identity:
        """The client's identity. ``certified``: the principal of its certificate. Raises AuthenticationFailed."""
        if self.exchanges is None:
            return Identity(certified)
        if len(proof) > _PROOF_MAX_BYTES:
            raise AuthenticationFailed("a proof that is too long")
        if method == TOKEN and (self.tokens is not None or OAUTHBEARER in self.exchanges):
            return self._of_token(proof)
        if method == BASIC and PLAIN in self.exchanges:
            return self._of_password(proof)
        # A certificate is a proof, whatever method a client names.
        if certified != ANONYMOUS:
            return Identity(certified)
        if self.anonymous is not None:
            return Identity(self.anonymous)
        raise AuthenticationFailed("no proof" if method in ("", "none") else "a method that is not accepted")

    def _of_token(self, token: bytes) -> Identity:
        if self.tokens is not None:
            return self.tokens.identify(token)
        assert self.exchanges is not None
        # The message of OAUTHBEARER (RFC 7628) that holds the token.
        identity = self.exchanges[OAUTHBEARER]().evaluate(b"n,,\x01auth=Bearer " + token + b"\x01\x01").identity
        if identity is None:
            raise AuthenticationFailed("a token that is not accepted")
        return identity

    def _of_password(self, proof: bytes) -> Identity:
        assert self.exchanges is not None
        user, colon, password = proof.partition(b":")
        if not colon or b"\0" in proof:
            raise AuthenticationFailed("a proof that is not user:password")
        identity = self.exchanges[PLAIN]().evaluate(b"\0" + user + b"\0" + password).identity
        assert identity is not None
        return identity

    def valid_for_ms(self, identity: Identity, now_ms: int) -> int | None:
        """How long (ms) the identity is valid; None: without an end."""
        ends = [] if identity.expires_ms is None else [max(identity.expires_ms - now_ms, 0)]
        if self.max_reauth_ms and self.asks:
            ends.append(self.max_reauth_ms)
        return min(ends, default=None)


def open_authentication(
    config: BrokerConfig, listener: Listener, exchanges: Mapping[str, NewExchange] | None, clock: Clock
) -> Authentication:
    """The authentication of a listener with the mechanisms ``exchanges``. Raises ConfigError if a key cannot be
    read."""
    config = for_listener(config, listener.name)
    if not listener.sasl:
        return Authentication()
    of_pulsar = listener.scheme == "pulsar"
    key = config.pulsar_token_secret_key if of_pulsar else None
    anonymous = config.pulsar_anonymous_user if of_pulsar else None
    return Authentication(
        exchanges=exchanges,
        tokens=None if key is None else SecretTokens(_secret_key(key), clock),
        anonymous=None if anonymous is None else Principal(USER, anonymous),
        delay_s=config.connection_failed_authentication_delay_ms / 1000,
        max_reauth_ms=config.connections_max_reauth_ms,
    )


def _secret_key(text: str) -> bytes:
    """The key of a setting: base64, or the URL of a file. Raises ConfigError."""
    try:
        if text.startswith("file:"):
            key = read_url(text, _KEY_TIMEOUT_S, _KEY_MAX_BYTES)
        else:
            key = base64.b64decode(text.removeprefix("data:;base64,"), validate=True)
    except (OSError, ValueError):
        key = b""
    if len(key) < _KEY_MIN_BYTES:
        raise ConfigError(
            f"Set pulsar_token_secret_key to a key of at least {_KEY_MIN_BYTES} bytes, in base64 or as the URL of a file, "
            "for example file:///etc/broker/secret.key."
        )
    return key
