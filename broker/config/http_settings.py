"""Settings of the HTTP service. Kafka has none of these.

Tests: tests/config/test_setting.py, tests/config/test_settings.py.
"""

from collections.abc import Iterable

import attrs

from broker.config.setting import setting


def _hosts(value: "Iterable[str] | str") -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    return tuple(word.strip().lower() for word in words if word.strip())


@attrs.frozen(kw_only=True, slots=False)
class HttpSettings:
    """HTTP: http:// listeners."""

    http_max_body_bytes: int = setting(
        1024 * 1024,
        kafka=None,
        least=1024,
        most=64 * 1024 * 1024,
        doc="The longest body of a request. A longer one is answered with 413, and the connection is closed.",
        reason="The largest body of an admin call is a schema, and few of those are longer than 100 KiB.",
    )
    http_allow_unencrypted_logins: bool = setting(
        False,
        kafka=None,
        doc="Accept passwords and tokens of other machines on http:// listeners without TLS. Without it, only those are accepted "
        "there that a `+sasl` listener without TLS accepts from other machines. Clients on the broker's own machine may always "
        "log in.",
        reason="Everybody who can listen to the network would see them. Behind a proxy that ends TLS on another machine it is "
        "needed.",
    )
    http_request_timeout_ms: int = setting(
        30_000,
        kafka=None,
        least=100,
        doc="How long a client may take to send one request, from its first byte to its last. Then the connection is closed.",
        reason="1 MiB arrives within it at 35 kB/s.",
    )
    http_allowed_hosts: tuple[str, ...] = setting(
        (),
        kafka=None,
        converter=_hosts,
        doc="Names, without a port, by which clients may address http:// listeners besides `localhost`, loopback addresses, "
        "the address that the connection was made to, and the listener's own and advertised host. Requests with another name in "
        "the header Host are answered with 403.",
        reason="A name that an attacker has pointed at this machine (DNS rebinding) would let a web page read the answers.",
    )
