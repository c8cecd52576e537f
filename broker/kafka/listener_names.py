"""Listeners as Kafka writes them: ``PLAINTEXT://host:port``, with the port that is bound.

Listeners of other services are left out: Kafka's tools cannot use them. Pure; any thread.
"""

from collections.abc import Iterable, Mapping

from broker.config.listener import Listener


def listeners_text(listeners: Iterable[Listener], addresses: Mapping[str, tuple[str, int]]) -> str:
    """The value of ``listeners`` or ``advertised.listeners``. ``addresses``: (host, port) by the listener's name; a listener
    without an address is written as it was configured."""
    return ",".join(
        _text(each, *addresses.get(each.name, (each.host, each.port))) for each in listeners if each.scheme == "kafka"
    )


def _text(listener: Listener, host: str, port: int) -> str:
    name = listener.security_protocol if listener.name == listener.url_scheme else listener.name.upper()
    return f"{name}://[{host}]:{port}" if ":" in host else f"{name}://{host}:{port}"
