"""Periodic work on topics (``Upkeep``): expires messages, enforces backlog quotas, deletes unused subscriptions, compacts topics
and deletes unused topics.

The thread ``pulsar-upkeep`` owns the state of ``Upkeep`` and may block. It handles a single topic in each step, so that it stops
soon when asked to. If a duty fails for a topic, the failure is logged, and the next run tries again. All duties except the
deletion of inactive topics load the topics to which they apply. Expiry and quotas apply only to topics with durable
subscriptions.

| duty | interval | for |
|---|---|---|
| expire messages | pulsar_message_expiry_check_interval_ms | topics with a message TTL |
| enforce backlog quotas | pulsar_backlog_quota_check_interval_ms | topics with a quota |
| compact topics | pulsar_backlog_quota_check_interval_ms | topics with a compaction threshold |
| expire subscriptions | pulsar_message_expiry_check_interval_ms | topics with a subscription expiration time |
| delete inactive topics | pulsar_backlog_quota_check_interval_ms | topics with a policy for inactive topics |

``InactiveTopics`` notes since when topics have been inactive. A topic is inactive while none of its partitions has producers or
consumers of Pulsar's clients, nothing is appended to it, and it has no subscriptions or, in the policy's other mode, none with a
backlog. It is not loaded for this check. A topic that only Kafka's clients have used is never inactive, and a Kafka consumer does
not keep a topic active. Upkeep thread; ``forget`` may be called by any thread.

Of several nodes, each takes care of the partitions that it has, and only a topic whose partitions are all on one node is deleted
when it is inactive.

The functions for backlog quotas may be called by any thread. ``exceeded`` does not block if there is no limit of time; ``evict``
blocks. The size of a backlog is an estimate that needs no reading: the bytes of the segments after the oldest offset that a
durable subscription has not acknowledged, and the part of the segment with this offset that follows it, in proportion to offsets.

| policy | over the quota |
|---|---|
| producer_request_hold | producers are closed, and refused until the backlog is below the quota; clients wait and try again |
| producer_exception | the same, but clients report the error to the application |
| consumer_backlog_eviction | subscriptions too far behind move forward until their backlog is nine tenths of the quota |
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple
from uuid import UUID

import attrs

from broker.errors import Refusal, StorageError
from broker.log import EventLimit, get_logger
from broker.pulsar.compaction.compactions import Compactions
from broker.pulsar.entry import Entry
from broker.pulsar.policies.policies import BacklogQuota, DeleteWhen, Policies, WhenFull
from broker.pulsar.policies.store import PolicyStore
from broker.pulsar.refusals import ProducerBlocked, ProducerBlockedForGood
from broker.pulsar.subscriptions.cursor import stored_position
from broker.pulsar.subscriptions.cursor_store import CursorStore
from broker.pulsar.subscriptions.locating import locate, offset_at
from broker.pulsar.subscriptions.operations import expire
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.subscriptions.subscriptions import Subscriptions
from broker.pulsar.topic_names import TopicName, pulsar_name
from broker.pulsar.topics.registry import TopicRegistry
from broker.pulsar.topics.topic import Topic
from broker.runtime.clock import Clock
from broker.runtime.threads import Event
from broker.storage.config import TopicInfo
from broker.storage.log.log import Log
from broker.storage.log_manager import LogManager

# An eviction reduces the backlog to this share of the quota, as in Pulsar: otherwise the next message would exceed it again.
_LEFT = 0.9


def durable_subscriptions(topic: Topic) -> Sequence[Subscription]:
    with topic.lock:
        return [each for each in topic.subscriptions.values() if isinstance(each, Subscription) and each.durable]


def bytes_from(log: Log, offset: int) -> int:
    """An estimate of the bytes of the log from this offset on."""
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
    """An estimate of the first offset from which the log has no more than ``size`` bytes."""
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
    positions = [subscription.cursor.acknowledged_before for subscription in durable_subscriptions(topic)]
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
    """Enforces the quotas of loaded topics."""

    def __init__(self) -> None:
        self._events = EventLimit()

    def enforce(self, topic: Topic, quota: BacklogQuota | None, now_ms: int, now_s: float) -> bool:
        """True if the topic was over its quota. Blocks."""
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
    """Close all producers. Their clients connect again, and are refused as long as the quota is exceeded."""
    with topic.lock:
        producers = list(topic.producers)
    for producer in producers:
        producer.close()
        with topic.lock:
            promoted = topic.producers.remove(producer)
        if promoted is not None:
            promoted.promoted()  # it waited to be the exclusive producer; the next check closes it, too


def evict(topic: Topic, quota: BacklogQuota, now_ms: int) -> None:
    """Move the subscriptions that are too far behind forward to an offset that the quota allows."""
    target = topic.log.log_start_offset
    if quota.limit_bytes >= 0:
        target = max(target, offset_with(topic.log, int(quota.limit_bytes * _LEFT)))
    if quota.limit_s >= 0:
        target = max(target, offset_at(topic, now_ms - quota.limit_s * 1000))
    target = min(target, topic.reader.end)
    behind = [
        subscription
        for subscription in durable_subscriptions(topic)
        if subscription.cursor.acknowledged_before < target
    ]
    if behind:
        locate(topic, target, partial(_evict_to, behind, target))


def _evict_to(behind: Sequence[Subscription], target: int, found: Entry | Exception | None) -> None:
    """``found``: the entry that covers the target offset; nothing of it is acknowledged."""
    if isinstance(found, Exception):
        return  # the next check tries again
    if found is not None:
        target = min(target, found.offset)
    for subscription in behind:
        subscription.acknowledgements.add_until(None, target)


class Seen(NamedTuple):
    """Since when (Clock.monotonic(), s) a topic has been inactive, and the end offsets of its partitions' logs since then."""

    since: float
    ends: tuple[int, ...]


class InactiveTopics:
    def __init__(self, logs: LogManager, topics: TopicRegistry, store: CursorStore) -> None:
        self._logs = logs
        self._topics = topics
        self._store = store
        self._seen: dict[UUID, Seen] = {}  # topics that were inactive at the last look, by id

    def look(self, info: TopicInfo, name: TopicName, when: DeleteWhen, now: float) -> Seen | None:
        """Check the topic. Returns None if it is active now or was active at the last look."""
        partitions = range(info.partitions)
        logs = [log for log in (self._logs.get(info.name, number) for number in partitions) if log is not None]
        if len(logs) < info.partitions:  # another node has some: nobody knows whether the topic is used
            return None
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
        """The topic has been deleted."""
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
                each.cursor.acknowledged_before
                for each in subscriptions
                if isinstance(each, Subscription) and each.durable
            ]
        if when is DeleteWhen.NO_SUBSCRIPTIONS:
            return not positions
        return all(position >= log.log_end_offset for position in positions)


log = get_logger("pulsar")


class Duty(NamedTuple):
    name: str
    interval_s: float
    applies: Callable[[Policies], object]  # true if it applies to a topic with these policies
    run: Callable[[TopicName, Policies], None]
    without_subscriptions: bool = False  # also applies to topics without durable subscriptions
    whole: bool = False  # runs once for a partitioned topic, not for each partition


@attrs.define
class _Scheduled:
    duty: Duty
    due: float


class Upkeep:
    def __init__(
        self,
        logs: LogManager,
        topics: TopicRegistry,
        subscriptions: Subscriptions,
        policies: PolicyStore,
        compactions: Compactions,
        clock: Clock,
        *,
        expiry_interval_s: float,
        quota_interval_s: float,
    ) -> None:
        self._logs = logs
        self._topics = topics
        self._subscriptions = subscriptions
        self._policies = policies
        self._compactions = compactions
        self._clock = clock
        self._quotas = BacklogQuotas()
        self._event = Event()
        self._work: deque[tuple[Duty, TopicName]] = deque()
        self._failures = EventLimit()
        self._scheduled: list[_Scheduled] = []
        # When a subscription was first seen without consumers (monotonic, s), by topic id, partition and name.
        self._unused_since: dict[object, float] = {}
        self.inactive = InactiveTopics(logs, topics, subscriptions.store)
        using = self._using
        self.add(
            Duty("expire_messages", expiry_interval_s, lambda each: each.message_ttl_s, using(self._expire_messages))
        )
        self.add(Duty("enforce_backlog_quota", quota_interval_s, _has_quota, using(self._enforce_quota)))
        expire = using(self._expire_subscriptions)
        self.add(
            Duty("expire_subscriptions", expiry_interval_s, lambda each: each.subscription_expiration_minutes, expire)
        )
        self.add(
            Duty(
                "compact_topics",
                quota_interval_s,
                lambda each: each.compaction_threshold_bytes,
                using(self._compact_if_large),
                without_subscriptions=True,
            )
        )
        self.add(
            Duty(
                "delete_inactive_topics",
                quota_interval_s,
                lambda each: each.inactivity is not None and each.inactivity.delete,
                self._delete_if_inactive,
                without_subscriptions=True,
                whole=True,
            )
        )

    def add(self, duty: Duty) -> None:
        """Call it before the thread starts."""
        self._scheduled.append(_Scheduled(duty, self._clock.monotonic() + duty.interval_s))

    def wakeup(self) -> None:
        self._event.set()

    def step(self, timeout: float | None) -> bool:
        now = self._clock.monotonic()
        if self._work:
            self._run(*self._work.popleft())
            return True
        for scheduled in self._scheduled:
            if scheduled.due <= now:
                scheduled.due = now + scheduled.duty.interval_s
                self._work.extend((scheduled.duty, name) for name in self._names(scheduled.duty))
        if self._work or self._compactions.step():
            return True
        wait_s = max(0.0, min(scheduled.due for scheduled in self._scheduled) - now)
        self._event.wait(wait_s if timeout is None else min(wait_s, timeout))
        self._event.clear()
        return False

    def run_now(self, name: str) -> None:
        """Run this duty for all topics, on the calling thread."""
        for scheduled in self._scheduled:
            if scheduled.duty.name == name:
                for topic in self._names(scheduled.duty):
                    self._run(scheduled.duty, topic)

    def _names(self, duty: Duty) -> list[TopicName]:
        """The topics to which the duty applies."""
        names = []
        with_cursors = self._subscriptions.store.topics()
        for info in self._logs.topics():
            if info.topic_id not in with_cursors and not duty.without_subscriptions:
                continue
            name = pulsar_name(info.name)
            if duty.applies(self._policies.of(name.namespace, info.topic_id)):
                if self._topics.is_partitioned(info) and not duty.whole:
                    names += [name.of_partition(number) for number in range(info.partitions)]
                else:
                    names.append(name)
        return names

    def _run(self, duty: Duty, name: TopicName) -> None:
        try:
            info = self._topics.info(name)
            if info is not None:
                duty.run(name, self._policies.of(name.namespace, info.topic_id))
        except Refusal:
            pass  # the topic was deleted meanwhile
        except StorageError as error:
            left_out = self._failures.take(self._clock.monotonic())
            if left_out is not None:
                log.error("upkeep_failed", duty=duty.name, topic=str(name), error=str(error), left_out=left_out)

    def _using(self, run: Callable[[Topic, Policies], None]) -> Callable[[TopicName, Policies], None]:
        """Wrap a duty that needs the topic loaded."""
        return lambda name, policies: run(self._topics.get_or_create(name, create=False), policies)

    def _expire_messages(self, topic: Topic, policies: Policies) -> None:
        before_ms = self._clock.time_ms() - (policies.message_ttl_s or 0) * 1000
        for subscription in durable_subscriptions(topic):
            expire(subscription, before_ms)

    def _enforce_quota(self, topic: Topic, policies: Policies) -> None:
        self._quotas.enforce(topic, policies.backlog_quota, self._clock.time_ms(), self._clock.monotonic())

    def compact(self, topic: Topic) -> bool:
        """Request a compaction. False if the topic is being compacted or waits for it. Any thread."""
        requested = self._compactions.request(topic.log)
        self.wakeup()
        return requested

    def _compact_if_large(self, topic: Topic, policies: Policies) -> None:
        file = self._compactions.file(topic.log)
        since = topic.log.log_start_offset if file is None else file.horizon
        if bytes_from(topic.log, since) > (policies.compaction_threshold_bytes or 0):
            self._compactions.request(topic.log)

    def _expire_subscriptions(self, topic: Topic, policies: Policies) -> None:
        now = self._clock.monotonic()
        limit_s = (policies.subscription_expiration_minutes or 0) * 60
        for subscription in durable_subscriptions(topic):
            if subscription.has_consumers:
                self._unused_since.pop(subscription.saving.key, None)
            elif now - self._unused_since.setdefault(subscription.saving.key, now) >= limit_s:
                del self._unused_since[subscription.saving.key]
                log.info("subscription_expired", topic=str(topic.name), subscription=subscription.name)
                self._subscriptions.remove(subscription, lambda error: None)

    def _delete_if_inactive(self, name: TopicName, policies: Policies) -> None:
        inactivity, info = policies.inactivity, self._topics.info(name)
        if inactivity is None or info is None:
            return
        now = self._clock.monotonic()
        seen = self.inactive.look(info, name, inactivity.when, now)
        if seen is not None and now - seen.since >= inactivity.after_s and self._topics.delete_unused(info, seen.ends):
            log.info("inactive_topic_deleted", topic=str(name))


def _has_quota(policies: Policies) -> bool:
    quota = policies.backlog_quota
    return quota is not None and (quota.limit_bytes >= 0 or quota.limit_s >= 0)
