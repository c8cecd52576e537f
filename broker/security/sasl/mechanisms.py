"""The mechanisms of a listener: by name, what begins a login. Put together when the broker starts.

Tests: tests/security/sasl/test_mechanisms.py.
"""

from collections.abc import Mapping
from functools import partial
from ipaddress import ip_address

from broker.config import BrokerConfig, Listener
from broker.config.sasl_settings import OAUTHBEARER, PLAIN
from broker.errors import ConfigError
from broker.log import get_logger
from broker.runtime import Runtime
from broker.runtime.timers import Timer
from broker.runtime.web import host_of, read_url
from broker.security.credentials import Credentials
from broker.security.sasl.exchange import NewExchange
from broker.security.sasl.plain import PlainExchange
from broker.security.sasl.scram import ScramExchange

log = get_logger("security")


def open_mechanisms(
    config: BrokerConfig, listener: Listener, credentials: Credentials, runtime: Runtime, timer: Timer
) -> Mapping[str, NewExchange]:
    """Those that ``config``, the listener's settings, enables, in its order. Raises ConfigError."""
    mechanisms: dict[str, NewExchange] = {}
    for name in config.sasl_enabled_mechanisms:
        if name == PLAIN:
            mechanisms[name] = partial(PlainExchange, credentials)
        elif name == OAUTHBEARER:
            mechanisms[name] = _open_oauthbearer(config, listener, runtime, timer)
        else:
            mechanisms[name] = partial(ScramExchange, name, credentials, runtime.entropy)
        if name in (PLAIN, OAUTHBEARER) and not listener.ssl and not _is_loopback(listener.host):
            # Everybody who can listen to the network sees the password or the token.
            log.warning("login_unencrypted", listener=str(listener), mechanism=name)
    return mechanisms


def _open_oauthbearer(config: BrokerConfig, listener: Listener, runtime: Runtime, timer: Timer) -> NewExchange:
    # Imported where they are needed: that takes 0.1 s.
    from broker.security.sasl.jwks import MAX_BYTES, TIMEOUT_S, KeySet, Schedule
    from broker.security.sasl.oauthbearer import OAuthBearerExchange, TokenRules

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
        # A token that the same issuer has made for another service lets its bearer in.
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
