"""What of each log must not be deleted, for the storage's retention (``broker/storage/upkeep/retention.py``).

Kafka deletes by age and size whatever anybody has read; Pulsar keeps what a durable subscription has not acknowledged. Here, a
topic that has durable subscriptions is kept from the oldest offset that one of them has not acknowledged. Only the message TTL
and a backlog quota that evicts move a subscription past what it has not consumed; otherwise, the records stay. What all have
acknowledged goes by the topic's settings, ``retention.ms`` and ``retention.bytes``, or by Pulsar's retention policy where the
topic or its namespace has one. A topic without durable subscriptions is kept as Kafka keeps it.

Housekeeper thread, which may block.

Tests: tests/pulsar/policies/test_upkeep.py.
"""

from uuid import UUID

from broker.pulsar.compaction.compactions import Compactions
from broker.pulsar.policies.policies import UNLIMITED, Retention
from broker.pulsar.policies.store import PolicyStore
from broker.pulsar.subscriptions.cursor import stored_position
from broker.pulsar.subscriptions.cursor_store import CursorStore
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.topic_names import pulsar_name
from broker.pulsar.topics.registry import TopicRegistry
from broker.pulsar.topics.topic import Topic
from broker.storage.log.log import Log
from broker.storage.upkeep.retention import Rule


class RetentionRules:
    def __init__(
        self, topics: TopicRegistry, store: CursorStore, policies: PolicyStore, compactions: Compactions
    ) -> None:
        self._compactions = compactions
        self._topics = topics
        self._store = store
        self._policies = policies
        # Logs for which no subscription was seen the last time.
        self._without: set[tuple[UUID, int]] = set()

    def rule(self, log: Log) -> Rule | None:
        topic_id = log.topic_id
        policies = self._policies.of(pulsar_name(log.topic).namespace, topic_id)
        retention = policies.retention
        needed_from = self._needed_from(log) if topic_id in self._store.topics() else None
        to_compact = self._compactions.needed_from(log)
        if to_compact is None and policies.compaction_threshold_bytes:
            to_compact = 0  # it was not compacted yet
        if to_compact is not None:
            needed_from = to_compact if needed_from is None else min(needed_from, to_compact)
        if retention is None:
            return None if needed_from is None else Rule(needed_from)
        return Rule(needed_from, *_limits(retention))

    def _needed_from(self, log: Log) -> int | None:
        key = (log.topic_id, log.partition)
        topic = self._loaded(log)
        positions = [] if topic is None else _positions(topic)
        positions += [stored_position(state) for state in self._store.states(*key)]
        if positions:
            self._without.discard(key)
            return min(positions)
        # It may just be coming into use or going out of it, and be in neither place for a moment.
        if key in self._without:
            return None
        self._without.add(key)
        return 0

    def _loaded(self, log: Log) -> Topic | None:
        name = pulsar_name(log.topic)
        for one in (name, name.of_partition(log.partition)):
            topic = self._topics.get(one)
            if topic is not None and topic.log is log:
                return topic
        return None


def _positions(topic: Topic) -> list[int]:
    with topic.lock:
        subscriptions = list(topic.subscriptions.values())
    return [one.cursor.acknowledged_before for one in subscriptions if isinstance(one, Subscription) and one.durable]


def _limits(retention: Retention) -> tuple[int, int]:
    minutes, megabytes = retention.minutes, retention.megabytes
    # As in Pulsar, a limit that is 0 beside one that is not means nothing more than the other one.
    if minutes == 0 and megabytes != 0:
        minutes = UNLIMITED
    if megabytes == 0 and minutes != 0:
        megabytes = UNLIMITED
    return (
        UNLIMITED if minutes < 0 else minutes * 60_000,
        UNLIMITED if megabytes < 0 else megabytes * 1024 * 1024,
    )
