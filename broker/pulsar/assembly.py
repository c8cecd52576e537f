"""The Pulsar service put together from the broker's settings, for all its listeners.

Tests: tests/pulsar/test_assembly.py, tests/test_server.py.
"""

from collections.abc import Sequence

from broker.config import Listener
from broker.network.part import PartThread, ServicePart, Surroundings
from broker.pulsar import handlers
from broker.pulsar.context import PulsarContext
from broker.pulsar.entries.cache import EntryCache
from broker.pulsar.entries.reader import EntryReader
from broker.pulsar.entries.readers import Readers
from broker.pulsar.keep_alive import KeepAlive
from broker.pulsar.service import PulsarService
from broker.pulsar.subscriptions.liveness import Liveness
from broker.pulsar.subscriptions.subscriptions import Subscriptions
from broker.pulsar.topics.documents import TopicDocuments
from broker.pulsar.topics.registry import TopicRegistry
from broker.storage.log_manager import LogManager


def assemble(surroundings: Surroundings, logs: LogManager) -> ServicePart:
    return PulsarPart(surroundings, logs)


class PulsarPart:
    """The topics, and the context that all handlers share."""

    def __init__(self, surroundings: Surroundings, logs: LogManager) -> None:
        config, runtime = surroundings.config, surroundings.runtime
        self._readers = Readers(runtime.clock, config.pulsar_reader_threads)
        cache = EntryCache(runtime.clock, surroundings.timer, config.pulsar_cache_bytes, self._readers.submit)
        subscriptions = self._subscriptions = Subscriptions(
            runtime.clock, surroundings.timer, surroundings.catalogue, lambda: [info.topic_id for info in logs.topics()]
        )
        self._documents = TopicDocuments(surroundings.catalogue, subscriptions.store.writer)
        topics = TopicRegistry(logs, self._documents, runtime.clock, lambda log: EntryReader(log, cache, self._readers))
        topics.on_load.append(subscriptions.load)
        logs.on_topic_deleted.append(subscriptions.on_topic_deleted)
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
            subscriptions=subscriptions,
            liveness=Liveness(runtime.clock, surroundings.timer),
            keep_alive=KeepAlive(runtime.clock, surroundings.timer, config.pulsar_keep_alive_interval_ms / 1000),
            cluster_id=surroundings.cluster_id,
            authorizer=surroundings.security.authorizer,
            listeners={listener.name: listener for listener in surroundings.listeners if listener.scheme == "pulsar"},
            endpoints=_endpoints(surroundings),
        )

    def open(self) -> None:
        self._documents.load()
        self._subscriptions.open()

    def threads(self) -> Sequence[PartThread]:
        return [*self._subscriptions.threads(), *self._readers.threads()]

    def service(self, listener: Listener) -> PulsarService:
        return PulsarService(self.context, self.commands)

    def stopping(self) -> None:
        self.context.stopping = True

    def shut_down(self) -> None:
        """Nothing to do: no command waits for an event."""

    def close(self) -> None:
        self._subscriptions.close()


def _endpoints(surroundings: Surroundings) -> dict[str, tuple[str, int]]:
    """What clients are told to connect to, by the listener's name."""
    endpoints = {}
    for listener in surroundings.listeners:
        advertised = surroundings.config.advertised_address(listener.name)
        host, port = surroundings.addresses[listener.name]
        # The host as it was configured rather than the address it was resolved to: `localhost` stays `localhost`.
        endpoints[listener.name] = advertised or (listener.host or host, port)
    return endpoints
