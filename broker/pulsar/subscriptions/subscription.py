"""A subscription: the adapter between its dispatcher, which decides, and the log, the connections and the catalogue.

Every event (permits, acknowledgements, read entries, joining and leaving consumers) is given to the dispatcher under the
subscription's lock, on the thread on which it happens, and the dispatcher's effects are carried out before the lock is released.
Nothing blocks under the lock: frames are put into queues, entries come from the cache or are read later on a reader's thread,
states are written by the cursor's writer. The work under the lock is bounded: its holder reads a few batches, and the waker's
thread continues.

At the end of the log the read waits in the log's tail (``pulsar/topics/topic.py``).

This module has the consumers and their deliveries. ``acknowledgements.py`` has the acknowledgements, ``saving.py`` the storing
of the cursor.

Lock order: a topic's lock, a subscription's lock, then the locks of tail, store, connection or log. Never the locks of two
subscriptions.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice

import attrs

from broker.errors import StorageError
from broker.log import EventLimit, get_logger
from broker.pulsar.compaction.reader import CompactedReader
from broker.pulsar.dispatch.dispatcher import (
    Activate,
    CancelRead,
    Deliver,
    Discard,
    Dispatcher,
    DispatchSettings,
    Effect,
    Now,
    Read,
    Replay,
    SubType,
    WakeAt,
)
from broker.pulsar.dispatch.many_consumers import ManyConsumers
from broker.pulsar.entries.reader import EntryReader
from broker.pulsar.subscriptions.acknowledgements import Acknowledgements
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.cursor import Cursor
from broker.pulsar.subscriptions.cursor_store import CursorStore
from broker.pulsar.subscriptions.reading import Reading
from broker.pulsar.subscriptions.saving import Saving
from broker.pulsar.subscriptions.waker import Line
from broker.pulsar.topics.topic import Topic
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer, TimerHandle

log = get_logger("pulsar")

# Batches (of at most 100 entries) that a holder of the lock reads, new or again: some milliseconds.
_READS_AT_ONCE = 4
# Entries to be redelivered that are kept in the cache, at most: 0.2 ms. Further entries may be evicted by age.
_EXPECTED_AT_MOST = 1000
# How long a subscription that is not durable outlives a seek without consumers.
_COMES_BACK_S = 60.0
_KEY_SHARED = int(SubType.Key_Shared)  # an attribute of an enum is slow


@attrs.frozen
class SubscriptionSurroundings:
    """The objects that all subscriptions share."""

    clock: Clock
    timer: Timer
    store: CursorStore
    failures: EventLimit = attrs.field(factory=EventLimit)


class Subscription:
    __slots__ = (
        "_around",
        "_is_expecting",
        "_timer",
        "_timer_at",
        "acknowledgements",
        "bytes_out_before",
        "closed",
        "compacted",
        "connected",
        "cursor",
        "dispatcher",
        "durable",
        "expired",
        "kind",
        "line",
        "lock",
        "made_ms",
        "messages_out_before",
        "name",
        "policy",
        "reading",
        "saving",
        "topic",
    )

    def __init__(
        self,
        around: SubscriptionSurroundings,
        topic: Topic,
        line: Line,
        name: str,
        cursor: Cursor,
        *,
        durable: bool,
    ) -> None:
        self._around = around
        self.line = line  # the topic's
        self.topic = topic
        self.name = name
        self.cursor = cursor
        self.durable = durable
        self.lock = Lock()
        key = (topic.log.topic_id, topic.log.partition, name)
        self.saving = Saving(around.store, key, cursor, self.lock, durable=durable)
        self.acknowledgements = Acknowledgements(self)
        # None until the first consumer joins; its type decides which dispatcher is made.
        self.dispatcher: Dispatcher | None = None
        self.kind = -1  # CommandSubscribe.SubType; -1: there was no consumer yet
        self.policy: object = None  # of Key_Shared, to be compared with the next consumer's
        self.connected: dict[ConnectedConsumer, None] = {}
        # Sent to consumers that have left.
        self.messages_out_before = 0
        self.bytes_out_before = 0
        # Read instead of the log by consumers that read compacted. Changes only while there are no consumers.
        self.compacted: CompactedReader | None = None
        self.closed = False  # unloaded or deleted: no consumer may come any more
        self.made_ms = around.clock.time_ms()
        self.expired = 0  # messages that were skipped because of their age
        self.reading: Reading | None = None  # once there were consumers
        self._is_expecting = False
        self._timer: TimerHandle | None = None
        self._timer_at = 0.0

    def __repr__(self) -> str:
        return f"Subscription({self.topic.name}, {self.name!r})"

    # -- consumers: the caller holds ``lock`` where the docstring says so ---------------------------------------------------

    @property
    def has_consumers(self) -> bool:
        return bool(self.connected)

    @property
    def reader(self) -> EntryReader:
        """The reader for the type of the consumers."""
        reader = self.topic.reader
        return reader.by_key if self.kind == _KEY_SHARED else reader

    @property
    def consumer_count(self) -> int:
        return len(self.connected)

    def use(self, dispatcher: Dispatcher, kind: int, policy: object) -> None:
        """Serve consumers of another type from now on; there are no consumers. ``lock`` is held."""
        assert not self.connected
        if self.reading is None:
            self.reading = Reading(self, self._around.failures)
        self.reading.forget()
        self._forget_timer()
        self.dispatcher, self.kind, self.policy = dispatcher, kind, policy
        self.cursor.rewind()

    def add(self, connected: ConnectedConsumer) -> None:
        """A new consumer. ``lock`` is held, and is released before the client is told. Raises a Refusal; then nothing has
        changed."""
        assert self.dispatcher is not None
        now = self.now()
        if not self.connected:
            self.acknowledgements.catch_up_with_start(now)
        effects = self.dispatcher.add(connected.consumer, now)
        self.acknowledgements.consumer_came()
        self.expect_entries(True)
        self.connected[connected] = None
        assert self.reading is not None
        self.carry_out([*self.reading.consumer_came(), *effects], now)

    def leave(self, connected: ConnectedConsumer) -> None:
        """A consumer has left. An unknown consumer is ignored."""
        with self.lock:
            if connected not in self.connected:
                return
            self._remove([connected])
            empty = not self.connected and not self.durable
        if empty:
            self._drop()
        else:
            # A client that closes its consumer expects to continue at this position, even if the broker is then stopped.
            self.saving.save(_ignore)

    def _remove(self, leaving: Iterable[ConnectedConsumer]) -> None:
        for connected in leaving:
            assert self.dispatcher is not None  # because it has had a consumer
            del self.connected[connected]
            connected.left = True
            self.messages_out_before += connected.messages_out
            self.bytes_out_before += connected.bytes_out
            if self.connected:
                self._expect_again(connected.consumer.held)
            now = self.now()
            self.carry_out(self.dispatcher.remove(connected.consumer, now), now)
            if not self.connected:
                assert self.reading is not None
                self.reading.forget()
                self.acknowledgements.last_consumer_left()
                self.expect_entries(False)

    def expect_entries(self, expects: bool) -> None:
        """Have new entries kept in the cache for this subscription, or no longer."""
        if expects is not self._is_expecting:
            self._is_expecting = expects
            tail, reader = self.topic.tail, self.topic.reader
            if expects:
                tail.consumers_came(reader)
            else:
                tail.consumers_left(reader)

    def _drop(self) -> None:
        """A subscription that is not durable ends with its last consumer."""
        topic = self.topic
        with topic.lock, self.lock:
            if self.connected:
                return
            self.closed = True
            self._forget_timer()
            if topic.subscriptions.get(self.name) is self:
                del topic.subscriptions[self.name]

    def disconnect_consumers(self) -> None:
        """Have all clients subscribe again. ``lock`` is held."""
        leaving = list(self.connected)
        for connected in leaving:
            connected.close()
        self._remove(leaving)

    # -- events -------------------------------------------------------------------------------------------------------------

    def flow(self, connected: ConnectedConsumer, permits: int) -> None:
        with self.lock:
            if connected in self.connected:
                assert self.dispatcher is not None
                now = self.now()
                self.carry_out(self.dispatcher.flow(connected.consumer, permits, now), now)

    def redeliver(self, connected: ConnectedConsumer, entries: Sequence[int] | None, epoch: int | None) -> None:
        """``entries`` None: all that the consumer has."""
        with self.lock:
            if connected in self.connected:
                assert self.dispatcher is not None
                if epoch is not None:
                    connected.epoch = epoch
                # Shared dispatchers know the entries of each consumer; a single active consumer has all delivered entries.
                self._expect_again(entries or connected.consumer.held or self.acknowledgements.delivered or ())
                now = self.now()
                self.carry_out(self.dispatcher.redeliver(connected.consumer, entries, now), now)

    def _expect_again(self, entries: Iterable[int]) -> None:
        """Keep entries that are to be redelivered in the cache, if they are still there."""
        self.reader.expect(list(islice(entries, _EXPECTED_AT_MOST)))

    def resume(self, connected: ConnectedConsumer) -> None:
        """The consumer's connection has sent its queued bytes."""
        with self.lock:
            if connected not in self.connected or not connected.paused:
                return
            assert self.dispatcher is not None
            connected.go_on()
            self.expect_entries(True)
            now = self.now()
            assert self.reading is not None
            waiting = self.reading.take_up_read()
            self.carry_out([*waiting, *self.dispatcher.writable(connected.consumer, now)], now)

    def limit(self, settings: DispatchSettings) -> None:
        """Set the policies' present limits of unacknowledged messages. Other settings take effect with the next dispatcher."""
        with self.lock:
            if isinstance(self.dispatcher, ManyConsumers) and self.durable and not self.closed:
                now = self.now()
                self.carry_out(self.dispatcher.limit(settings, now), now)

    def more(self) -> None:
        """There may be entries to read, or it is this subscription's turn again."""
        with self.lock:
            if self.reading is not None and (effects := self.reading.take_up()):
                self.carry_out(effects, self.now())

    def tick(self) -> None:
        """The time of the dispatcher's ``WakeAt`` may have come."""
        with self.lock:
            self._timer = None
            # Also without consumers: the dispatcher relies on being called.
            if self.dispatcher is not None and not self.closed:
                now = self.now()
                self.carry_out(self.dispatcher.tick(now), now)

    # -- the end, and starting over -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """The topic is unloaded. The consumers look it up again."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            self.disconnect_consumers()
            self._forget_timer()
            hand_over = self.saving.leave()
        hand_over()

    def deleted(self) -> None:
        """The topic or the subscription has been deleted."""
        with self.lock:
            self.closed = self.saving.gone = True
            self.disconnect_consumers()
            self._forget_timer()

    def reset(self, offset: int, last: tuple[int, int, Sequence[int]] | None = None) -> None:
        """Seek: continue at this offset, whatever was acknowledged. The consumers have to subscribe again.

        ``last`` (offset, messages, ack set): in the entry there, messages that are not in its ack set are acknowledged."""
        with self.lock:
            self.disconnect_consumers()
            self.cursor.reset(offset)
            if last is not None:
                self.cursor.acknowledge(*last)
            if self.reading is not None:
                self.reading.restart()
            self.saving.changed()
        if not self.durable:
            # The reader returns in a moment and continues here. If it does not, nothing else would end the subscription.
            clock, timer = self._around.clock, self._around.timer
            timer.at(clock.monotonic() + _COMES_BACK_S, partial(self.line.call, self._drop))

    # -- effects: the lock is held ------------------------------------------------------------------------------------------

    def now(self) -> Now:
        clock = self._around.clock
        return Now(clock.monotonic(), clock.time_ms())

    def carry_out(self, effects: Sequence[Effect], now: Now) -> None:
        if not effects:
            return
        reading = self.reading
        assert reading is not None
        work, turns = deque(effects), _READS_AT_ONCE
        while work:
            effect = work.popleft()
            kind = type(effect)
            if kind is Deliver:
                self._deliver(effect)  # type: ignore[arg-type]
            elif kind is Read or kind is Replay:
                if turns:
                    turns -= 1
                    work.extend((reading.read if kind is Read else reading.replay)(effect, now))  # type: ignore[arg-type]
                else:
                    reading.put_off(effect)  # type: ignore[arg-type]
                    self.line.call(self.more)
            elif kind is CancelRead:
                reading.cancel_read()
            elif kind is WakeAt:
                self._wake_at(effect.at)  # type: ignore[union-attr]
            elif kind is Activate:
                effect.consumer.owner.tell_active(effect.active)  # type: ignore[union-attr]
            else:
                assert type(effect) is Discard
                work.extend(self.acknowledgements.discard(effect.entries, now))

    def _deliver(self, effect: Deliver) -> None:
        consumer, deliveries = effect.consumer, effect.deliveries
        delivered = self.acknowledgements.delivered
        if delivered is None:
            return  # the last consumer is just leaving
        delivered.add_all(deliveries)
        consumer.owner.deliver(deliveries)
        if consumer.owner.paused and self.reading is not None and self.reading.all_paused():
            # The pause may be long, so nothing is kept in the cache meanwhile. Older entries are then read from the log.
            self.expect_entries(False)

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake_at(self, at: float) -> None:
        if self._timer is not None:
            if self._timer_at == at:
                return
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._around.timer.at(at, partial(self.line.call, self.tick))

    def tell_end_of_topic(self) -> None:
        if self.cursor.acknowledged_before >= self.topic.log.log_end_offset:
            for connected in self.connected:
                connected.tell_end_of_topic()

    @property
    def first_offset(self) -> int:
        """The offset of the first entry that can be read."""
        return self.topic.log.log_start_offset if self.compacted is None else self.compacted.first

    # -- questions ----------------------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """The number of unacknowledged messages."""
        with self.lock:
            cursor, reader = self.cursor, self.topic.reader
            return cursor.backlog(max(reader.end, cursor.acknowledged_before))

    @property
    def properties(self) -> Mapping[str, str]:
        return self.cursor.properties


def _ignore(_: StorageError | None) -> None:
    """The store tries again."""
