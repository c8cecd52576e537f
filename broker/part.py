"""A service as the server sees it: its surroundings when it is put together, and its methods from start to stop.

``broker.server`` knows each service by one line: the scheme of its listeners and its ``assembly`` module. To add a service:

1. Write a ``Service`` and its ``Session`` (see ``broker.network.service``).
2. Write ``broker/NAME/assembly.py`` with a class that has the methods of ``ServicePart``, and with the function
   ``assemble(surroundings: Surroundings, logs: LogManager) -> ServicePart``. The server imports that module only if a listener
   needs it.
3. Add the line to ``broker.server``, and the scheme to ``broker.config.listener``.

``endpoints`` has the addresses that clients are told to connect to.

Tests: tests/server/test_broker_server.py,
tests/kafka/test_context.py,
tests/pulsar/test_assembly.py.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import attrs

from broker.config import BrokerConfig, Listener
from broker.faults.faults import Faults
from broker.live_config import LiveConfig
from broker.metadata.catalogue import Catalogue
from broker.metrics import Registry
from broker.network.service import Peer, Service
from broker.network.socket_server import SocketServer
from broker.runtime import Runtime
from broker.runtime.threads import Body
from broker.runtime.timers import Timer
from broker.security.security import Security
from broker.web.callers import Callers
from broker.web.history import Figures
from broker.web.routes import Routes

# By table of the catalogue. They are called on one thread, which may wait, and raise BrokerError.
Reloads = dict[str, list[Callable[[], None]]]


@attrs.frozen
class Surroundings:
    """What the server has for every service, beside the logs. The sockets are bound and not accepting yet."""

    config: BrokerConfig  # as it is at the start
    live: LiveConfig
    runtime: Runtime
    timer: Timer
    catalogue: Catalogue
    security: Security
    cluster_id: str
    listeners: Sequence[Listener]  # of all services
    addresses: Mapping[str, tuple[str, int]]  # where each listener is bound, by its name: (host, port)
    open_files: int  # how many files besides the logs' this service may keep open
    metrics: Registry  # the services register theirs before or in `open`
    routes: (
        Routes  # what is answered over HTTP. The services add theirs before or in `open`; the HTTP service opens last
    )
    callers: Callers  # who calls over HTTP
    figures: Figures  # shown by the HTTP API as rates and history; filled like the routes
    faults: Faults  # on demand; the services attach to them in `open`, and detach in `close`
    sockets: SocketServer  # to look into; the server starts and stops it
    reloads: Reloads  # what puts in force what other nodes have changed in the catalogue; filled like the routes

    @property
    def has_http(self) -> bool:
        """Whether anybody can ask for the routes."""
        return any(listener.scheme == "http" for listener in self.listeners)


@attrs.frozen
class PartThread:
    """A thread that the server runs for a service, from ``ServicePart.open`` to ``ServicePart.close``."""

    name: str
    body: Body
    # Other threads wait for this thread. If its service is open in every broker, such a thread starts before the housekeeper and
    # the threads for which nobody waits, and stops after them.
    waited_for: bool = False


class ServicePart(Protocol):
    """One service of the broker: its state, its threads and its ``Service`` objects.

    All methods run on the thread that starts and stops the broker. The constructor only puts objects together: long or failing
    work belongs into ``open``. In the order of a broker's life:
    """

    def open(self) -> None:
        """Load the state of an earlier broker. Raises StorageError or ConfigError: the broker does not start."""

    def threads(self) -> Sequence[PartThread]:
        """The threads to run, in the order of their start. They stop in the reverse order."""

    def service(self, listener: Listener) -> Service:
        """The service for the connections of this listener. Raises ConfigError for options that it does not know."""

    def stopping(self) -> None:
        """The broker is about to stop, and acceptors still run: from now on no request may begin to wait, and requests that
        take long should look for this and end. Not called where a thread has crashed."""

    def shut_down(self) -> None:
        """No connection is accepted any more: answer all requests that wait, so that connections can drain. Not called where a
        thread has crashed."""

    def close(self) -> None:
        """Write the rest and close files. The reactor and the service's threads have stopped. Called for every part that was put
        together, even if ``open`` failed or was not reached."""


Address = tuple[str, int]

# Hosts of a listener on all interfaces.
WILDCARDS = frozenset({"", "0.0.0.0", "::"})


def endpoints(surroundings: Surroundings) -> dict[str, Address]:
    """The host and port of each listener, by its name: the advertised address of the settings, else the bound address."""
    addresses = {}
    for listener in surroundings.listeners:
        advertised = surroundings.config.advertised_address(listener.name)
        host, port = surroundings.addresses[listener.name]
        # The host as it was configured rather than the address it was resolved to: `localhost` stays `localhost`.
        addresses[listener.name] = advertised or (listener.host or host, port)
    return addresses


def as_reached(endpoint: Address, peer: Peer) -> Address:
    """The endpoint for this client: of a listener on all interfaces, the address that the client has connected to. So a broker on
    0.0.0.0 can be used from everywhere without configuration, except behind address translation."""
    host, port = endpoint
    return (peer.local[0] if host in WILDCARDS else host), port
