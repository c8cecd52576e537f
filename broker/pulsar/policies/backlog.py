"""How large the backlog of a topic is, and what happens when it is over its quota.

The size is an estimate, without reading: the bytes of the segments from the oldest offset that a durable subscription has not
acknowledged, and of the segment that this offset lies in, the share that follows it.

| policy | over the quota |
|---|---|
| producer_request_hold | producers are closed, and refused until it is below; clients wait and try again |
| producer_exception | the same, but clients tell the application |
| consumer_backlog_eviction | subscriptions that are too far behind go on where nine tenths of the quota are left |

Any thread. ``exceeded`` does not block if there is no limit of time; ``evict`` blocks.

Tests: tests/pulsar/policies/test_upkeep.py.
"""

from collections.abc import Sequence
from functools import partial

from broker.log import EventLimit, get_logger
from broker.pulsar.entry import Entry
from broker.pulsar.policies.policies import BacklogQuota, WhenFull
from broker.pulsar.refusals import ProducerBlocked, ProducerBlockedForGood
from broker.pulsar.subscriptions.locating import locate, offset_at
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.topics.topic import Topic
from broker.storage.log.log import Log

log = get_logger("pulsar")

# Of the quota, what an eviction leaves, as in Pulsar: otherwise the next message would be too much again.
_LEFT = 0.9


def durable_subscriptions(topic: Topic) -> Sequence[Subscription]:
    with topic.lock:
        return [one for one in topic.subscriptions.values() if isinstance(one, Subscription) and one.durable]


def bytes_from(log: Log, offset: int) -> int:
    """An estimate of the bytes of the records from this offset on."""
    segments = log.view.segments
    size = 0
    end = log.log_end_offset
    for segment in reversed(segments):
        if offset <= segment.base_offset:
            size += segment.size
        else:
            covered = end - segment.base_offset
            if covered > 0 and offset < end:
                size += segment.size * (end - offset) // covered
            break
        end = segment.base_offset
    return size


def offset_with(log: Log, size: int) -> int:
    """The first offset from which on there are no more than so many bytes; an estimate, too."""
    end = log.log_end_offset
    for segment in reversed(log.view.segments):
        if segment.size > size:
            return end - (end - segment.base_offset) * size // segment.size
        size -= segment.size
        end = segment.base_offset
    return end


def exceeded(topic: Topic, quota: BacklogQuota | None, now_ms: int) -> bool:
    """Whether the slowest durable subscription is further behind than the quota allows."""
    if quota is None or (quota.limit_bytes < 0 and quota.limit_s < 0):
        return False
    positions = [one.cursor.acknowledged_before for one in durable_subscriptions(topic)]
    if not positions or min(positions) >= topic.reader.end:
        return False
    slowest = max(min(positions), topic.log.log_start_offset)
    if 0 <= quota.limit_bytes < bytes_from(topic.log, slowest):
        return True
    return quota.limit_s >= 0 and offset_at(topic, now_ms - quota.limit_s * 1000) > slowest


def check_producer(topic: Topic, quota: BacklogQuota | None, now_ms: int) -> None:
    """Raises ProducerBlocked or ProducerBlockedForGood if the quota keeps producers out now."""
    if quota is None or quota.policy is WhenFull.EVICT or not exceeded(topic, quota, now_ms):
        return
    message = f"Cannot create producer on topic with backlog quota exceeded: {topic.name}"
    raise (ProducerBlocked if quota.policy is WhenFull.HOLD else ProducerBlockedForGood)(message)


class BacklogQuotas:
    """Sees to the quotas of topics that are in use."""

    def __init__(self) -> None:
        self._events = EventLimit()

    def enforce(self, topic: Topic, quota: BacklogQuota | None, now_ms: int, now_s: float) -> bool:
        """Whether the topic was over its quota. Blocks."""
        if quota is None or not exceeded(topic, quota, now_ms):
            return False
        left_out = self._events.take(now_s)
        if left_out is not None:
            log.warning("backlog_quota_exceeded", topic=str(topic.name), policy=str(quota.policy), left_out=left_out)
        if quota.policy is WhenFull.EVICT:
            evict(topic, quota, now_ms)
        else:
            close_producers(topic)
        return True


def close_producers(topic: Topic) -> None:
    """Their clients connect again, and are refused as long as the quota is exceeded."""
    with topic.lock:
        producers = list(topic.producers)
    for producer in producers:
        producer.close()
        with topic.lock:
            promoted = topic.producers.remove(producer)
        if promoted is not None:
            promoted.promoted()  # it has waited for this place; the next check closes it, too


def evict(topic: Topic, quota: BacklogQuota, now_ms: int) -> None:
    """Move the subscriptions that are too far behind to where the quota allows them to be."""
    target = topic.log.log_start_offset
    if quota.limit_bytes >= 0:
        target = max(target, offset_with(topic.log, int(quota.limit_bytes * _LEFT)))
    if quota.limit_s >= 0:
        target = max(target, offset_at(topic, now_ms - quota.limit_s * 1000))
    target = min(target, topic.reader.end)
    behind = [one for one in durable_subscriptions(topic) if one.cursor.acknowledged_before < target]
    if behind:
        locate(topic, target, partial(_evict_to, behind, target))


def _evict_to(behind: Sequence[Subscription], target: int, found: Entry | Exception | None) -> None:
    """``found``: the entry that covers the target, of which nothing is acknowledged then."""
    if isinstance(found, Exception):
        return  # the next check tries again
    if found is not None:
        target = min(target, found.offset)
    for subscription in behind:
        subscription.acknowledge_until(None, target)
