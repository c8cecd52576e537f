"""The SASL mechanisms of a listener, assembled when the broker starts: for each name a factory of exchanges.

`PlainExchange`: the client sends its password, which is compared with the stored credential of SCRAM. That takes 2 to
20 ms of CPU, depending on the credential's iterations, also for an unknown user. Correct passwords are not cached: an
attacker who can read the broker's memory could guess them 10,000 times faster, and faster logins would reveal which
users are online. Clients that log in often should use SCRAM, which costs the broker 30 us.

`ScramExchange`: SCRAM-SHA-256 and SCRAM-SHA-512 against the stored credentials. An unknown user takes the same steps as
a user with a wrong password, with a credential that is derived from the name. An exchange takes some 30 us of CPU, so
it runs on the processor.

Tests: tests/kafka/handlers/test_sasl_authenticate.py.
"""

import base64
import hmac
from collections.abc import Mapping
from functools import partial
from ipaddress import ip_address
from typing import Protocol

from broker.config import BrokerConfig, Listener
from broker.config.security_settings import OAUTHBEARER, PLAIN
from broker.errors import ConfigError
from broker.log import get_logger
from broker.metadata.catalogue import CredentialRow
from broker.runtime import Runtime
from broker.runtime.entropy import Entropy
from broker.runtime.timers import Timer
from broker.runtime.web import host_of, read_url
from broker.security.credentials import Credentials
from broker.security.principal import USER, Principal
from broker.security.sasl.exchange import AuthenticationFailed, Identity, NewExchange, Step
from protocol.errors import ProtocolError
from protocol.sasl import plain
from protocol.sasl.scram import USER_MAX_BYTES, ScramServer, salted_password, stored_keys


class PlainExchange:
    slow = True

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def evaluate(self, token: bytes) -> Step:
        try:
            authzid, user, password = plain.parse(token)
        except ProtocolError as error:
            raise AuthenticationFailed(str(error)) from None
        if len(user.encode()) > USER_MAX_BYTES:
            raise AuthenticationFailed("a user name that is too long")
        if authzid and authzid != user:
            raise AuthenticationFailed("an authorization id that is not the user's name", user)
        row, known = self._credentials.find_any(user)
        salted = salted_password(row.mechanism, password, row.salt, row.iterations)
        stored_key, _ = stored_keys(row.mechanism, salted)
        if not hmac.compare_digest(stored_key, row.stored_key) or not known:
            raise AuthenticationFailed("unknown user or wrong password", user)
        return Step(b"", Identity(Principal(USER, user)))


_NONCE_BYTES = 24


class Finding(Protocol):
    """The part of ``Credentials`` that SCRAM needs."""

    def find(self, user: str, mechanism: str) -> tuple[CredentialRow, bool]: ...


class ScramExchange:
    slow = False

    def __init__(self, mechanism: str, credentials: Finding, entropy: Entropy) -> None:
        self._mechanism = mechanism
        self._credentials = credentials
        self._entropy = entropy
        self._server = ScramServer(mechanism)
        self._user: str | None = None
        self._known = False

    def evaluate(self, token: bytes) -> Step:
        try:
            return self._first(token) if self._user is None else self._final(token, self._user)
        except ProtocolError as error:
            raise AuthenticationFailed(str(error), self._user) from None

    def _first(self, token: bytes) -> Step:
        user = self._user = self._server.first(token)
        row, self._known = self._credentials.find(user, self._mechanism)
        nonce = base64.b64encode(self._entropy.bytes(_NONCE_BYTES)).decode()
        return Step(self._server.challenge(row.salt, row.iterations, row.stored_key, row.server_key, nonce))

    def _final(self, token: bytes, user: str) -> Step:
        answer = self._server.final(token)
        if answer is None or not self._known:
            raise AuthenticationFailed("unknown user or wrong password", user)
        return Step(answer, Identity(Principal(USER, user)))


log = get_logger("security")


def open_mechanisms(
    config: BrokerConfig, listener: Listener, credentials: Credentials, runtime: Runtime, timer: Timer
) -> Mapping[str, NewExchange]:
    """The mechanisms that ``config``, the listener's settings, enables, in its order. Raises ConfigError."""
    mechanisms: dict[str, NewExchange] = {}
    for name in config.sasl_enabled_mechanisms:
        if name == PLAIN:
            mechanisms[name] = partial(PlainExchange, credentials)
        elif name == OAUTHBEARER:
            mechanisms[name] = _open_oauthbearer(config, listener, runtime, timer)
        else:
            mechanisms[name] = partial(ScramExchange, name, credentials, runtime.entropy)
        if name in (PLAIN, OAUTHBEARER) and not listener.ssl and not _is_loopback(listener.host):
            # Anybody on the network can read the password or the token.
            log.warning("login_unencrypted", listener=str(listener), mechanism=name)
    return mechanisms


def _open_oauthbearer(config: BrokerConfig, listener: Listener, runtime: Runtime, timer: Timer) -> NewExchange:
    # Imported here, because the import takes 0.1 s.
    from broker.security.sasl.oauthbearer import MAX_BYTES, TIMEOUT_S, KeySet, OAuthBearerExchange, Schedule, TokenRules

    url = _checked_url(config.sasl_oauthbearer_jwks_endpoint_url)
    schedule = Schedule(
        refresh_s=config.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000,
        backoff_s=config.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000,
        backoff_max_s=config.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000,
    )
    keys = KeySet(url, schedule, runtime.fetcher, runtime.clock, timer)
    if url.startswith("file:"):
        try:
            keys.use(read_url(url, TIMEOUT_S, MAX_BYTES))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise ConfigError(f"Put a JWKS at sasl_oauthbearer_jwks_endpoint_url ({url}): {reason}.") from None
        keys.begin_later()
    else:
        if url.startswith("http:") and not _is_loopback(host_of(url) or ""):
            log.warning("jwks_unencrypted", url=url)  # a person who can change the answer can log in as anybody
        keys.begin()
    if not config.sasl_oauthbearer_expected_audience:
        # Otherwise a token that the same issuer has made for another service lets its bearer in.
        log.warning("token_audience_unchecked", listener=str(listener))
    rules = TokenRules(
        audience=config.sasl_oauthbearer_expected_audience,
        issuer=config.sasl_oauthbearer_expected_issuer,
        sub_claim=config.sasl_oauthbearer_sub_claim_name,
        scope_claim=config.sasl_oauthbearer_scope_claim_name,
        clock_skew_s=config.sasl_oauthbearer_clock_skew_seconds,
    )
    return partial(OAuthBearerExchange, keys, rules, runtime.clock)


def _checked_url(url: str | None) -> str:
    example = "for example https://login.example.com/jwks.json or file:///etc/broker/jwks.json"
    if url is None:
        raise ConfigError(
            "Set sasl_oauthbearer_jwks_endpoint_url to where the public keys of the tokens are, or take OAUTHBEARER out of "
            f"sasl_enabled_mechanisms; {example}."
        )
    try:
        host_of(url)
    except ValueError:
        raise ConfigError(f"Write sasl_oauthbearer_jwks_endpoint_url as a URL without a user, {example}.") from None
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
