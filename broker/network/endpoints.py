"""What clients are told to connect to: each listener's endpoint, and how one client reaches it.

Tests: tests/kafka/test_context.py, tests/pulsar/test_assembly.py.
"""

from broker.network.part import Surroundings
from broker.network.service import Peer

Address = tuple[str, int]

_WILDCARDS = frozenset({"", "0.0.0.0", "::"})


def endpoints(surroundings: Surroundings) -> dict[str, Address]:
    """The host and port of each listener, by its name: what the settings advertise, else where it listens."""
    found = {}
    for listener in surroundings.listeners:
        advertised = surroundings.config.advertised_address(listener.name)
        host, port = surroundings.addresses[listener.name]
        # The host as it was configured rather than the address it was resolved to: `localhost` stays `localhost`.
        found[listener.name] = advertised or (listener.host or host, port)
    return found


def as_reached(endpoint: Address, peer: Peer) -> Address:
    """The endpoint for this client: of a listener on all interfaces, the address that the client has connected to. So a broker on
    0.0.0.0 can be used from everywhere without configuration, except behind address translation."""
    host, port = endpoint
    return (peer.local[0] if host in _WILDCARDS else host), port
