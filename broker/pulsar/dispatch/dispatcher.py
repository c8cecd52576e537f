"""The interface of dispatchers: their events, their effects and their settings.

Each subscription has a dispatcher. It is pure: its methods take an event and ``now`` and return effects, which the subscription
carries out in order (``broker/pulsar/subscriptions/subscription.py``). It knows no socket, no lock and no thread; the
subscription calls it under its own lock.

Reads: at most one ``Read`` and one ``Replay`` are outstanding. Each carries an epoch, and the dispatcher ignores a completion
with an epoch other than the current: since the request, the subscription was rewound, or its consumers have left.

``DispatchSettings`` are the limits and times of the broker, or of the topic's policies.
"""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import attrs

from broker.delivery.in_flight import Owner
from broker.pulsar.entry import Entry
from protocol.pulsar.pulsar_pb2 import CommandSubscribe

SubType = CommandSubscribe.SubType
SINGLE_ACTIVE = frozenset({SubType.Exclusive, SubType.Failover})
NAMES = {number: name for name, number in SubType.items()}


@attrs.frozen
class KeySharedPolicy:
    """The policy that all consumers of a Key_Shared subscription must have in common."""

    sticky: bool = False  # each consumer names its ranges of hashes
    out_of_order: bool = False


class Now(NamedTuple):
    monotonic: float  # s, for timers
    wall_ms: int  # for times that clients name


@attrs.define(eq=False)
class Consumer(Owner):
    """A consumer of the subscription. The subscription sets the fields of the first half. The dispatcher alone changes those of
    the second half and of the ``Owner``.

    ``unacked`` (Shared and Key_Shared only): messages that it has been sent and has not acknowledged. ``blocked``: it has too
    many unacknowledged messages; permits that it gives meanwhile still count.
    """

    id: Hashable
    name: str
    owner: Any = None  # for the subscription
    priority: int = 0  # 0 is the first to be served
    ranges: tuple[tuple[int, int], ...] = ()  # Key_Shared with sticky ranges: first and last hash of each

    # Messages that it may still be sent. Dispatchers keep no other count. Negative after a batch with more messages than
    # there were permits.
    permits: int = 0
    writable: bool = True  # its connection takes more; set by the subscription
    left: bool = False  # ``remove`` was called

    @property
    def available(self) -> bool:
        """Entries may be sent to the consumer now."""
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
    """Forget the ``Read`` if it still waits for an entry. A read that has begun completes and is ignored because of its epoch."""


@attrs.frozen
class Replay:
    """Read the entries that begin at these offsets, ascending, and call ``replay_done``, without entries that are gone."""

    offsets: Sequence[int]
    epoch: int


@attrs.frozen
class WakeAt:
    """Call ``tick`` at this time (Clock.monotonic() s); replaces the previous ``WakeAt``. If the time has come: call it soon, but
    after the lock has been released, because the dispatcher has more work than an event may take."""

    at: float


@attrs.frozen
class Activate:
    """Tell the consumer whether it is active (Failover)."""

    consumer: Consumer
    active: bool


@attrs.frozen
class Discard:
    """Acknowledge these entries, which are not for consumers (markers of the server)."""

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
        """The consumer has left. Its entries in flight go to others, without counting as redelivered. An unknown consumer is
        ignored. With the last consumer, the subscription forgets the timer and ignores outstanding reads."""

    def flow(self, consumer: Consumer, permits: int, now: Now) -> list[Effect]: ...

    def read_done(self, read: Read, entries: Sequence[Entry], now: Now, *, failed: bool = False) -> list[Effect]:
        """``failed``: the log could not be read now. It is read again a little later."""

    def replay_done(
        self, replay: Replay, entries: Sequence[Entry], now: Now, *, failed: bool = False
    ) -> list[Effect]: ...

    def acknowledged(self, consumer: Consumer | None, entry: int, messages: int, whole: bool, now: Now) -> list[Effect]:
        """``messages`` messages of the entry at this offset are newly acknowledged; ``whole``: no message of it remains."""

    def acknowledged_whole(self, entries: Sequence[int], now: Now) -> list[Effect]:
        """The same for many entries, all acknowledged as a whole."""

    def marked_deleted(self, offset: int, now: Now) -> list[Effect]:
        """Everything before the offset is acknowledged (cumulative, skipped, expired, trimmed). Not called for the progress that
        ``acknowledged`` reports, because this checks everything in flight."""

    def redeliver(self, consumer: Consumer, entries: Sequence[int] | None, now: Now) -> list[Effect]:
        """The consumer asks for these entries again, or for all that it has (None)."""

    def writable(self, consumer: Consumer, now: Now) -> list[Effect]:
        """The consumer's connection takes more again. The subscription has set the flag."""

    def tick(self, now: Now) -> list[Effect]: ...


@attrs.frozen(kw_only=True)
class DispatchSettings:
    """The defaults are those of Pulsar's broker.conf, under the names in the comments."""

    # dispatcherMaxReadBatchSize, dispatcherMaxReadSizeBytes: the limits of a read.
    read_entries_max: int = 100
    read_bytes_max: int = 5 * 1024 * 1024
    # dispatcherMaxRoundRobinBatchSize: messages that a consumer of a Shared subscription gets in its turn.
    turn_messages: int = 20
    # maxUnackedMessagesPerConsumer, maxUnackedMessagesPerSubscription. 0: no limit (non-durable subscriptions).
    unacked_max_per_consumer: int = 50_000
    unacked_max_per_subscription: int = 200_000
    # Entries that a subscription has in flight or keeps to replay, whatever these limits are: some 200 bytes each. At this
    # bound no new entries are read. Pulsar has no such bound.
    in_flight_max: int = 1_000_000
    # keySharedLookAheadMsgInReplayThresholdPerConsumer, ...PerSubscription: read entries that wait for a consumer.
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
