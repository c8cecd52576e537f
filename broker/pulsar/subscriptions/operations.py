"""What operators and the broker's upkeep do with a subscription: skip, expire, clear, reset, peek, and its figures.

Any thread; what blocks says so. Where an answer takes a read of the log, ``done`` gets it, on a reader's thread or at once. What
is changed is written within a second; ``Subscription.save`` waits for that.

Tests: tests/pulsar/subscriptions/test_operations.py.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs

from broker.pulsar.entry import Entry
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.cursor import Cursor
from broker.pulsar.subscriptions.dispatchers import NAMES
from broker.pulsar.subscriptions.locating import locate, offset_at
from broker.pulsar.subscriptions.subscription import Subscription

# Entries that a look at the backlog reads at a time.
_BATCH = 100

Done = Callable[[Exception | None], None]
Peeked = Callable[[Entry | Exception | None], None]


@attrs.frozen(kw_only=True)
class ConsumerFigures:
    of: ConnectedConsumer
    name: str
    address: str
    client_version: str
    since_ms: int
    permits: int
    unacked: int
    blocked: bool
    messages_out: int
    bytes_out: int
    redelivered: int
    metadata: Mapping[str, str]


@attrs.frozen(kw_only=True)
class SubscriptionFigures:
    name: str
    type: str  # as Pulsar calls it; "None" before the first consumer
    durable: bool
    backlog: int  # messages
    unacked: int
    expired: int  # messages, since the broker has started
    acknowledged_before: int  # the mark-delete position is before this offset
    read_offset: int
    ranges: int  # that are acknowledged beyond that
    properties: Mapping[str, str]
    active_consumer: str  # "" if there is none, or all of them are served
    consumers: Sequence[ConsumerFigures]


def figures(subscription: Subscription) -> SubscriptionFigures:
    """As of now. The lock is held for about a microsecond a consumer."""
    with subscription.lock:
        cursor, dispatcher = subscription.cursor, subscription.dispatcher
        consumers = [consumer_figures(connected) for connected in subscription.connected]
        active = getattr(dispatcher, "active", None)
        return SubscriptionFigures(
            name=subscription.name,
            type=NAMES.get(subscription.kind, "None"),
            durable=subscription.durable,
            backlog=cursor.backlog(max(subscription.topic.reader.end, cursor.acknowledged_before)),
            unacked=sum(one.unacked for one in consumers),
            expired=subscription.expired,
            acknowledged_before=cursor.acknowledged_before,
            read_offset=cursor.read_offset,
            ranges=cursor.acknowledged.range_count,
            properties=cursor.properties,
            active_consumer=active.name if active is not None else "",
            consumers=consumers,
        )


def consumer_figures(connected: ConnectedConsumer) -> ConsumerFigures:
    consumer, state = connected.consumer, connected.connection
    return ConsumerFigures(
        of=connected,
        name=consumer.name,
        address=state.connection.peer.host,
        client_version=state.client_version,
        since_ms=connected.since_ms,
        permits=consumer.permits,
        unacked=consumer.unacked,
        blocked=consumer.blocked,
        messages_out=connected.messages_out,
        bytes_out=connected.bytes_out,
        redelivered=connected.redelivered,
        metadata=connected.metadata,
    )


def clear(subscription: Subscription) -> None:
    """Acknowledge everything that is there."""
    subscription.acknowledge_until(None, subscription.topic.reader.end)


def skip(subscription: Subscription, messages: int, done: Done) -> None:
    """Acknowledge the oldest messages; of a batch all, if one of them is among these."""
    with subscription.lock:
        target = _nth_unacknowledged(subscription.cursor, messages, subscription.topic.reader.end)
    locate(subscription.topic, target, partial(_skip_to, subscription, target, done))


def _nth_unacknowledged(cursor: Cursor, messages: int, end: int) -> int:
    """The offset before which there are so many that are not acknowledged."""
    offset = cursor.acknowledged_before
    for first, following in cursor.acknowledged.ranges:
        if messages <= first - offset:
            break
        messages -= first - offset
        offset = following
    return min(offset + max(0, messages), end)


def _skip_to(subscription: Subscription, target: int, done: Done, found: Entry | Exception | None) -> None:
    if isinstance(found, Exception):
        done(found)
        return
    if found is not None and found.offset < target:
        target = found.offset + found.messages
    subscription.acknowledge_until(None, target)
    done(None)


def expire(subscription: Subscription, before_ms: int) -> int:
    """Acknowledge the messages that were published before this time (ms since the epoch). How many that were. Blocks."""
    offset = offset_at(subscription.topic, before_ms)
    with subscription.lock:
        cursor = subscription.cursor
        if offset <= cursor.acknowledged_before:
            return 0
        expired = cursor.backlog(subscription.topic.reader.end)
    subscription.acknowledge_until(None, offset)
    with subscription.lock:
        expired -= cursor.backlog(subscription.topic.reader.end)
        expired = max(0, expired)
        subscription.expired += expired
    return expired


def reset_to_time(subscription: Subscription, time_ms: int, done: Done) -> None:
    """Go on at the first message that was published at this time or later. Blocks; then ``done``."""
    reset_to_offset(subscription, offset_at(subscription.topic, time_ms), done)


def reset_to_offset(subscription: Subscription, offset: int, done: Done) -> None:
    """Go on at the entry that covers the offset; the consumers subscribe again."""
    locate(subscription.topic, offset, partial(_reset_to, subscription, offset, done))


def _reset_to(subscription: Subscription, offset: int, done: Done, found: Entry | Exception | None) -> None:
    if isinstance(found, Exception):
        done(found)
        return
    subscription.reset(offset if found is None else min(offset, found.offset))
    subscription.save(done)


def peek(subscription: Subscription, position: int, done: Peeked) -> None:
    """The entry at this position of the backlog, from 1. None: the backlog is shorter."""
    _Peek(subscription, position, done).start()


class _Peek:
    def __init__(self, subscription: Subscription, position: int, done: Peeked) -> None:
        self._subscription = subscription
        self._left = position
        self._done = done
        self._offset = subscription.cursor.acknowledged_before

    def start(self) -> None:
        topic = self._subscription.topic
        with self._subscription.lock:
            self._offset = self._subscription.cursor.next_unacknowledged(self._offset)
        if self._offset >= topic.reader.end:
            self._done(None)
        else:
            topic.reader.read_later(self._offset, _BATCH, 1024 * 1024, self._read)

    def _read(self, result: Sequence[Entry] | Exception) -> None:
        """On a reader's thread."""
        if isinstance(result, Exception) or not result:
            self._done(result if isinstance(result, Exception) else None)
            return
        with self._subscription.lock:
            unacknowledged = [one for one in result if not self._subscription.cursor.is_acknowledged(one.last)]
        if self._left <= len(unacknowledged):
            self._done(unacknowledged[max(0, self._left - 1)])
            return
        self._left -= len(unacknowledged)
        self._offset = result[-1].last + 1
        self.start()
