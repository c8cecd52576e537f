"""Admin calls about non-persistent topics: lists, partitions, statistics, subscriptions, unload and delete.

Calls that need a log or a cursor (positions, backlogs, policies of a topic, schemas) do not exist for these topics.

Tests: tests/pulsar/admin/test_non_persistent.py.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from broker.pulsar.admin.calls import (
    check_together,
    name_to_create,
    number,
    partitions_to_create,
    require_creation,
    require_subscription,
    require_topic,
    route,
    routes_of_topics,
    topic_name,
    visible,
)
from broker.pulsar.admin.stats import Rates, consumer_stats, shared_stats
from broker.pulsar.context import PulsarContext
from broker.pulsar.dispatch.dispatcher import NAMES
from broker.pulsar.nonpersistent.subscription import NonPersistentSubscription
from broker.pulsar.nonpersistent.topic import NonPersistentTopic
from broker.pulsar.refusals import ConsumerBusy, NotAllowed, SubscriptionNotFound, TopicNotFound
from broker.pulsar.subscriptions.operations import consumer_figures
from broker.pulsar.topic_names import NON_PERSISTENT, TopicName
from broker.security.acl import Operation
from broker.storage.refusals import TopicExists
from broker.web.routes import NO_CONTENT, Answer, Call, Route, json_answer

BASE = "/admin/v2/non-persistent/{tenant}/{namespace}"
TOPIC = BASE + "/{topic}"
ONE = TOPIC + "/subscription/{subscription}"

_SUMMED = (
    "msgRateIn",
    "msgThroughputIn",
    "msgRateOut",
    "msgThroughputOut",
    "msgDropRate",
    "msgInCounter",
    "bytesInCounter",
    "msgOutCounter",
    "bytesOutCounter",
    "msgDropCounter",
)

_name = partial(topic_name, domain=NON_PERSISTENT)


class NonPersistent:
    def __init__(self, context: PulsarContext, rates: Rates) -> None:
        self._context = context
        self._rates = rates
        self._topics = context.nonpersistent

    def routes(self) -> list[Route]:
        return [
            *routes_of_topics(BASE, self),
            route("GET", TOPIC + "/stats", self.stats),
            route("GET", TOPIC + "/partitioned-stats", self.partitioned_stats),
            route("GET", TOPIC + "/internalStats", self.internal),
            route("GET", TOPIC + "/subscriptions", self.subscriptions),
            route("PUT", ONE, self.subscribe),
            route("DELETE", ONE, self.unsubscribe),
        ]

    # -- lists ----------------------------------------------------------------------------------------------------------

    def names(self, call: Call) -> Answer:
        return json_answer([str(name) for name in self.visible(call)])

    def list_partitioned(self, call: Call) -> Answer:
        wholes = dict.fromkeys(name.whole for name in self.visible(call) if name.partition >= 0)
        return json_answer([str(name) for name in wholes if self._topics.partitions(name)])

    def visible(self, call: Call) -> Iterable[TopicName]:
        """The topics of the namespace that the client may describe."""
        return visible(self._context, call, self._topics)

    # -- creating and deleting ----------------------------------------------------------------------------------------

    def create(self, call: Call) -> Answer:
        """The topic is forgotten when it was unused for a minute, and created again when a client asks for it."""
        name = name_to_create(self._context, call, NON_PERSISTENT)
        if self._topics.exists(name) or self._topics.partitions(name.whole):
            raise TopicExists("This topic already exists")
        self._topics.make(name)
        return NO_CONTENT

    def create_partitioned(self, call: Call) -> Answer:
        name = name_to_create(self._context, call, NON_PERSISTENT)
        partitions, _ = partitions_to_create(call, name)
        self._topics.create_partitioned(name, partitions)
        return NO_CONTENT

    def partitions(self, call: Call) -> Answer:
        name = _name(call)
        require_topic(self._context, call, Operation.DESCRIBE, name)
        self._context.topics.check_namespace(name)
        partitions = self._topics.partitions(name)
        if partitions is None and not call.flag("checkAllowAutoCreation"):
            raise TopicNotFound(f"Topic {name} not found")
        return json_answer({"partitions": partitions or 0, "deleted": False})

    def add_partitions(self, call: Call) -> Answer:
        name = _name(call)
        require_topic(self._context, call, Operation.ALTER, name)
        self._topics.add_partitions(name, number(call.json(), "The number of partitions", 1))
        return NO_CONTENT

    def delete(self, call: Call) -> Answer:
        name = _name(call)
        require_topic(self._context, call, Operation.DELETE, name)
        topic = self._found(name)
        self._check_unused([topic], call)
        self._topics.close(topic)
        return NO_CONTENT

    def delete_partitioned(self, call: Call) -> Answer:
        name = _name(call)
        require_topic(self._context, call, Operation.DELETE, name)
        if not call.flag("force"):
            self._check_unused(self._parts(name), call)
        self._topics.delete_partitioned(name)
        return NO_CONTENT

    def _check_unused(self, topics: Iterable[NonPersistentTopic], call: Call) -> None:
        if not call.flag("force") and any(topic.in_use for topic in topics):
            raise ConsumerBusy("Topic has active producers/subscriptions")

    def unload(self, call: Call) -> Answer:
        name = _name(call)
        require_topic(self._context, call, Operation.ALTER, name)
        for topic in call.work.each(self._parts(name)):
            self._topics.close(topic)
        return NO_CONTENT

    # -- statistics -----------------------------------------------------------------------------------------------------

    def stats(self, call: Call) -> Answer:
        return json_answer(topic_stats(call, self._described(call), self._rates))

    def partitioned_stats(self, call: Call) -> Answer:
        name = _name(call)
        require_topic(self._context, call, Operation.DESCRIBE, name)
        parts = {str(topic.name): topic_stats(call, topic, self._rates) for topic in self._parts(name)}
        return json_answer(
            {
                **summed_passing([*parts.values()]),
                "metadata": {"partitions": self._topics.partitions(name), "deleted": False},
                "partitions": parts if call.flag("perPartition", True) else {},
            }
        )

    def internal(self, call: Call) -> Answer:
        topic = self._described(call)
        return json_answer(
            {"entriesAddedCounter": topic.entries_in, "numberOfEntries": 0, "cursors": {}, "ledgers": []}
        )

    # -- subscriptions --------------------------------------------------------------------------------------------------

    def subscriptions(self, call: Call) -> Answer:
        name = _name(call)
        require_topic(self._context, call, Operation.DESCRIBE, name)
        return json_answer(
            [*dict.fromkeys(subscription for topic in self._parts(name) for subscription in topic.subscriptions)]
        )

    def subscribe(self, call: Call) -> Answer:
        name, subscription = self._subscription(call)
        if self._topics.partitions(name):
            raise NotAllowed("A subscription without messages is of one partition: name it.")
        if not self._topics.exists(name):
            require_creation(self._context, call, name)
        self._topics.subscribe(self._topics.get_or_create(name), subscription)
        return NO_CONTENT

    def unsubscribe(self, call: Call) -> Answer:
        name, subscription = self._subscription(call)
        candidates = [topic.subscriptions.get(subscription) for topic in self._parts(name)]
        known = [each for each in candidates if isinstance(each, NonPersistentSubscription)]
        if not known:
            raise SubscriptionNotFound("Subscription not found")
        if not call.flag("force") and any(each.has_consumers for each in known):
            raise ConsumerBusy("Subscription has active connected consumers")
        for each in known:
            self._topics.unsubscribe(each)
        return NO_CONTENT

    def _subscription(self, call: Call) -> tuple[TopicName, str]:
        name, subscription = _name(call), call.names["subscription"]
        require_subscription(self._context, call, name, subscription)
        return name, subscription

    # -- topics ---------------------------------------------------------------------------------------------------------

    def _described(self, call: Call) -> NonPersistentTopic:
        name = _name(call)
        require_topic(self._context, call, Operation.DESCRIBE, name)
        return self._found(name)

    def _found(self, name: TopicName) -> NonPersistentTopic:
        """Raises TopicNotFound."""
        return self._topics.get_or_create(name, create=False)

    def _parts(self, name: TopicName) -> list[NonPersistentTopic]:
        """The loaded partitions of a partitioned topic; any other topic itself. Raises TopicNotFound."""
        count = self._topics.partitions(name)
        if not count:
            return [self._found(name)]
        check_together(self._context, [name.of_partition(number) for number in range(count)])
        topics = [self._topics.get(name.of_partition(number)) for number in range(count)]
        return [topic for topic in topics if topic is not None]


def summed_passing(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The statistics of a partitioned topic."""
    return {key: sum(part[key] for part in parts) for key in _SUMMED}


def topic_stats(call: Call, topic: NonPersistentTopic, rates: Rates) -> dict[str, Any]:
    shared = shared_stats(call, topic, NonPersistentSubscription, _subscription_stats, rates)
    subscriptions = shared["subscriptions"].values()
    return {
        **shared,
        "msgDropRate": sum(each["msgDropRate"] for each in subscriptions),
        "msgInCounter": topic.messages_in,
        "bytesInCounter": topic.bytes_in,
        "msgDropCounter": topic.dropped + sum(each["msgDropCounter"] for each in subscriptions),
        "storageSize": 0,
        "backlogSize": 0,
    }


def _subscription_stats(subscription: NonPersistentSubscription, rates: Rates) -> dict[str, Any]:
    with subscription.lock:
        consumers = [consumer_figures(connected) for connected in subscription.connected]
        active = subscription.active
        out, size, dropped = subscription.messages_out, subscription.bytes_out, subscription.dropped
    messages_s, bytes_s, dropped_s = rates.of(subscription, subscription.since_ms)
    return {
        "msgRateOut": messages_s,
        "msgThroughputOut": bytes_s,
        "msgDropRate": dropped_s,
        "msgOutCounter": out,
        "bytesOutCounter": size,
        "msgDropCounter": dropped,
        "msgBacklog": 0,
        "unackedMessages": 0,
        "type": NAMES.get(subscription.kind, "None"),
        "activeConsumerName": active.name if active is not None else None,
        "consumers": [consumer_stats(each, rates) for each in consumers],
        "isDurable": subscription.durable,
        "isReplicated": False,
    }
