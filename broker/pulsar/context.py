"""The state that the handlers share: the topics, the settings, and the addresses that clients are told.

Tests: tests/pulsar/test_assembly.py.
"""

from functools import partial

import attrs

from broker.config import BrokerConfig, Listener
from broker.faults.faults import Faults
from broker.live_config import LiveConfig
from broker.log import FaultLog, get_logger
from broker.metadata.catalogue import Catalogue
from broker.metrics.registry import Registry
from broker.network.quota import Throttling
from broker.network.service import Peer
from broker.part import as_reached
from broker.pulsar.compaction.compactions import Compactions
from broker.pulsar.keep_alive import KeepAlive
from broker.pulsar.namespaces import Namespaces
from broker.pulsar.nonpersistent.topics import NonPersistentTopics
from broker.pulsar.policies.store import PolicyLimits, PolicyStore
from broker.pulsar.policies.upkeep import Upkeep
from broker.pulsar.producers.deduplications import Deduplications
from broker.pulsar.schemas.registry import SchemaRegistry
from broker.pulsar.subscriptions.locating import Liveness
from broker.pulsar.subscriptions.subscriptions import Subscriptions
from broker.pulsar.topic_names import TopicName
from broker.pulsar.topics.registry import TopicRegistry
from broker.pulsar.topics.watches import TopicWatches
from broker.runtime.clock import Clock
from broker.runtime.entropy import Entropy
from broker.runtime.timers import Timer
from broker.security.acl import Authorizer
from broker.security.client_quotas import ClientQuotas
from broker.security.proofs import Authentication
from broker.security.sasl.exchange import LoginCounters
from broker.storage.log_manager import LogManager
from broker.storage.upkeep.flusher import Flusher

log = get_logger("pulsar")


@attrs.define(eq=False)
class PulsarContext:
    """Shared by all handlers, made by the assembly. Any thread may use it: each of its objects guards itself."""

    config: BrokerConfig
    live: LiveConfig
    logs: LogManager
    flusher: Flusher
    catalogue: Catalogue
    clock: Clock
    timer: Timer
    entropy: Entropy
    topics: TopicRegistry
    watches: TopicWatches
    subscriptions: Subscriptions
    schemas: SchemaRegistry
    policies: PolicyStore
    namespaces: Namespaces
    nonpersistent: NonPersistentTopics
    limits: PolicyLimits
    upkeep: Upkeep
    compactions: Compactions
    liveness: Liveness
    keep_alive: KeepAlive
    deduplications: Deduplications
    cluster_id: str
    login_counters: LoginCounters
    quotas: ClientQuotas
    throttling: Throttling
    metrics: Registry
    authentications: dict[str, Authentication]  # by the listener's name
    authorizer: Authorizer | None = None  # None: every client may do everything
    listeners: dict[str, Listener] = attrs.Factory(dict)  # by name
    # The addresses to which clients are told to connect, by the listener's name.
    endpoints: dict[str, tuple[str, int]] = attrs.Factory(dict)
    # Clock.monotonic() s until which appends go to the handler pool, because an append was slow.
    appends_slow_until: float = 0.0
    # The same, because one has not returned: then only a few handlers may try.
    appends_stuck_until: float = 0.0
    # The broker is about to stop: no request may begin to wait any more.
    stopping: bool = False
    faults: Faults | None = None  # None: there is no fault, and commands are handled as always
    _faults: FaultLog = attrs.field(factory=partial(FaultLog, log), init=False)

    def complain(self, event: str, topic: str, partition: int, error: Exception) -> None:
        """Log that the machine failed a command, unless the same was logged a short time ago. Any thread."""
        self._faults.report(event, topic, partition, error, self.clock.monotonic())

    def exists(self, name: TopicName) -> bool:
        """Whether an unpartitioned topic or a partition with this name exists, in either domain."""
        return self.topics.place(name) is not None if name.persistent else self.nonpersistent.exists(name)

    def kafka_name(self, name: TopicName) -> str:
        """The name in Kafka by which rights on the topic ``name`` are checked."""
        return self.of_domain(name).kafka_name(name)

    def of_domain(self, name: TopicName) -> TopicRegistry | NonPersistentTopics:
        return self.topics if name.persistent else self.nonpersistent

    def new_producer_name(self) -> str:
        """A name that no producer has had."""
        return f"{self.cluster_id}-{self.entropy.uuid().hex[:16]}"

    def advertised(self, listener: str, peer: Peer) -> tuple[str, int]:
        """The address of a listener as clients are told it: its endpoint, or, for a listener on all interfaces, the address
        that this client has connected to."""
        return as_reached(self.endpoints[listener], peer)
