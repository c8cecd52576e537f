"""Statistics of topics (``Stats``), and the rates in them (``Rates``).

A topic's rates are those of its connected producers and consumers; its counters are those of its log since it was created.

``Rates`` derives a rate from samples of counters: it is the average of the last 10 to 20 s or, before there are two samples, the
average since the producer or consumer connected. The first request for statistics starts the sampling, and it stops when there
was none for ``_ASKED_S``, so unused statistics cost nothing. The waker's thread takes the samples, a topic at a time. Any thread
may call. The lock guards the samples and is held for moments.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from broker.pulsar.admin.calls import (
    each_part,
    json_object,
    loaded,
    offset_of,
    parse_message_id,
    require_existing,
    require_topic,
    route,
    topic_name,
)
from broker.pulsar.context import PulsarContext
from broker.pulsar.nonpersistent.subscription import NonPersistentSubscription
from broker.pulsar.nonpersistent.topic import NonPersistentTopic
from broker.pulsar.producers.producer import Producer
from broker.pulsar.producers.producers import Access
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.operations import ConsumerFigures, figures
from broker.pulsar.subscriptions.subscription import Subscription
from broker.pulsar.topic_names import TopicName
from broker.pulsar.topics.topic import AnyTopic, Topic
from broker.runtime.threads import Lock
from broker.security.acl import Operation
from broker.web.routes import Answer, Call, Route, json_answer

S = TypeVar("S")

_INTERVAL_S: Final = 10.0
# How long (s) sampling goes on after the last request for statistics.
_ASKED_S: Final = 300.0
# The shortest time (s) over which a rate is computed, because the counters of a client that has just connected are not typical.
_SHORTEST_S: Final = 1.0

Counted = Producer | ConnectedConsumer | NonPersistentSubscription
Counts = Sequence[int]


class _Sample(NamedTuple):
    at_ms: int  # wall clock
    counts: Counts


def counts_of(one: Counted) -> Counts:
    """Messages and bytes; for a consumer also redelivered messages, for a non-persistent subscription dropped messages."""
    if isinstance(one, Producer):
        return one.messages_in, one.bytes_in
    if isinstance(one, ConnectedConsumer):
        return one.messages_out, one.bytes_out, one.redelivered
    return one.messages_out, one.bytes_out, one.dropped


class Rates:
    def __init__(self, context: PulsarContext) -> None:
        self._context = context
        self._line = context.subscriptions.waker.line()
        self._lock = Lock()
        # The last sample but one, or None, and the last sample.
        self._samples: WeakKeyDictionary[Counted, tuple[_Sample | None, _Sample]] = WeakKeyDictionary()
        self._asked_at = 0.0
        self._sampling = False

    def of(self, one: Counted, since_ms: int) -> Sequence[float]:
        """The growth per second of each of its counts. ``since_ms``: when it began to count (wall clock)."""
        self._ask()
        counts = counts_of(one)
        with self._lock:
            samples = self._samples.get(one)
        before = (samples and samples[0]) or _Sample(since_ms, (0,) * len(counts))
        passed_s = max(_SHORTEST_S, (self._context.clock.time_ms() - before.at_ms) / 1000)
        return [(count - old) / passed_s for count, old in zip(counts, before.counts, strict=True)]

    def _ask(self) -> None:
        with self._lock:
            self._asked_at = self._context.clock.monotonic()
            if self._sampling:
                return
            self._sampling = True
        self._line.call(self._sample)

    def _sample_later(self) -> None:
        at = self._context.clock.monotonic() + _INTERVAL_S
        self._context.timer.at(at, partial(self._line.call, self._sample))

    def _sample(self) -> None:
        """On the waker's thread."""
        with self._lock:
            if self._context.clock.monotonic() - self._asked_at > _ASKED_S:
                self._sampling = False
                self._samples.clear()
                return
        topics: list[Topic | NonPersistentTopic] = [*self._context.topics.loaded()]
        topics += self._context.nonpersistent.loaded()
        for topic in topics:
            self._line.call(partial(self._sample_topic, topic))
        self._line.call(self._sample_later)

    def _sample_topic(self, topic: Topic | NonPersistentTopic) -> None:
        with topic.lock:
            producers, subscriptions = list(topic.producers), list(topic.subscriptions.values())
        now_ms = self._context.clock.time_ms()
        for producer in producers:
            if isinstance(producer, Producer):
                self._add(producer, now_ms)
        for subscription in subscriptions:
            if isinstance(subscription, NonPersistentSubscription):
                self._add(subscription, now_ms)
            if isinstance(subscription, Subscription | NonPersistentSubscription):
                with subscription.lock:
                    consumers: list[ConnectedConsumer] = list(subscription.connected)
                for consumer in consumers:
                    self._add(consumer, now_ms)

    def _add(self, one: Counted, now_ms: int) -> None:
        sample = _Sample(now_ms, counts_of(one))
        with self._lock:
            before = self._samples.get(one)
            self._samples[one] = (before and before[1], sample)


TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_ACCESS = {
    Access.SHARED: "Shared",
    Access.EXCLUSIVE: "Exclusive",
    Access.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    Access.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}
_TOPIC_COUNTERS = ("msgInCounter", "bytesInCounter", "msgOutCounter", "bytesOutCounter", "storageSize", "backlogSize")
_SUBSCRIPTION_COUNTERS = (
    "msgRateOut",
    "msgThroughputOut",
    "msgRateRedeliver",
    "msgBacklog",
    "msgBacklogNoDelayed",
    "backlogSize",
    "unackedMessages",
    "msgOutCounter",
    "bytesOutCounter",
    "totalMsgExpired",
    "nonContiguousDeletedMessagesRanges",
)
# Ranges of acknowledged messages that are shown for a cursor.
_RANGES_SHOWN = 1000


class Stats:
    def __init__(self, context: PulsarContext, rates: Rates) -> None:
        self._context = context
        self._rates = rates

    def routes(self) -> list[Route]:
        return [
            route("GET", TOPIC + "/stats", self.stats),
            route("GET", TOPIC + "/partitioned-stats", self.partitioned),
            route("GET", TOPIC + "/internalStats", self.internal),
            route("GET", TOPIC + "/partitioned-internalStats", self.partitioned_internal),
            route("GET", TOPIC + "/internal-info", self.info),
            route("GET", TOPIC + "/backlogSize", self.backlog_size),
            route("PUT", TOPIC + "/backlogSize", self.size_from),
        ]

    def stats(self, call: Call) -> Answer:
        return json_answer(self._topic_stats(call, self._loaded(call)))

    def _topic_stats(self, call: Call, topic: Topic) -> dict[str, Any]:
        policies = self._context.policies.of(topic.name.namespace, topic.log.topic_id)
        return {
            **topic_stats(call, topic, self._rates),
            "deduplicationStatus": "Enabled" if policies.deduplication else "Disabled",
            "compaction": {"status": str(self._context.compactions.status(topic.log).state)},
        }

    def internal(self, call: Call) -> Answer:
        return json_answer(internal_stats(call, self._loaded(call)))

    def _loaded(self, call: Call) -> Topic:
        name = topic_name(call)
        require_topic(self._context, call, Operation.DESCRIBE, name)
        require_existing(self._context, name)
        return loaded(self._context, name)

    def partitioned(self, call: Call) -> Answer:
        of_parts = {str(name): self._topic_stats(call, loaded(self._context, name)) for name in self._parts(call)}
        total = summed([*of_parts.values()])
        total["metadata"] = {"partitions": len(of_parts), "deleted": False}
        total["partitions"] = of_parts if call.flag("perPartition", True) else {}
        return json_answer(total)

    def partitioned_internal(self, call: Call) -> Answer:
        of_parts = {str(name): internal_stats(call, loaded(self._context, name)) for name in self._parts(call)}
        return json_answer({"metadata": {"partitions": len(of_parts)}, "partitions": of_parts})

    def info(self, call: Call) -> Answer:
        """The topic's ledger and cursors in the form of Pulsar's managed ledgers, for each partition of a partitioned topic."""
        name = topic_name(call)
        parts = {str(part): _stored(call, loaded(self._context, part)) for part in self._parts(call)}
        if self._context.topics.partitions(name):
            return json_answer({"version": 0, "creationDate": "", "modificationDate": "", "partitions": parts})
        return json_answer(next(iter(parts.values())))

    def _parts(self, call: Call) -> list[TopicName]:
        name = topic_name(call)
        require_topic(self._context, call, Operation.DESCRIBE, name)
        return list(call.work.each(each_part(self._context, name)))

    def backlog_size(self, call: Call) -> Answer:
        topic = self._loaded(call)
        return json_answer(_backlog_bytes(topic, _oldest(topic)))

    def size_from(self, call: Call) -> Answer:
        """The backlog size from a message id on, as Java's client requests it."""
        topic = self._loaded(call)
        return json_answer(_backlog_bytes(topic, offset_of(topic, parse_message_id(json_object(call)))))


def topic_stats(call: Call, topic: Topic, rates: Rates) -> dict[str, Any]:
    log = topic.log
    shared = shared_stats(call, topic, Subscription, _subscription_stats, rates)
    return {
        **shared,
        "msgInCounter": log.log_end_offset,
        "bytesInCounter": log.size_bytes(),
        "storageSize": log.size_bytes(),
        "backlogSize": _backlog_bytes(topic, _oldest(topic)),
        "offloadedStorageSize": 0,
        "topicEpoch": topic.producers.epoch if topic.producers.epoch >= 0 else None,
        "nonContiguousDeletedMessagesRanges": sum(
            each["nonContiguousDeletedMessagesRanges"] for each in shared["subscriptions"].values()
        ),
        "topicCreationTimeStamp": 0,
    }


def shared_stats(
    call: Call, topic: AnyTopic, kind: type[S], stats_of: Callable[[S, Rates], dict[str, Any]], rates: Rates
) -> dict[str, Any]:
    """The members that topics of both domains have. ``kind``, ``stats_of``: of the topic's subscriptions."""
    with topic.lock:
        producers, producing = list(topic.producers), len(topic.producers)
        attached = list(topic.subscriptions.items())
    subscriptions = {name: stats_of(each, rates) for name, each in call.work.each(attached) if isinstance(each, kind)}
    publishers = [publisher_stats(producer, rates) for producer in call.work.each(producers[:producing])]
    return {
        **summed_rates(publishers, subscriptions.values()),
        "msgOutCounter": sum(each["msgOutCounter"] for each in subscriptions.values()),
        "bytesOutCounter": sum(each["bytesOutCounter"] for each in subscriptions.values()),
        "publishers": publishers,
        "waitingPublishers": len(producers) - producing,
        "subscriptions": subscriptions,
        "replication": {},
        "ownerBroker": "",
    }


def summed_rates(publishers: Iterable[dict[str, Any]], subscriptions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The rates of a topic: the sums over its publishers and its subscriptions."""
    publishers, subscriptions = list(publishers), list(subscriptions)
    messages = sum(each["msgRateIn"] for each in publishers)
    size = sum(each["msgThroughputIn"] for each in publishers)
    return {
        "msgRateIn": messages,
        "msgThroughputIn": size,
        "msgRateOut": sum(each["msgRateOut"] for each in subscriptions),
        "msgThroughputOut": sum(each["msgThroughputOut"] for each in subscriptions),
        "averageMsgSize": size / messages if messages else 0.0,
        "msgChunkPublished": False,
    }


def publisher_stats(producer: Any, rates: Rates) -> dict[str, Any]:
    connection = producer.connection
    messages, size = rates.of(producer, producer.since_ms)
    return {
        "msgRateIn": messages,
        "msgThroughputIn": size,
        "averageMsgSize": size / messages if messages else 0.0,
        "producerId": producer.id,
        "producerName": producer.name,
        "accessMode": _ACCESS[producer.access],
        "address": f"/{connection.peer.host}:{connection.peer.port}",
        "supportsPartialProducer": False,
    }


def _subscription_stats(subscription: Subscription, rates: Rates) -> dict[str, Any]:
    summary = figures(subscription)
    consumers = [consumer_stats(each, rates) for each in summary.consumers]
    return {
        "msgRateOut": sum(each["msgRateOut"] for each in consumers),
        "msgThroughputOut": sum(each["msgThroughputOut"] for each in consumers),
        "msgOutCounter": sum(each.messages_out for each in summary.consumers),
        "bytesOutCounter": sum(each.bytes_out for each in summary.consumers),
        "msgRateRedeliver": sum(each["msgRateRedeliver"] for each in consumers),
        "msgBacklog": summary.backlog,
        "msgBacklogNoDelayed": max(0, summary.backlog - summary.delayed),
        "backlogSize": _backlog_bytes(subscription.topic, summary.acknowledged_before),
        "msgDelayed": summary.delayed,
        "unackedMessages": summary.unacked,
        "blockedSubscriptionOnUnackedMsgs": summary.blocked,
        "type": summary.type,
        "activeConsumerName": summary.active_consumer or None,
        "totalMsgExpired": summary.expired,
        "consumers": consumers,
        "isDurable": summary.durable,
        "isReplicated": False,
        "subscriptionProperties": dict(summary.properties),
        "nonContiguousDeletedMessagesRanges": summary.ranges,
    }


def consumer_stats(of: ConsumerFigures, rates: Rates) -> dict[str, Any]:
    messages, size, again = rates.of(of.of, of.since_ms)
    return {
        "msgRateOut": messages,
        "msgThroughputOut": size,
        "msgOutCounter": of.messages_out,
        "bytesOutCounter": of.bytes_out,
        "msgRateRedeliver": again,
        "consumerName": of.name,
        "availablePermits": of.permits,
        "unackedMessages": of.unacked,
        "blockedConsumerOnUnackedMsgs": of.blocked,
        "address": f"/{of.address}",
        "connectedSince": str(of.since_ms),
        "clientVersion": of.client_version,
        "metadata": dict(of.metadata),
    }


def internal_stats(call: Call, topic: Topic) -> dict[str, Any]:
    log = topic.log
    messages = log.log_end_offset - log.log_start_offset
    with topic.lock:
        subscriptions = list(topic.subscriptions.values())
    return {
        "entriesAddedCounter": log.log_end_offset,
        "numberOfEntries": messages,
        "totalSize": log.size_bytes(),
        "currentLedgerEntries": messages,
        "currentLedgerSize": log.size_bytes(),
        "waitingCursorsCount": len(topic.tail),
        "pendingAddEntriesCount": 0,
        "lastConfirmedEntry": f"{topic.ledger}:{log.log_end_offset - 1}",
        "state": "Terminated" if topic.terminated else "LedgerOpened",
        "ledgers": [{"ledgerId": topic.ledger, "entries": messages, "size": log.size_bytes(), "offloaded": False}],
        "cursors": {
            subscription.name: _cursor_stats(topic, subscription)
            for subscription in call.work.each(subscriptions)
            if isinstance(subscription, Subscription)
        },
        "schemaLedgers": [],
        "compactedLedger": {"ledgerId": -1, "entries": -1, "size": -1, "offloaded": False, "underReplicated": False},
    }


def _stored(call: Call, topic: Topic) -> dict[str, Any]:
    log, ledger = topic.log, topic.ledger
    dates = {"version": 0, "creationDate": "", "modificationDate": ""}
    current = {"ledgerId": ledger, "entries": log.log_end_offset - log.log_start_offset, "size": log.size_bytes()}
    with topic.lock:
        durable = [each for each in topic.subscriptions.values() if isinstance(each, Subscription) and each.durable]
    cursors: dict[str, Any] = {}
    for subscription in call.work.each(durable):
        with subscription.lock:
            starts, ends = (list(bounds[:_RANGES_SHOWN]) for bounds in subscription.cursor.acknowledged.bounds())
            before = subscription.cursor.acknowledged_before
        cursors[subscription.name] = {
            **dates,
            "cursorsLedgerId": -1,
            "markDelete": {"ledgerId": ledger, "entryId": before - 1},
            "individualDeletedMessages": [
                {
                    "from": {"ledgerId": ledger, "entryId": start - 1},
                    "to": {"ledgerId": ledger, "entryId": end - 1},
                }
                for start, end in zip(starts, ends, strict=True)
            ],
        }
    ended = {"terminatedPosition": {"ledgerId": ledger, "entryId": log.log_end_offset - 1}} if topic.terminated else {}
    return {**dates, "ledgers": [{**current, "isOffloaded": False}], **ended, "cursors": cursors}


def _cursor_stats(topic: Topic, subscription: Subscription) -> dict[str, Any]:
    with subscription.lock:
        cursor = subscription.cursor
        starts, ends = (list(bounds[:_RANGES_SHOWN]) for bounds in cursor.acknowledged.bounds())
        before, read, total = cursor.acknowledged_before, cursor.read_offset, cursor.acknowledged.range_count
    ledger = topic.ledger
    # In Pulsar's notation: a range excludes its first position.
    ranges = ",".join(f"({ledger}:{start - 1}..{ledger}:{end - 1}]" for start, end in zip(starts, ends, strict=True))
    return {
        "markDeletePosition": f"{ledger}:{before - 1}",
        "readPosition": f"{ledger}:{read}",
        "waitingReadOp": False,
        "pendingReadOps": 0,
        "messagesConsumedCounter": before,
        "cursorLedger": -1,
        "cursorLedgerLastEntry": -1,
        "individuallyDeletedMessages": f"[{ranges}]",
        "totalNonContiguousDeletedMessagesRange": total,
        "lastLedgerSwitchTimestamp": "",
        "state": "Open",
        "active": subscription.has_consumers,
        "numberOfEntriesSinceFirstNotAckedMessage": max(0, topic.log.log_end_offset - before),
        "subscriptionHavePendingRead": False,
        "properties": {},
    }


def _oldest(topic: Topic) -> int:
    """The offset of the oldest message that a durable subscription has not acknowledged; without any, the end."""
    with topic.lock:
        return min(
            (
                subscription.cursor.acknowledged_before
                for subscription in topic.subscriptions.values()
                if isinstance(subscription, Subscription) and subscription.durable
            ),
            default=topic.log.log_end_offset,
        )


def _backlog_bytes(topic: Topic, offset: int) -> int:
    """An estimate: the bytes of the log in proportion to its offsets."""
    log = topic.log
    messages = log.log_end_offset - log.log_start_offset
    behind = min(max(0, log.log_end_offset - offset), messages)
    return log.size_bytes() * behind // messages if messages else 0


def summed(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """The statistics of a partitioned topic: sums of counters, and its subscriptions by name."""
    total: dict[str, Any] = {"publishers": [], "subscriptions": {}, "replication": {}}
    for part in parts:
        total["publishers"] += part["publishers"]
        for key in _TOPIC_COUNTERS:
            total[key] = total.get(key, 0) + part[key]
        for name, stats in part["subscriptions"].items():
            merged = total["subscriptions"].get(name)
            if merged is None:
                total["subscriptions"][name] = {**stats, "consumers": list(stats["consumers"])}
                continue
            merged["consumers"] += stats["consumers"]
            for key in _SUBSCRIPTION_COUNTERS:
                merged[key] += stats[key]
    return {**summed_rates(total["publishers"], total["subscriptions"].values()), **total}
