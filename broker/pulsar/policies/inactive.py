"""Since when topics have been inactive, for the upkeep, which deletes those with a policy for that.

A topic is inactive while Pulsar's clients have no producer and no consumer on any of its partitions, nobody appends to it, and it
has no subscription or, by the policy's other mode, none with a backlog. It is not brought into use to find that out. What only
Kafka's clients have ever used is never inactive, and a consumer of Kafka's does not keep a topic.

The upkeep's thread; ``forget`` is for any.

Tests: tests/pulsar/policies/test_upkeep.py.
"""

from functools import partial
from typing import NamedTuple
from uuid import UUID

from broker.pulsar.policies.policies import DeleteWhen
from broker.pulsar.subscriptions.cursor import stored_position
from broker.pulsar.subscriptions.cursor_store import CursorStore
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.topic_names import TopicName
from broker.pulsar.topics.registry import TopicRegistry
from broker.storage.config import TopicInfo
from broker.storage.log.log import Log
from broker.storage.log_manager import LogManager


class Seen(NamedTuple):
    """Since when (Clock.monotonic(), s) a topic is inactive, and where the logs of its partitions end since then."""

    since: float
    ends: tuple[int, ...]


class InactiveTopics:
    def __init__(self, logs: LogManager, topics: TopicRegistry, store: CursorStore) -> None:
        self._logs = logs
        self._topics = topics
        self._store = store
        self._seen: dict[UUID, Seen] = {}  # the topics that were inactive at the last look, by their ids

    def look(self, info: TopicInfo, name: TopicName, when: DeleteWhen, now: float) -> Seen | None:
        """None: it is active now, or was so at the last look."""
        partitions = range(info.partitions)
        logs = [log for log in (self._logs.get(info.name, number) for number in partitions) if log is not None]
        names = [name.of_partition(number) for number in partitions] if self._topics.is_partitioned(info) else [name]
        seen = self._seen.pop(info.topic_id, None)
        if self._topics.record(name) is None or not all(map(partial(self._is_idle, when), names, logs)):
            return None
        ends = tuple(log.log_end_offset for log in logs)
        if seen is None or seen.ends != ends:
            self._seen[info.topic_id] = Seen(now, ends)
            return None
        self._seen[info.topic_id] = seen
        return seen

    def forget(self, info: TopicInfo) -> None:
        """It has been deleted."""
        self._seen.pop(info.topic_id, None)

    def _is_idle(self, when: DeleteWhen, name: TopicName, log: Log) -> bool:
        topic = self._topics.get(name)
        if topic is None:
            positions = [stored_position(state) for state in self._store.states(log.topic_id, log.partition)]
        else:
            with topic.lock:
                if topic.in_use:
                    return False
                subscriptions = list(topic.subscriptions.values())
            positions = [
                one.cursor.acknowledged_before for one in subscriptions if isinstance(one, Subscription) and one.durable
            ]
        if when is DeleteWhen.NO_SUBSCRIPTIONS:
            return not positions
        return all(position >= log.log_end_offset for position in positions)
