"""The Pulsar service put together from the broker's settings, for all its listeners.

Tests: tests/pulsar/test_assembly.py, tests/server/test_broker_server.py.
"""

from collections.abc import Container, Sequence
from functools import partial
from uuid import UUID

import attrs

from broker.config import BrokerConfig, Listener
from broker.metadata.catalogue import Catalogue
from broker.network.quota import DeliveryQuota, Throttling
from broker.part import PartThread, Reloads, ServicePart, Surroundings, endpoints
from broker.pulsar import handlers
from broker.pulsar.admin.brokers import Brokers, BrokerStats, Lookup
from broker.pulsar.admin.gathering import Gathering
from broker.pulsar.admin.non_persistent import NonPersistent
from broker.pulsar.admin.policies import PolicyCalls
from broker.pulsar.admin.schemas import Schemas
from broker.pulsar.admin.stats import Rates, Stats
from broker.pulsar.admin.subscriptions import Subscriptions as SubscriptionCalls
from broker.pulsar.admin.tenants import Permissions, Tenants
from broker.pulsar.admin.topics import Topics
from broker.pulsar.compaction.compactions import Compactions
from broker.pulsar.compaction.reader import CompactedReader
from broker.pulsar.consumer_calls import close_unentitled
from broker.pulsar.context import PulsarContext
from broker.pulsar.dispatch.dispatcher import DispatchSettings
from broker.pulsar.entries.cache import EntryCache
from broker.pulsar.entries.reader import EntryReader, Readers
from broker.pulsar.faulting import CHANGES, Changes
from broker.pulsar.keep_alive import KeepAlive
from broker.pulsar.metrics import PulsarMetrics
from broker.pulsar.namespaces import NAMESPACE_KIND, TENANT_KIND, Namespaces
from broker.pulsar.nonpersistent.topics import KIND as NON_PERSISTENT_KIND
from broker.pulsar.nonpersistent.topics import NonPersistentTopics
from broker.pulsar.policies.policies import BROKER
from broker.pulsar.policies.store import KIND as POLICY_KIND
from broker.pulsar.policies.store import PolicyLimits, PolicyStore, RetentionRules
from broker.pulsar.policies.upkeep import Upkeep
from broker.pulsar.producers.deduplications import Deduplications
from broker.pulsar.schemas.registry import KIND as SCHEMA_KIND
from broker.pulsar.schemas.registry import SchemaRegistry
from broker.pulsar.service import PulsarService
from broker.pulsar.subscription_views import SubscriptionViews
from broker.pulsar.subscriptions.locating import Liveness
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.subscriptions.subscriptions import Bounds, Subscriptions
from broker.pulsar.topics.registry import KIND as TOPIC_KIND
from broker.pulsar.topics.registry import Creation, TopicDocuments, TopicRegistry
from broker.pulsar.topics.topic import Topic
from broker.pulsar.topics.watches import TopicWatches
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.proofs import open_authentication
from broker.storage.config import TopicInfo
from broker.storage.log_manager import LogManager
from broker.web.callers import open_callers
from broker.web.routes import Route


def assemble(surroundings: Surroundings, logs: LogManager) -> ServicePart:
    return PulsarPart(surroundings, logs)


class PulsarPart:
    """The topics, and the context that all handlers share."""

    def __init__(self, surroundings: Surroundings, logs: LogManager) -> None:
        config, runtime = surroundings.config, surroundings.runtime
        self._readers = Readers(runtime.clock, config.pulsar_reader_threads)
        self._cache = EntryCache(runtime.clock, surroundings.timer, config.pulsar_cache_bytes, self._readers.submit)
        nodes = self._nodes = logs.nodes
        self._compactions = Compactions(runtime.disk, f"{config.data_dir}/pulsar-compacted", self._readers.large)
        self._policies = PolicyStore(
            surroundings.catalogue, attrs.evolve(BROKER, deduplication=config.pulsar_deduplication), nodes
        )
        self._limits = PolicyLimits(self._policies, _bounds(config), _dispatch_settings(config))
        self._limits.broker_rate.set(config.pulsar_dispatch_rate_messages, config.pulsar_dispatch_rate_bytes)
        self._namespaces = Namespaces(surroundings.catalogue, config.pulsar_namespaces, nodes)
        self._schemas = SchemaRegistry(surroundings.catalogue, nodes)
        self._make_topics(surroundings, logs)
        self._policies.on_change.append(partial(_limit_subscriptions, self._topics, self._limits))
        self._upkeep = Upkeep(
            logs,
            self._topics,
            self._subscriptions,
            self._policies,
            self._compactions,
            runtime.clock,
            expiry_interval_s=config.pulsar_message_expiry_check_interval_ms / 1000,
            quota_interval_s=config.pulsar_backlog_quota_check_interval_ms / 1000,
        )
        rules = RetentionRules(self._topics, self._subscriptions.store, self._policies, self._compactions)
        logs.housekeeper.retention_rule = rules.rule
        watches = TopicWatches(self._topics, self._subscriptions.waker.line(), runtime.clock, surroundings.timer)
        logs.on_topic_changed.append(watches.changed)
        logs.on_topic_deleted.append(watches.changed)
        logs.on_topic_gone.append(self._on_topic_gone)
        self.commands = handlers.load()
        self._faults = surroundings.faults
        self._register_reloads(surroundings.reloads, logs)
        self.context = self._make_context(surroundings, logs, watches)
        self._show(surroundings)

    def _make_topics(self, surroundings: Surroundings, logs: LogManager) -> None:
        """The topics of both domains and their subscriptions."""
        config, catalogue, timer = surroundings.config, surroundings.catalogue, surroundings.timer
        clock = surroundings.runtime.clock
        policies, limits, readers, cache = self._policies, self._limits, self._readers, self._cache
        quota = DeliveryQuota(surroundings.security.quotas, clock, timer)
        self._subscriptions = Subscriptions(
            clock,
            timer,
            catalogue,
            limits,
            quota=quota,
            compacted=lambda topic: CompactedReader(topic.log, topic.reader, self._compactions, readers),
        )
        writer = self._subscriptions.store.writer
        self._deduplications = Deduplications(
            catalogue,
            writer,
            clock,
            timer,
            lambda topic: bool(policies.of(topic.name.namespace, topic.log.topic_id).deduplication),
        )
        self._documents = TopicDocuments(catalogue, writer, self._nodes)
        creation = partial(
            _creation, policies, Creation(config.pulsar_auto_create_topics, config.pulsar_auto_topic_partitions)
        )
        self._topics = TopicRegistry(
            logs,
            self._documents,
            clock,
            timer,
            lambda log: EntryReader(log, cache, readers),
            creation,
            lambda namespace: policies.namespace(namespace).max_topics or 0,
            self._namespaces.exists,
            on_load=[self._subscriptions.load, partial(_limit_producers, limits)],
            on_unload=[self._deduplications.unloaded],
        )
        self._nonpersistent = NonPersistentTopics(
            catalogue,
            clock,
            timer,
            self._subscriptions.waker,
            limits,
            self._namespaces.require,
            on_demand=lambda namespace: creation(namespace).on_demand,
            quota=quota,
            nodes=self._nodes,
        )

    def _make_context(self, surroundings: Surroundings, logs: LogManager, watches: TopicWatches) -> PulsarContext:
        config, runtime, security = surroundings.config, surroundings.runtime, surroundings.security
        clock, timer = runtime.clock, surroundings.timer
        listeners = {listener.name: listener for listener in surroundings.listeners if listener.scheme == "pulsar"}
        return PulsarContext(
            config=config,
            live=surroundings.live,
            logs=logs,
            flusher=logs.flusher,
            catalogue=surroundings.catalogue,
            clock=clock,
            timer=timer,
            entropy=runtime.entropy,
            topics=self._topics,
            watches=watches,
            subscriptions=self._subscriptions,
            schemas=self._schemas,
            policies=self._policies,
            namespaces=self._namespaces,
            nonpersistent=self._nonpersistent,
            limits=self._limits,
            upkeep=self._upkeep,
            compactions=self._compactions,
            deduplications=self._deduplications,
            liveness=Liveness(clock, timer),
            keep_alive=KeepAlive(clock, timer, config.pulsar_keep_alive_interval_ms / 1000),
            cluster_id=surroundings.cluster_id,
            quotas=security.quotas,
            throttling=Throttling(timer),
            metrics=surroundings.metrics,
            login_counters=security.logins,
            authentications={
                name: open_authentication(config, listener, security.mechanisms.get(name), clock)
                for name, listener in listeners.items()
            },
            authorizer=security.authorizer,
            listeners=listeners,
            endpoints=endpoints(surroundings),
        )

    def _show(self, surroundings: Surroundings) -> None:
        """Register the service's metrics and HTTP routes."""
        context = self.context
        PulsarMetrics(context, self._cache).register(surroundings.metrics)
        asking = list(context.listeners.values())
        callers = open_callers(context.config, asking, surroundings.security, context.clock, realm="pulsar")
        routes = admin_routes(context)
        if self._nodes is not None:
            routes = Gathering(context, self._nodes, routes).routes(routes)
        surroundings.routes.add(*(callers.protected(route) if route.blocking else route for route in routes))
        if surroundings.has_http:
            views = SubscriptionViews(context.logs, self._topics, self._subscriptions, surroundings.callers)
            surroundings.routes.add(*views.routes())
            surroundings.figures.subscriptions = views.of_topic

    def _faults_changed(self, is_any: bool) -> None:
        self.context.faults = self._faults if is_any else None

    def _on_topic_gone(self, info: TopicInfo) -> None:
        """A topic of Kafka has been deleted: drop all state of it. On the deleting thread, which may block."""
        self._topics.on_topic_deleted(info)
        self._subscriptions.topic_deleted(info.topic_id)
        self._compactions.forget(info.topic_id)
        self._upkeep.inactive.forget(info)
        self._schemas.forget(info.topic_id)
        self._policies.forget(info.topic_id)
        self._deduplications.deleted(info.topic_id)

    def open(self) -> None:
        self._faults.attach(self._faults_changed, dict.fromkeys(CHANGES, Changes(self.context).trigger))
        throttling = self.context.throttling
        throttling.count_in(self.context.quotas)
        self._policies.on_change.append(throttling.end_all)
        if isinstance(self.context.authorizer, AclAuthorizer):
            ask_again = (partial(close_unentitled, self.context), self.context.watches.rights_changed)
            self.context.authorizer.on_change.extend(ask_again)
            self.context.namespaces.on_roles_changed.extend(ask_again)
        topic_ids: Container[UUID] = {info.topic_id for info in self.context.logs.topics()}
        if self._nodes is not None:
            topic_ids = _Existing(topic_ids, self.context.catalogue)
        exists = topic_ids.__contains__
        self._documents.load(exists)
        self._topics.open()
        self._schemas.load(exists)
        self._policies.load(exists)
        self._compactions.open(exists)
        self._deduplications.load(exists)
        self._namespaces.load()
        self._nonpersistent.load()
        self._subscriptions.open(topic_ids, self._is_here)

    def _is_here(self, topic_id: UUID, partition: int) -> bool:
        """Whether this node has the partition, if there are others."""
        return self._nodes is None or (topic_id.bytes, partition) in self.context.logs.partitions_by_id

    def _register_reloads(self, reloads: Reloads, logs: LogManager) -> None:
        """What follows when other nodes change the catalogue."""
        logs.on_bringing_in.append(self._topics.reload)
        for kind, reload in (
            (TOPIC_KIND, self._topics.reload),
            (SCHEMA_KIND, self._schemas.reload),
            (POLICY_KIND, self._policies.reload),
            (TENANT_KIND, self._namespaces.reload),
            (NAMESPACE_KIND, self._reload_namespaces),
            (NON_PERSISTENT_KIND, self._nonpersistent.reload),
        ):
            reloads.setdefault(f"documents/{kind}", []).append(reload)

    def _reload_namespaces(self) -> None:
        self._namespaces.reload()
        for topic in self._nonpersistent.loaded():
            if not self._namespaces.exists(topic.name.namespace):
                self._nonpersistent.close(topic)

    def threads(self) -> Sequence[PartThread]:
        return [
            *self._subscriptions.threads(),
            *self._readers.threads(),
            PartThread("pulsar-upkeep", self._upkeep),
        ]

    def service(self, listener: Listener) -> PulsarService:
        return PulsarService(self.context, self.commands)

    def stopping(self) -> None:
        self.context.stopping = True

    def shut_down(self) -> None:
        """Nothing to do: no command waits for an event."""

    def close(self) -> None:
        self._faults.detach(self._faults_changed)
        self._topics.close()
        self._subscriptions.close()


class _Existing(Container[UUID]):
    """The ids of all topics, also of those that other nodes have made since this one has read the topics. A topic is there before
    anything that is kept for it, so what was kept for none can be removed."""

    def __init__(self, known: Container[UUID], catalogue: Catalogue) -> None:
        self._known = known
        self._catalogue = catalogue

    def __contains__(self, topic_id: object) -> bool:
        return topic_id in self._known or any(row.topic_id == topic_id for row in self._catalogue.topics())


def admin_routes(context: PulsarContext) -> list[Route]:
    """All routes of the admin API and of the lookup."""
    rates = Rates(context)
    lookup, passing = Lookup(context), NonPersistent(context, rates)
    topics, permissions = Topics(context, passing), Permissions(context)
    groups = (
        lookup,
        topics,
        passing,
        SubscriptionCalls(context),
        Stats(context, rates),
        Tenants(context, topics, permissions),
        PolicyCalls(context),
        Schemas(context),
        permissions,
        Brokers(context, lookup),
        BrokerStats(context, rates),
    )
    return [route for group in groups for route in group.routes()]


def _creation(policies: PolicyStore, otherwise: Creation, namespace: str) -> Creation:
    """How topics are created on demand in the namespace; ``otherwise``: the rule of the settings."""
    own = policies.namespace(namespace).auto_topic_creation
    return otherwise if own is None else Creation(own.allowed, own.partitions)


def _limit_producers(limits: PolicyLimits, topic: Topic) -> None:
    """Set the publish rate of a topic that comes into use."""
    topic.publish_rate = limits.publish_rate(topic)


def _bounds(config: BrokerConfig) -> Bounds:
    return Bounds(
        subscriptions_of_topic=config.pulsar_max_subscriptions_per_topic,
        consumers_of_topic=config.pulsar_max_consumers_per_topic,
        consumers_of_subscription=config.pulsar_max_consumers_per_subscription,
    )


def _limit_subscriptions(topics: TopicRegistry, limits: PolicyLimits) -> None:
    """Apply changed policies to all subscriptions in use."""
    for topic in topics.loaded():
        settings = limits.settings(topic)
        with topic.lock:
            subscriptions = list(topic.subscriptions.values())
        for subscription in subscriptions:
            if isinstance(subscription, Subscription):
                subscription.limit(settings)


def _dispatch_settings(config: BrokerConfig) -> DispatchSettings:
    return DispatchSettings(
        unacked_max_per_consumer=config.pulsar_max_unacked_per_consumer,
        unacked_max_per_subscription=config.pulsar_max_unacked_per_subscription,
        consistent_hashing=config.pulsar_key_shared_consistent_hashing,
        failover_delay_s=config.pulsar_failover_delay_ms / 1000,
        delayed_tick_ms=config.pulsar_delayed_delivery_tick_ms,
        delayed_strict=config.pulsar_delayed_delivery_strict,
    )
