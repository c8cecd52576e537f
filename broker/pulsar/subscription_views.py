"""``/api/v1/subscriptions``: backlog, unacknowledged messages and permits of subscriptions, with their consumers.

Topics in use are read one after the other. Of other topics only the names of subscriptions are known; their figures are null. A
subscription's lock is held for about a microsecond per consumer.

Tests: tests/pulsar/views/test_subscriptions.py.
"""

import heapq
from collections.abc import Iterator
from typing import Any, Final

from broker.pulsar.subscriptions.operations import SubscriptionFigures, figures
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.subscriptions.subscriptions import Subscriptions
from broker.pulsar.topic_names import TopicName, pulsar_name
from broker.pulsar.topics.registry import TopicRegistry
from broker.pulsar.topics.topic import Topic
from broker.security.acl import Operation, ResourceType
from broker.storage.log_manager import LogManager
from broker.web.callers import Callers
from broker.web.routes import Answer, Call, Route, json_answer, limit_of

# The largest number of consumers shown of a subscription, and of subscriptions shown of a topic.
_CONSUMERS_SHOWN: Final = 100
_OF_TOPIC_MAX: Final = 1000

# Separates topic and subscription in the position of a page; neither may contain it.
_BETWEEN = "\n"


class SubscriptionViews:
    def __init__(self, logs: LogManager, topics: TopicRegistry, subscriptions: Subscriptions, callers: Callers) -> None:
        self._logs = logs
        self._topics = topics
        self._subscriptions = subscriptions
        self._callers = callers

    def routes(self) -> list[Route]:
        return [self._callers.protected(Route("GET", "/api/v1/subscriptions", self.page))]

    def page(self, call: Call) -> Answer:
        limit, after = limit_of(call), call.query.get("after", "")
        wanted, part = call.query.get("topic"), call.query.get("filter", "").lower()
        named = ((f"{name}{_BETWEEN}{subscription}", name, subscription) for name, subscription in self._all(call))
        rest = (
            each
            for each in named
            if each[0] > after and part in each[0].lower() and wanted in (None, str(each[1]), str(each[1].whole))
        )
        page = heapq.nsmallest(limit + 1, rest, key=lambda each: each[0])
        shown = [self._shown(name, subscription) for _, name, subscription in call.work.each(page[:limit])]
        following = page[limit - 1][0] if len(page) > limit else None
        return json_answer({"subscriptions": shown, "next": following})

    def of_topic(self, kafka_topic: str) -> list[dict[str, Any]]:
        """The subscriptions of all partitions of a topic, for the topic's view."""
        shown = []
        for name, subscription in self._of(kafka_topic):
            shown.append(self._shown(name, subscription))
            if len(shown) >= _OF_TOPIC_MAX:
                break
        return shown

    def _all(self, call: Call) -> Iterator[tuple[TopicName, str]]:
        """The subscriptions of all topics that the client may describe, as (topic, subscription)."""
        in_use = {topic.kafka_name for topic in self._topics.loaded()}
        stored = self._subscriptions.store.topics()
        for info in call.work.each(self._logs.topics()):
            if (info.name in in_use or info.topic_id in stored) and self._callers.may(
                call, Operation.DESCRIBE, ResourceType.TOPIC, info.name
            ):
                yield from self._of(info.name)

    def _of(self, kafka_topic: str) -> Iterator[tuple[TopicName, str]]:
        info = self._logs.topic(kafka_topic)
        if info is None:
            return
        name = pulsar_name(info.name)
        partitioned = self._topics.is_partitioned(info)
        for number in range(info.partitions):
            partition = name.of_partition(number) if partitioned else name
            topic = self._topics.get(partition)
            if topic is None:
                names = self._subscriptions.store.names(info.topic_id, number)
            else:
                with topic.lock:
                    names = list(topic.subscriptions)
            for subscription in names:
                yield partition, subscription

    def _shown(self, name: TopicName, subscription: str) -> dict[str, Any]:
        topic = self._topics.get(name)
        entry = None if topic is None else self._find(topic, subscription)
        shown: dict[str, Any] = {
            "topic": str(name),
            "name": subscription,
            "in_use": entry is not None,
            "type": None,
            "durable": True,
            "backlog": None,
            "unacknowledged": None,
            "permits": None,
            "consumers": 0,
            "connected": [],
        }
        return shown if entry is None else shown | _figures(figures(entry))

    def _find(self, topic: Topic, name: str) -> Subscription | None:
        with topic.lock:
            subscription = topic.subscriptions.get(name)
        return subscription if isinstance(subscription, Subscription) else None


def _figures(of: SubscriptionFigures) -> dict[str, Any]:
    return {
        "type": of.type,
        "durable": of.durable,
        "backlog": of.backlog,
        "unacknowledged": of.unacked,
        "permits": sum(max(0, each.permits) for each in of.consumers),
        "consumers": len(of.consumers),
        "connected": [
            {
                "name": each.name,
                "address": each.address,
                "version": each.client_version,
                "since_ms": each.since_ms,
                "permits": each.permits,
                "unacknowledged": each.unacked,
                "blocked": each.blocked,
                "messages_out": each.messages_out,
                "bytes_out": each.bytes_out,
                "redelivered": each.redelivered,
            }
            for each in of.consumers[:_CONSUMERS_SHOWN]
        ],
    }
