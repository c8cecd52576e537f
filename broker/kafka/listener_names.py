"""Listeners as Kafka writes them: ``PLAINTEXT://host:port``, with the port that is bound.

Kafka's listeners only: what else is served on other ports is no concern of its tools. Pure; any thread.
"""

from collections.abc import Iterable, Mapping

from broker.config.listener import Listener

# Kafka's name for what is spoken below its protocol, by what our schemes put after "kafka".
_PROTOCOLS = {
    "kafka": "PLAINTEXT",
    "kafka+ssl": "SSL",
    "kafka+sasl": "SASL_PLAINTEXT",
    "kafka+sasl+ssl": "SASL_SSL",
}


def listeners_text(listeners: Iterable[Listener], addresses: Mapping[str, tuple[str, int]]) -> str:
    """The value of ``listeners`` or ``advertised.listeners``: ``addresses`` are (host, port) by the listeners' names; one that
    has none is written as it was configured."""
    return ",".join(
        _text(one, *addresses.get(one.name, (one.host, one.port))) for one in listeners if one.scheme in _PROTOCOLS
    )


def _text(listener: Listener, host: str, port: int) -> str:
    name = _PROTOCOLS[listener.scheme] if listener.name == listener.scheme else listener.name.upper()
    return f"{name}://[{host}]:{port}" if ":" in host else f"{name}://{host}:{port}"
