"""The Pulsar service put together from the broker's settings, for all its listeners.

Tests: tests/pulsar/test_assembly.py, tests/server/test_broker_server.py.
"""

from collections.abc import Sequence
from functools import partial

import attrs

from broker.config import BrokerConfig, Listener
from broker.network.quota import DeliveryQuota, Throttling
from broker.part import PartThread, ServicePart, Surroundings, endpoints
from broker.pulsar import handlers
from broker.pulsar.admin.routes import routes as admin_routes
from broker.pulsar.compaction.compactions import Compactions
from broker.pulsar.compaction.reader import CompactedReader
from broker.pulsar.consumer_calls import close_unentitled
from broker.pulsar.context import PulsarContext
from broker.pulsar.dispatch.dispatcher import DispatchSettings
from broker.pulsar.entries.cache import EntryCache
from broker.pulsar.entries.reader import EntryReader, Readers
from broker.pulsar.keep_alive import KeepAlive
from broker.pulsar.metrics import PulsarMetrics
from broker.pulsar.namespaces import Namespaces
from broker.pulsar.nonpersistent.topics import NonPersistentTopics
from broker.pulsar.policies.policies import BROKER
from broker.pulsar.policies.store import PolicyLimits, PolicyStore, RetentionRules
from broker.pulsar.policies.upkeep import Upkeep
from broker.pulsar.producers.deduplications import Deduplications
from broker.pulsar.schemas.registry import SchemaRegistry
from broker.pulsar.service import PulsarService
from broker.pulsar.subscription_views import SubscriptionViews
from broker.pulsar.subscriptions.locating import Liveness
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.subscriptions.subscriptions import Bounds, Subscriptions
from broker.pulsar.topics.registry import Creation, TopicDocuments, TopicRegistry
from broker.pulsar.topics.watches import TopicWatches
from broker.security.acl_authorizer import AclAuthorizer
from broker.security.proofs import open_authentication
from broker.storage.log_manager import LogManager
from broker.web.callers import open_callers


def assemble(surroundings: Surroundings, logs: LogManager) -> ServicePart:
    return PulsarPart(surroundings, logs)


class PulsarPart:
    """The topics, and the context that all handlers share."""

    def __init__(self, surroundings: Surroundings, logs: LogManager) -> None:
        config, runtime = surroundings.config, surroundings.runtime
        self._readers = Readers(runtime.clock, config.pulsar_reader_threads)
        cache = EntryCache(runtime.clock, surroundings.timer, config.pulsar_cache_bytes, self._readers.submit)
        subscriptions = self._subscriptions = Subscriptions(runtime.clock, surroundings.timer, surroundings.catalogue)
        self._documents = TopicDocuments(surroundings.catalogue, subscriptions.store.writer)
        topics = self._topics = TopicRegistry(
            logs,
            self._documents,
            runtime.clock,
            surroundings.timer,
            lambda log: EntryReader(log, cache, self._readers),
            Creation(config.pulsar_auto_create_topics, config.pulsar_auto_topic_partitions),
        )
        namespaces = self._namespaces = Namespaces(surroundings.catalogue, config.pulsar_namespaces)
        topics.has_namespace = namespaces.exists
        logs.on_topic_gone.append(topics.on_topic_deleted)
        topics.on_load.append(subscriptions.load)
        logs.on_topic_gone.append(lambda info: subscriptions.topic_deleted(info.topic_id))
        watches = TopicWatches(topics, subscriptions.waker.line(), runtime.clock, surroundings.timer)
        logs.on_topic_changed.append(watches.changed)
        logs.on_topic_deleted.append(watches.changed)
        self._schemas = SchemaRegistry(surroundings.catalogue)
        self._policies = PolicyStore(
            surroundings.catalogue, attrs.evolve(BROKER, deduplication=config.pulsar_deduplication)
        )
        topics.creation = partial(_creation, self._policies, topics.creation(""))
        topics.topics_max = lambda namespace: self._policies.namespace(namespace).max_topics or 0
        compactions = self._compactions = Compactions(
            runtime.disk, f"{config.data_dir}/pulsar-compacted", self._readers.large
        )
        subscriptions.compacted = lambda topic: CompactedReader(topic.log, topic.reader, compactions, self._readers)
        logs.on_topic_gone.append(lambda info: compactions.forget(info.topic_id))
        limits = PolicyLimits(self._policies, _bounds(config), _dispatch_settings(config))
        topics.on_load.append(lambda topic: setattr(topic, "publish_rate", limits.publish_rate(topic)))
        self._policies.on_change.append(partial(_limit_subscriptions, topics, limits))
        limits.broker_rate.set(config.pulsar_dispatch_rate_messages, config.pulsar_dispatch_rate_bytes)
        subscriptions.limits = limits
        subscriptions.quota = DeliveryQuota(surroundings.security.quotas, runtime.clock, surroundings.timer)
        logs.housekeeper.retention_rule = RetentionRules(topics, subscriptions.store, self._policies, compactions).rule
        self._nonpersistent = NonPersistentTopics(
            surroundings.catalogue,
            runtime.clock,
            surroundings.timer,
            subscriptions.waker,
            limits,
            namespaces.require,
            on_demand=config.pulsar_auto_create_topics,
        )
        self._nonpersistent.quota = subscriptions.quota
        self._nonpersistent.on_demand = lambda namespace: topics.creation(namespace).on_demand
        self._upkeep = Upkeep(
            logs,
            topics,
            subscriptions,
            self._policies,
            compactions,
            runtime.clock,
            expiry_interval_s=config.pulsar_message_expiry_check_interval_ms / 1000,
            quota_interval_s=config.pulsar_backlog_quota_check_interval_ms / 1000,
        )
        logs.on_topic_gone.append(self._upkeep.inactive.forget)
        logs.on_topic_gone.append(lambda info: self._schemas.forget(info.topic_id))
        logs.on_topic_gone.append(lambda info: self._policies.forget(info.topic_id))
        deduplications = self._deduplications = Deduplications(
            surroundings.catalogue,
            subscriptions.store.writer,
            runtime.clock,
            surroundings.timer,
            lambda topic: bool(self._policies.of(topic.name.namespace, topic.log.topic_id).deduplication),
        )
        topics.on_unload.append(deduplications.unloaded)
        logs.on_topic_gone.append(lambda info: deduplications.deleted(info.topic_id))
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
            watches=watches,
            subscriptions=subscriptions,
            schemas=self._schemas,
            policies=self._policies,
            namespaces=namespaces,
            nonpersistent=self._nonpersistent,
            limits=limits,
            upkeep=self._upkeep,
            compactions=compactions,
            deduplications=deduplications,
            liveness=Liveness(runtime.clock, surroundings.timer),
            keep_alive=KeepAlive(runtime.clock, surroundings.timer, config.pulsar_keep_alive_interval_ms / 1000),
            cluster_id=surroundings.cluster_id,
            quotas=surroundings.security.quotas,
            throttling=Throttling(surroundings.timer),
            metrics=surroundings.metrics,
            login_counters=surroundings.security.logins,
            authentications={
                listener.name: open_authentication(
                    config, listener, surroundings.security.mechanisms.get(listener.name), runtime.clock
                )
                for listener in surroundings.listeners
                if listener.scheme == "pulsar"
            },
            authorizer=surroundings.security.authorizer,
            listeners={listener.name: listener for listener in surroundings.listeners if listener.scheme == "pulsar"},
            endpoints=endpoints(surroundings),
        )
        PulsarMetrics(self.context, cache).register(surroundings.metrics)
        asking = [listener for listener in surroundings.listeners if listener.scheme == "pulsar"]
        callers = open_callers(config, asking, surroundings.security, runtime.clock, realm="pulsar")
        surroundings.routes.add(
            *(callers.protected(route) if route.blocking else route for route in admin_routes(self.context))
        )

        if surroundings.has_http:
            views = SubscriptionViews(logs, topics, subscriptions, surroundings.callers)
            surroundings.routes.add(*views.routes())
            surroundings.figures.subscriptions = views.of_topic

    def open(self) -> None:
        throttling = self.context.throttling
        throttling.count_in(self.context.quotas)
        self._policies.on_change.append(throttling.end_all)
        if isinstance(self.context.authorizer, AclAuthorizer):
            ask_again = (partial(close_unentitled, self.context), self.context.watches.rights_changed)
            self.context.authorizer.on_change.extend(ask_again)
            self.context.namespaces.on_roles_changed.extend(ask_again)
        topic_ids = {info.topic_id for info in self.context.logs.topics()}
        exists = topic_ids.__contains__
        self._documents.load(exists)
        self._topics.open()
        self._schemas.load(exists)
        self._policies.load(exists)
        self._compactions.open(exists)
        self._deduplications.load(exists)
        self._namespaces.load()
        self._nonpersistent.load()
        self._subscriptions.open(topic_ids)

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
        self._topics.close()
        self._subscriptions.close()


def _creation(policies: PolicyStore, otherwise: Creation, namespace: str) -> Creation:
    """How topics are made in the namespace that clients ask for; ``otherwise``: as the settings say."""
    own = policies.namespace(namespace).auto_topic_creation
    return otherwise if own is None else Creation(own.allowed, own.partitions)


def _bounds(config: BrokerConfig) -> Bounds:
    return Bounds(
        subscriptions_of_topic=config.pulsar_max_subscriptions_per_topic,
        consumers_of_topic=config.pulsar_max_consumers_per_topic,
        consumers_of_subscription=config.pulsar_max_consumers_per_subscription,
    )


def _limit_subscriptions(topics: TopicRegistry, limits: PolicyLimits) -> None:
    """The policies have changed."""
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
