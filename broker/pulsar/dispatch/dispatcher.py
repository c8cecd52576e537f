"""The interface of dispatchers: their events, their effects and their settings.

A dispatcher decides for one subscription. It is pure: its methods take an event and ``now`` and return effects, which the
subscription carries out in order (``broker/pulsar/subscriptions/subscription.py``). It knows no socket, no lock and no
thread; the subscription calls it under its own lock.

Reads: at most one ``Read`` and one ``Replay`` are outstanding. Each carries an epoch, and the dispatcher ignores a completion
with an epoch other than the current: since the request, the subscription was rewound, or its consumers have left.

``DispatchSettings`` are the limits and times of the broker, or of the topic's policies.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import attrs

from broker.delivery.in_flight import Owner
from broker.pulsar.entry import Entry


class Now(NamedTuple):
    monotonic: float  # s, for timers
    wall_ms: int  # for times that clients name


@attrs.define(eq=False)
class Consumer(Owner):
    """A consumer of the subscription. The dispatcher alone changes the second half, and the fields of the ``Owner``; the
    first half is given.

    ``unacked`` (Shared and Key_Shared only): messages that it has been sent and has not acknowledged. ``blocked``: it has too
    many of those; permits that it gives meanwhile are counted all the same.
    """

    id: Hashable
    name: str
    owner: Any = None  # for the subscription
    priority: int = 0  # 0 is the first to be served
    ranges: tuple[tuple[int, int], ...] = ()  # Key_Shared with sticky ranges: first and last hash of each

    # Messages that it may still be sent. The only count of them; what a dispatcher needs of all consumers is derived from
    # these. Negative after a batch with more messages than there were permits.
    permits: int = 0
    writable: bool = True  # its connection takes more; the subscription sets this
    left: bool = False  # ``remove`` was called

    @property
    def available(self) -> bool:
        """It may be sent something now."""
        return self.permits > 0 and not self.blocked and self.writable


class Delivery(NamedTuple):
    entry: Entry
    redelivery_count: int = 0
    ack_set: Sequence[int] | None = None  # words as on the wire (bit 1: not acknowledged); None: the whole entry


@attrs.frozen
class Deliver:
    """Send these to the consumer, in this order. Its permits are already reduced."""

    consumer: Consumer
    deliveries: Sequence[Delivery]


@attrs.frozen
class Read:
    """Read entries from the offset on, at least one, and call ``read_done``. At the end of the log, wait for the next
    entry."""

    offset: int
    max_entries: int
    max_bytes: int
    epoch: int


@attrs.frozen
class CancelRead:
    """Forget the ``Read`` if it still waits for an entry; one that has begun completes and is ignored by its epoch."""


@attrs.frozen
class Replay:
    """Read the entries that begin at these offsets, ascending, and call ``replay_done``. Those that are gone are left out."""

    offsets: Sequence[int]
    epoch: int


@attrs.frozen
class WakeAt:
    """Call ``tick`` at this time (Clock.monotonic() s). It replaces the last one. For a time that has come: soon, but after
    letting go of the lock, because the dispatcher has more to do than one event may take."""

    at: float


@attrs.frozen
class Activate:
    """Tell the consumer whether it is active (Failover)."""

    consumer: Consumer
    active: bool


@attrs.frozen
class Discard:
    """Acknowledge these entries for all consumers: they are not for them (markers of the server)."""

    entries: Sequence[Entry]


Effect = Deliver | Read | CancelRead | Replay | WakeAt | Activate | Discard


class Dispatcher(Protocol):
    """The subscription updates the cursor, which the dispatcher reads, before it reports an acknowledgement."""

    @property
    def consumers(self) -> Sequence[Consumer]: ...

    def add(self, consumer: Consumer, now: Now) -> list[Effect]:
        """A new consumer, without permits. Raises a Refusal (``broker/pulsar/refusals.py``) if it cannot join; then nothing
        has changed."""

    def remove(self, consumer: Consumer, now: Now) -> list[Effect]:
        """It has left. What it had in flight goes to others, without counting as redelivered. Unknown: nothing. With the last
        consumer, the subscription forgets the timer and ignores reads that are still on their way."""

    def flow(self, consumer: Consumer, permits: int, now: Now) -> list[Effect]: ...

    def read_done(self, read: Read, entries: Sequence[Entry], now: Now, *, failed: bool = False) -> list[Effect]:
        """``failed``: the log could not be read now. It is read again a little later."""

    def replay_done(
        self, replay: Replay, entries: Sequence[Entry], now: Now, *, failed: bool = False
    ) -> list[Effect]: ...

    def acknowledged(self, consumer: Consumer | None, entry: int, messages: int, whole: bool, now: Now) -> list[Effect]:
        """``messages`` of the entry at this offset are acknowledged that were not before; ``whole``: no message of it
        remains."""

    def acknowledged_whole(self, entries: Sequence[int], now: Now) -> list[Effect]:
        """The same for many entries at a time, of which nothing is left."""

    def marked_deleted(self, offset: int, now: Now) -> list[Effect]:
        """Everything before the offset is acknowledged (cumulative, skipped, expired, trimmed). Not for the progress that
        ``acknowledged`` makes; this looks at everything that is in flight."""

    def redeliver(self, consumer: Consumer, entries: Sequence[int] | None, now: Now) -> list[Effect]:
        """The consumer asks for these again, or for all that it has (None)."""

    def writable(self, consumer: Consumer, now: Now) -> list[Effect]:
        """Its connection takes more again. The subscription has set the flag."""

    def tick(self, now: Now) -> list[Effect]: ...


@attrs.frozen(kw_only=True)
class DispatchSettings:
    """The defaults are those of Pulsar's broker.conf, under the names in the comments."""

    # dispatcherMaxReadBatchSize, dispatcherMaxReadSizeBytes: one read.
    read_entries_max: int = 100
    read_bytes_max: int = 5 * 1024 * 1024
    # dispatcherMaxRoundRobinBatchSize: what a consumer of a Shared subscription gets before it is the next one's turn, in
    # messages.
    turn_messages: int = 20
    # maxUnackedMessagesPerConsumer, maxUnackedMessagesPerSubscription. 0: no limit (non-durable subscriptions).
    unacked_max_per_consumer: int = 50_000
    unacked_max_per_subscription: int = 200_000
    # Entries that a subscription has in flight or keeps to replay, whatever these limits are: some 200 bytes each. Nothing
    # new is read then. Pulsar has no such bound.
    in_flight_max: int = 1_000_000
    # keySharedLookAheadMsgInReplayThresholdPerConsumer, ...PerSubscription: entries that were read and wait for a consumer.
    look_ahead_per_consumer: int = 4_000
    look_ahead_max: int = 40_000
    # subscriptionKeySharedUseConsistentHashing, subscriptionKeySharedConsistentHashingReplicaPoints.
    consistent_hashing: bool = True
    hash_points: int = 100
    # activeConsumerFailoverDelayTimeMillis.
    failover_delay_s: float = 1.0
    # delayedDeliveryTickTimeMillis, isDelayedDeliveryDeliverAtTimeStrict.
    delayed_tick_ms: int = 1_000
    delayed_strict: bool = False
    # dispatcherReadFailureBackoffInitialTimeInMs, ...MaxTimeInMs. Pulsar begins with 15 s because a bookie has to come back;
    # a read of a local disk is worth another try sooner.
    read_retry_s: float = 1.0
    read_retry_max_s: float = 60.0
