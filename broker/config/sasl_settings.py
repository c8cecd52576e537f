"""Settings of logins with SASL.

Tests: tests/config/test_setting.py, tests/config/test_sasl_settings.py.
"""

from collections.abc import Iterable

import attrs

from broker.config.kafka_setting import INT_MAX
from broker.config.setting import KAFKA, setting
from broker.errors import ConfigError

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
SASL_MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", PLAIN, OAUTHBEARER)


def _words(value: "Iterable[str] | str") -> tuple[str, ...]:
    """A list, or one text with commas between the items."""
    given = value.split(",") if isinstance(value, str) else value
    return tuple(dict.fromkeys(word.strip() for word in given if word.strip()))


def _mechanisms(value: "Iterable[str] | str") -> tuple[str, ...]:
    words = _words(value)
    unknown = [word for word in words if word not in SASL_MECHANISMS]
    if unknown or not words:
        what = f"there is no {unknown[0]!r} here" if unknown else "it is empty"
        raise ConfigError(f"Set sasl_enabled_mechanisms to some of {', '.join(SASL_MECHANISMS)}: {what}.")
    return words


@attrs.frozen(kw_only=True, slots=False)
class SaslSettings:
    """Logins with SASL."""

    sasl_enabled_mechanisms: tuple[str, ...] = setting(
        ("SCRAM-SHA-512", "SCRAM-SHA-256"),
        of_listener=True,
        converter=_mechanisms,
        doc="The mechanisms by which clients of `+sasl` listeners may log in: "
        + ", ".join(f"`{name}`" for name in SASL_MECHANISMS)
        + ". A listener may have its own.",
        reason="Neither shows the password to the broker or to the network. Kafka's is GSSAPI, which does not exist here.",
    )
    sasl_server_max_receive_size: int = setting(
        524_288,
        of_listener=True,
        unit="bytes",
        least=1024,
        most=INT_MAX,
        doc="The largest request of a client that has not logged in. A connection that announces a larger one is closed.",
        reason=KAFKA,
    )
    connection_failed_authentication_delay_ms: int = setting(
        100,
        of_listener=True,
        least=0,
        most=60_000,
        doc="A failed login is answered, and its connection closed, after this delay.",
        reason=KAFKA,
    )
    connections_max_reauth_ms: int = setting(
        0,
        of_listener=True,
        least=0,
        doc="How long a login is valid (KIP-368). Clients that know this log in again on the same connection before the time is "
        "over; the connections of others are closed then. A token that expires earlier ends the login earlier. 0: a login is "
        "valid for as long as its token, or its connection.",
        reason=KAFKA,
    )
    sasl_oauthbearer_jwks_endpoint_url: str | None = setting(
        None,
        of_listener=True,
        doc="Where the public keys are with which tokens of OAUTHBEARER are checked (a JWKS): a URL that begins with `https://`, "
        "`http://` or `file:///`. Redirects are not followed.",
        reason="Without keys no token can be checked.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        3_600_000,
        of_listener=True,
        least=1000,
        doc="How often the keys are fetched. A token with an unknown key has them fetched too, at most every 10 s.",
        reason=KAFKA,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = setting(
        100,
        least=1,
        doc="How soon the keys are fetched again after a failure. Doubles with each.",
        reason=KAFKA,
        of_listener=True,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = setting(
        10_000,
        least=1,
        doc="The longest time until the keys are fetched again after a failure.",
        reason=KAFKA,
        of_listener=True,
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = setting(
        (),
        of_listener=True,
        converter=_words,
        doc="The audience of a token (`aud`) must be one of these. Empty: any, which the broker warns of at the start.",
        reason=KAFKA,
    )
    sasl_oauthbearer_expected_issuer: str | None = setting(
        None, doc="The issuer of a token (`iss`). Unset: any whose key is known.", reason=KAFKA, of_listener=True
    )
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        30,
        of_listener=True,
        unit="s",
        least=0,
        most=3600,
        doc="How far the clock of a token's issuer may be from the broker's.",
        reason=KAFKA,
    )
    sasl_oauthbearer_sub_claim_name: str = setting(
        "sub", doc="The claim of a token that contains the name of the user.", reason=KAFKA, of_listener=True
    )
    sasl_oauthbearer_scope_claim_name: str = setting(
        "scope",
        of_listener=True,
        doc="The claim of a token that contains its scope: a text, or a list of texts. Otherwise the scope is not used.",
        reason=KAFKA,
    )
