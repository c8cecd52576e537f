"""Operations on a subscription by operators and the broker's upkeep: skip, expire, clear, reset, peek, analyze, figures.

Any thread; functions that block say so. Where the log must be read, ``done`` gets the result, on a reader's thread or at once.
Changes are written within a second; ``Saving.save`` waits for that.

Tests: tests/pulsar/subscriptions/test_operations.py.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs

from broker.pulsar.dispatch.dispatcher import NAMES
from broker.pulsar.entry import Entry
from broker.pulsar.refusals import NotAllowed
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.cursor import Cursor
from broker.pulsar.subscriptions.locating import locate, offset_at
from broker.pulsar.subscriptions.subscription import Subscription

# Entries that a scan of the backlog reads at a time.
_BATCH = 100
# Bytes of entries that a scan reads at most: some 100 ms of a disk.
_SCAN_MAX: Final = 256 * 1024 * 1024
# Entries that ``analyze`` counts at most: Pulsar's subscriptionBacklogScanMaxEntries.
ANALYZED_MAX: Final = 10_000

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
    type: str  # its name in Pulsar; "None" before the first consumer
    durable: bool
    backlog: int  # messages
    unacked: int
    expired: int  # messages, since the broker has started
    acknowledged_before: int  # the mark-delete position is before this offset
    read_offset: int
    ranges: int  # acknowledged ranges from that offset on
    properties: Mapping[str, str]
    active_consumer: str  # "" if there is none, or all consumers are served
    blocked: bool  # no new messages are sent, because too many are unacknowledged
    delayed: int  # entries that are not due yet
    consumers: Sequence[ConsumerFigures]


def figures(subscription: Subscription) -> SubscriptionFigures:
    """The present figures. The lock is held for about a microsecond a consumer."""
    with subscription.lock:
        cursor, dispatcher = subscription.cursor, subscription.dispatcher
        consumers = [consumer_figures(connected) for connected in subscription.connected]
        active, in_flight = getattr(dispatcher, "active", None), getattr(dispatcher, "in_flight", None)
        return SubscriptionFigures(
            name=subscription.name,
            type=NAMES.get(subscription.kind, "None"),
            durable=subscription.durable,
            backlog=cursor.backlog(max(subscription.topic.reader.end, cursor.acknowledged_before)),
            unacked=sum(consumer.unacked for consumer in consumers),
            expired=subscription.expired,
            acknowledged_before=cursor.acknowledged_before,
            read_offset=cursor.read_offset,
            ranges=cursor.acknowledged.range_count,
            properties=cursor.properties,
            active_consumer=active.name if active is not None else "",
            blocked=in_flight is not None and in_flight.blocked,
            delayed=getattr(dispatcher, "delayed", 0),
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
    """Acknowledge all messages of the topic."""
    subscription.acknowledgements.add_until(None, subscription.topic.reader.end)


def skip(subscription: Subscription, messages: int, done: Done) -> None:
    """Acknowledge the oldest ``messages`` messages, rounded up to whole batches."""
    with subscription.lock:
        target = _nth_unacknowledged(subscription.cursor, messages, subscription.topic.reader.end)
    locate(subscription.topic, target, partial(_skip_to, subscription, target, done))


def _nth_unacknowledged(cursor: Cursor, messages: int, end: int) -> int:
    """The offset before which ``messages`` messages are not acknowledged."""
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
    subscription.acknowledgements.add_until(None, target)
    done(None)


def expire(subscription: Subscription, before_ms: int) -> int:
    """Acknowledge the messages published before this time (ms since the epoch), and return their number. Blocks."""
    offset = offset_at(subscription.topic, before_ms)
    with subscription.lock:
        cursor = subscription.cursor
        if offset <= cursor.acknowledged_before:
            return 0
        expired = cursor.backlog(subscription.topic.reader.end)
    subscription.acknowledgements.add_until(None, offset)
    with subscription.lock:
        expired -= cursor.backlog(subscription.topic.reader.end)
        expired = max(0, expired)
        subscription.expired += expired
    return expired


def reset_to_time(subscription: Subscription, time_ms: int, done: Done) -> None:
    """Continue at the first message published at this time or later. Blocks, then calls ``done`` when it is saved."""
    reset_to_offset(subscription, offset_at(subscription.topic, time_ms), done)


def reset_to_offset(subscription: Subscription, offset: int, done: Done) -> None:
    """Continue at the entry that covers the offset; the consumers subscribe again."""
    locate(subscription.topic, offset, partial(_reset_to, subscription, offset, done))


def _reset_to(subscription: Subscription, offset: int, done: Done, found: Entry | Exception | None) -> None:
    if isinstance(found, Exception):
        done(found)
        return
    subscription.reset(offset if found is None else min(offset, found.offset))
    subscription.saving.save(done)


def peek(subscription: Subscription, position: int, done: Peeked) -> None:
    """The entry at this position of the backlog, from 1. None: the backlog is shorter."""
    left = position

    def see(entries: Sequence[Entry]) -> bool:
        nonlocal left
        if left <= len(entries):
            done(entries[max(0, left - 1)])
            return False
        left -= len(entries)
        return True

    _Scan(subscription, subscription.cursor.acknowledged_before, see, done).start()


@attrs.define
class BacklogFound:
    """The counts of unacknowledged entries and messages. ``aborted``: there may be more."""

    entries: int = 0
    messages: int = 0
    first: int = -1  # offset of the first entry, -1 if there is none
    last: int = -1
    aborted: bool = False


def analyze(subscription: Subscription, start: int, done: Callable[[BacklogFound | Exception], None]) -> None:
    """Count the unacknowledged entries from this offset on, up to ``ANALYZED_MAX``."""
    result = BacklogFound()

    def see(entries: Sequence[Entry]) -> bool:
        entries = entries[: ANALYZED_MAX - result.entries]
        if entries and result.first < 0:
            result.first = entries[0].offset
        with subscription.lock:
            result.messages += sum(subscription.cursor.remaining(entry.offset, entry.messages) for entry in entries)
        result.entries += len(entries)
        result.last = entries[-1].offset if entries else result.last
        result.aborted = result.entries == ANALYZED_MAX
        if result.aborted:
            done(result)
        return not result.aborted

    def ended(error: Exception | None) -> None:
        if isinstance(error, TooFar):
            result.aborted, error = True, None
        done(error or result)

    _Scan(subscription, max(start, subscription.cursor.acknowledged_before), see, ended).start()


class TooFar(NotAllowed):
    """A scan of the backlog would read too much."""


class _Scan:
    """Reads the backlog from an offset on, and calls ``see`` with the unacknowledged entries until it returns False. ``ended`` is
    called at the end of the backlog, or with an error."""

    def __init__(
        self,
        subscription: Subscription,
        start: int,
        see: Callable[[Sequence[Entry]], bool],
        ended: Callable[[Any], None],
    ) -> None:
        self._subscription = subscription
        self._offset = start
        self._see = see
        self._ended = ended
        self._bytes = 0

    def start(self) -> None:
        topic = self._subscription.topic
        with self._subscription.lock:
            self._offset = self._subscription.cursor.next_unacknowledged(self._offset)
        if self._offset >= topic.reader.end:
            self._ended(None)
        elif self._bytes > _SCAN_MAX:
            self._ended(TooFar(f"This would take reading more than {_SCAN_MAX} bytes of the backlog."))
        else:
            topic.reader.read_later(self._offset, _BATCH, 1024 * 1024, self._read)

    def _read(self, result: Sequence[Entry] | Exception) -> None:
        """On a reader's thread."""
        if isinstance(result, Exception) or not result:
            self._ended(result if isinstance(result, Exception) else None)
            return
        self._bytes += sum(entry.size for entry in result)
        with self._subscription.lock:
            unacknowledged = [entry for entry in result if not self._subscription.cursor.is_acknowledged(entry.last)]
        if self._see(unacknowledged):
            self._offset = result[-1].last + 1
            self.start()
