"""Finds listeners that let anybody in: other machines can reach them, and clients need not authenticate.

Such a listener is refused unless the operator has allowed it, so that no broker is open to a network by mistake. Only
the configured address counts: `localhost`, 127.0.0.0/8 and ::1 are this machine; every other name or address counts as
reachable from other machines, even if a firewall or a container blocks them.
"""

import ipaddress

from broker.config.listener import Listener
from broker.config.per_listener import for_listener
from broker.config.settings import BrokerConfig
from broker.errors import ConfigError


def unauthenticated(config: BrokerConfig) -> list[Listener]:
    """The listeners that let anybody in, the control listener included. Raises ConfigError if there are any and
    ``allow_anonymous_listeners`` is not set."""
    control = [] if config.control_listener is None else [config.control_listener]
    anybody = [
        listener
        for listener in (*config.listeners, *control)
        if not is_loopback(listener.host) and not _asks(config, listener)
    ]
    if anybody and not config.allow_anonymous_listeners:
        names = ", ".join(str(listener) for listener in anybody)
        raise ConfigError(
            f"Listen on 127.0.0.1 instead of {names}, or have clients log in (SASL) or show a certificate "
            "(ssl_client_auth = required), or set allow_anonymous_listeners to true if everybody who can reach that "
            "address may use this broker."
        )
    return anybody


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to ``host``."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False  # a name: its addresses are unknown before it is resolved
    mapped = address.ipv4_mapped if address.version == 6 else None
    return (mapped or address).is_loopback


def _asks(config: BrokerConfig, listener: Listener) -> bool:
    """Whether every client of the listener has to authenticate."""
    if listener.sasl:
        return True
    return listener.ssl and for_listener(config, listener.name).ssl_client_auth == "required"
