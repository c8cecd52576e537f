"""Settings of logins with SASL.

Tests: tests/config/test_setting.py, tests/config/test_sasl_settings.py.
"""

from collections.abc import Iterable

import attrs

from broker.config.kafka_setting import INT_MAX
from broker.config.setting import KAFKA, setting
from broker.errors import ConfigError

SASL_MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")


def _mechanisms(value: "Iterable[str] | str") -> tuple[str, ...]:
    given = value.split(",") if isinstance(value, str) else value
    words = tuple(dict.fromkeys(word.strip() for word in given if word.strip()))
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
        converter=_mechanisms,
        doc="The mechanisms by which clients of `+sasl` listeners may log in: "
        + ", ".join(f"`{name}`" for name in SASL_MECHANISMS)
        + ". A listener may have its own.",
        of_listener=True,
        reason="Neither shows the password to the broker or to the network. Kafka's is GSSAPI, which does not exist here.",
    )
    sasl_server_max_receive_size: int = setting(
        524_288,
        unit="bytes",
        least=1024,
        most=INT_MAX,
        doc="The largest request of a client that has not logged in. A connection that announces a larger one is closed.",
        of_listener=True,
        reason=KAFKA,
    )
    sasl_login_timeout_ms: int = setting(
        30_000,
        kafka=None,
        least=1,
        doc="A connection of a `+sasl` listener is closed if it has not logged in so long after it was accepted, or after it "
        "has begun to log in again.",
        reason="As long as Kafka's clients wait for an answer (request.timeout.ms).",
    )
    connection_failed_authentication_delay_ms: int = setting(
        100,
        least=0,
        most=60_000,
        doc="A failed login is answered, and its connection closed, after this delay.",
        of_listener=True,
        reason=KAFKA,
    )
    connections_max_reauth_ms: int = setting(
        0,
        least=0,
        doc="How long a login is valid (KIP-368). Clients that know this log in again on the same connection before the time is "
        "over; the connections of others are closed then. A token that expires earlier ends the login earlier. 0: a login is "
        "valid for as long as its token, or its connection.",
        of_listener=True,
        reason=KAFKA,
    )
