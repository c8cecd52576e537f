"""What operators and the broker's upkeep do with a subscription: skip, expire, clear, reset, peek, analyze, and its figures.

Any thread; what blocks says so. Where an answer takes a read of the log, ``done`` gets it, on a reader's thread or at once. What
is changed is written within a second; ``Subscription.save`` waits for that.

Tests: tests/pulsar/subscriptions/test_operations.py.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs

from broker.pulsar.entry import Entry
from broker.pulsar.refusals import NotAllowed
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.cursor import Cursor
from broker.pulsar.subscriptions.dispatchers import NAMES
from broker.pulsar.subscriptions.locating import locate, offset_at
from broker.pulsar.subscriptions.subscription import Subscription

# Entries that a look at the backlog reads at a time.
_BATCH = 100
# Bytes of entries that one look reads: some 100 ms of a disk.
_SCAN_MAX: Final = 256 * 1024 * 1024
# Entries that are counted: Pulsar's subscriptionBacklogScanMaxEntries.
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
    blocked: bool  # so many of its messages are unacknowledged that it gets no new ones
    delayed: int  # entries whose time has not come
    consumers: Sequence[ConsumerFigures]


def figures(subscription: Subscription) -> SubscriptionFigures:
    """As of now. The lock is held for about a microsecond a consumer."""
    with subscription.lock:
        cursor, dispatcher = subscription.cursor, subscription.dispatcher
        consumers = [consumer_figures(connected) for connected in subscription.connected]
        active, in_flight = getattr(dispatcher, "active", None), getattr(dispatcher, "in_flight", None)
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
    """Acknowledge everything that is there."""
    subscription.acknowledgements.add_until(None, subscription.topic.reader.end)


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
    subscription.acknowledgements.add_until(None, target)
    done(None)


def expire(subscription: Subscription, before_ms: int) -> int:
    """Acknowledge the messages that were published before this time (ms since the epoch). How many that were. Blocks."""
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
    """What a look at the entries that are not acknowledged has counted. ``aborted``: there may
    be more."""

    entries: int = 0
    messages: int = 0
    first: int = -1  # offset of the first entry, -1 if there is none
    last: int = -1
    aborted: bool = False


def analyze(subscription: Subscription, start: int, done: Callable[[BacklogFound | Exception], None]) -> None:
    """Count what is not acknowledged from this offset on, up to ``ANALYZED_MAX`` entries."""
    found = BacklogFound()

    def see(entries: Sequence[Entry]) -> bool:
        entries = entries[: ANALYZED_MAX - found.entries]
        if entries and found.first < 0:
            found.first = entries[0].offset
        with subscription.lock:
            found.messages += sum(subscription.cursor.remaining(one.offset, one.messages) for one in entries)
        found.entries += len(entries)
        found.last = entries[-1].offset if entries else found.last
        found.aborted = found.entries == ANALYZED_MAX
        if found.aborted:
            done(found)
        return not found.aborted

    def ended(error: Exception | None) -> None:
        if isinstance(error, TooFar):
            found.aborted, error = True, None
        done(error or found)

    _Scan(subscription, max(start, subscription.cursor.acknowledged_before), see, ended).start()


class TooFar(NotAllowed):
    """A look at the backlog would read too much."""


class _Scan:
    """Reads the backlog from an offset on, and has ``see`` look at what is not acknowledged until it returns False. ``ended`` is
    called if the end came before, or something failed."""

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
        self._bytes += sum(one.size for one in result)
        with self._subscription.lock:
            unacknowledged = [one for one in result if not self._subscription.cursor.is_acknowledged(one.last)]
        if self._see(unacknowledged):
            self._offset = result[-1].last + 1
            self.start()
