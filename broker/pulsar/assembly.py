"""The Pulsar service put together from the broker's settings, for all its listeners.

Tests: tests/pulsar/test_assembly.py, tests/test_server.py.
"""

from collections.abc import Sequence
from typing import cast

from broker.config import Listener
from broker.network.part import PartThread, ServicePart, Surroundings
from broker.pulsar import handlers
from broker.pulsar.context import PulsarContext
from broker.pulsar.service import PulsarService
from broker.pulsar.topics.documents import TopicDocuments
from broker.pulsar.topics.registry import TopicRegistry
from broker.pulsar.topics.topic import EntryReader
from broker.storage.log.log import Log
from broker.storage.log_manager import LogManager


def assemble(surroundings: Surroundings, logs: LogManager) -> ServicePart:
    return PulsarPart(surroundings, logs)


class PulsarPart:
    """The topics, and the context that all handlers share."""

    def __init__(self, surroundings: Surroundings, logs: LogManager) -> None:
        config, runtime = surroundings.config, surroundings.runtime
        self._documents = TopicDocuments(surroundings.catalogue)
        topics = TopicRegistry(logs, self._documents, runtime.clock, _open_reader)
        self.commands = handlers.load()
        self.context = PulsarContext(
            config=config,
            live=surroundings.live,
            logs=logs,
            flusher=logs.flusher,
            catalogue=surroundings.catalogue,
            clock=runtime.clock,
            timer=surroundings.timer,
            entropy=runtime.entropy,
            topics=topics,
            cluster_id=surroundings.cluster_id,
            authorizer=surroundings.security.authorizer,
            listeners={listener.name: listener for listener in surroundings.listeners if listener.scheme == "pulsar"},
            endpoints=_endpoints(surroundings),
        )

    def open(self) -> None:
        self._documents.load()

    def threads(self) -> Sequence[PartThread]:
        return []

    def service(self, listener: Listener) -> PulsarService:
        return PulsarService(self.context, self.commands)

    def stopping(self) -> None:
        self.context.stopping = True

    def shut_down(self) -> None:
        """Nothing to do: no command waits for an event."""

    def close(self) -> None:
        """Nothing to do: there are no files."""


def _open_reader(log: Log) -> EntryReader:
    return cast(EntryReader, None)  # nothing reads entries yet


def _endpoints(surroundings: Surroundings) -> dict[str, tuple[str, int]]:
    """What clients are told to connect to, by the listener's name."""
    endpoints = {}
    for listener in surroundings.listeners:
        advertised = surroundings.config.advertised_address(listener.name)
        host, port = surroundings.addresses[listener.name]
        # The host as it was configured rather than the address it was resolved to: `localhost` stays `localhost`.
        endpoints[listener.name] = advertised or (listener.host or host, port)
    return endpoints
