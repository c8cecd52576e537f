"""A subscription: the adapter between its dispatcher, which decides, and the log, the connections and the catalogue.

Every event (permits, acknowledgements, entries that were read, consumers that come and go) is given to the dispatcher under the
subscription's lock, on the thread on which it happens, and the effects that the dispatcher returns are carried out before the
lock is released. Nothing that is done under it blocks: frames are put into queues, entries come from the cache or are read
later on a reader's thread, states are written by the cursor's writer. What one holder does is bounded: it reads a few batches,
and then goes on by way of the waker's thread.

At the end of the log the read waits in the log's tail (``pulsar/topics/topic.py``).

Locks: a topic's, then a subscription's, then those of tail, store, connection, log. Never two subscriptions'.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice

import attrs

from broker.delivery.acknowledged import TooManyHoles
from broker.errors import StorageError
from broker.log import EventLimit, get_logger
from broker.metadata.writer import Done
from broker.pulsar.compaction.reader import CompactedReader
from broker.pulsar.dispatch.dispatcher import (
    Activate,
    CancelRead,
    Consumer,
    Deliver,
    Discard,
    Dispatcher,
    DispatchSettings,
    Effect,
    Now,
    Read,
    Replay,
    WakeAt,
)
from broker.pulsar.dispatch.many_consumers import ManyConsumers
from broker.pulsar.entries.reader import EntryReader
from broker.pulsar.entry import Entry
from broker.pulsar.refusals import ConsumerNotFound
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.cursor import Cursor
from broker.pulsar.subscriptions.cursor_store import CursorStore, LastState
from broker.pulsar.subscriptions.delivered import Delivered
from broker.pulsar.subscriptions.dispatchers import SubType
from broker.pulsar.subscriptions.reading import Reading
from broker.pulsar.subscriptions.waker import Line
from broker.pulsar.topics.topic import Topic
from broker.runtime.clock import Clock
from broker.runtime.threads import Lock
from broker.runtime.timers import Timer, TimerHandle

log = get_logger("pulsar")

# Batches (of at most 100 entries) that one holder of the lock reads, new or again: some milliseconds.
_READS_AT_ONCE = 4
# Entries that are looked for in the cache, because they are to be delivered again: 0.2 ms. The others may go when they are old.
_EXPECTED_AT_MOST = 1000
# How long a subscription that is not durable outlives a seek without consumers.
_COMES_BACK_S = 60.0
_KEY_SHARED = int(SubType.Key_Shared)  # looking it up there takes long

AckedEntry = tuple[int, Sequence[int] | None]  # offset, ack set


@attrs.frozen
class SubscriptionSurroundings:
    """What all subscriptions share."""

    clock: Clock
    timer: Timer
    store: CursorStore
    failures: EventLimit = attrs.field(factory=EventLimit)


class Subscription:
    __slots__ = (
        "_around",
        "_is_expecting",
        "_last",
        "_reading",
        "_saved_version",
        "_timer",
        "_timer_at",
        "bytes_out_before",
        "closed",
        "compacted",
        "connected",
        "cursor",
        "delivered",
        "dispatcher",
        "durable",
        "expired",
        "gone",
        "key",
        "kind",
        "line",
        "lock",
        "made_ms",
        "messages_out_before",
        "name",
        "policy",
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
        self.key = (topic.log.topic_id, topic.log.partition, name)
        self.lock = Lock()
        # What serves its consumers. None until the first one has come, whose type decides.
        self.dispatcher: Dispatcher | None = None
        self.kind = -1  # CommandSubscribe.SubType; -1: there was no consumer yet
        self.policy: object = None  # of Key_Shared, to be compared with that of the next consumer
        self.connected: dict[ConnectedConsumer, None] = {}
        # What consumers were sent that have left.
        self.messages_out_before = 0
        self.bytes_out_before = 0
        self.delivered: Delivered | None = None  # while there are consumers
        # What is read instead of the log, by consumers that read compacted. Changes only while there are none.
        self.compacted: CompactedReader | None = None
        self.closed = False  # unloaded or deleted: no consumer may come any more
        self.gone = False  # its state must not be written any more
        self.made_ms = around.clock.time_ms()
        self.expired = 0  # messages that were skipped because of their age
        self._saved_version = -1
        self._last: LastState | None = None  # once its topic is unloaded
        self._reading: Reading | None = None  # once there were consumers
        self._is_expecting = False
        self._timer: TimerHandle | None = None
        self._timer_at = 0.0

    def __repr__(self) -> str:
        return f"Subscription({self.topic.name}, {self.name!r})"

    # -- consumers: whoever calls holds ``lock`` for those that say so ------------------------------------------------------

    @property
    def has_consumers(self) -> bool:
        return bool(self.connected)

    @property
    def reader(self) -> EntryReader:
        """The one that suits the type of the consumers."""
        reader = self.topic.reader
        return reader.by_key if self.kind == _KEY_SHARED else reader

    @property
    def consumer_count(self) -> int:
        return len(self.connected)

    def use(self, dispatcher: Dispatcher, kind: int, policy: object) -> None:
        """Serve consumers of another type from now on; there are none. ``lock`` is held."""
        assert not self.connected
        if self._reading is None:
            self._reading = Reading(self, self._around.failures)
        self._reading.forget()
        self._forget_timer()
        self.dispatcher, self.kind, self.policy = dispatcher, kind, policy
        self.cursor.rewind()

    def add(self, connected: ConnectedConsumer) -> None:
        """A new consumer. ``lock`` is held, and is released before the client is told. Raises a Refusal; then nothing has
        changed."""
        assert self.dispatcher is not None
        now = self.now()
        if not self.connected:
            self.catch_up_with_start(now)
        effects = self.dispatcher.add(connected.consumer, now)
        if self.delivered is None:
            self.delivered = Delivered()
        self.expect_entries(True)
        self.connected[connected] = None
        assert self._reading is not None
        self.carry_out([*self._reading.consumer_came(), *effects], now)

    def leave(self, connected: ConnectedConsumer) -> None:
        """A consumer has left. Unknown: nothing."""
        with self.lock:
            if connected not in self.connected:
                return
            self._remove([connected])
            empty = not self.connected and not self.durable
        if empty:
            self._drop()
        else:
            # Who closes a consumer, and then perhaps the broker, expects to go on here.
            self.save(_ignore)

    def _remove(self, leaving: Iterable[ConnectedConsumer]) -> None:
        for connected in leaving:
            assert self.dispatcher is not None  # a subscription that never had a consumer has none
            del self.connected[connected]
            connected.left = True
            self.messages_out_before += connected.messages_out
            self.bytes_out_before += connected.bytes_out
            if self.connected:
                self._expect_again(connected.consumer.held)
            now = self.now()
            self.carry_out(self.dispatcher.remove(connected.consumer, now), now)
            if not self.connected:
                assert self._reading is not None
                self._reading.forget()
                self.delivered = None
                self.expect_entries(False)

    def expect_entries(self, expects: bool) -> None:
        """Whether new entries are kept in the cache for this subscription for longer than for others."""
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
        """None: all that it has."""
        with self.lock:
            if connected in self.connected:
                assert self.dispatcher is not None
                if epoch is not None:
                    connected.epoch = epoch
                # What a consumer holds, Shared knows; where one is served at a time, it has all that was delivered.
                self._expect_again(entries or connected.consumer.held or self.delivered or ())
                now = self.now()
                self.carry_out(self.dispatcher.redeliver(connected.consumer, entries, now), now)

    def _expect_again(self, entries: Iterable[int]) -> None:
        """Entries that are to be delivered once more stay in the cache for that, if they are still there."""
        self.reader.expect(list(islice(entries, _EXPECTED_AT_MOST)))

    def resume(self, connected: ConnectedConsumer) -> None:
        """The consumer's connection has sent what it had."""
        with self.lock:
            if connected not in self.connected or not connected.paused:
                return
            assert self.dispatcher is not None
            connected.go_on()
            self.expect_entries(True)
            now = self.now()
            assert self._reading is not None
            waiting = self._reading.take_up_read()
            self.carry_out([*waiting, *self.dispatcher.writable(connected.consumer, now)], now)

    def limit(self, settings: DispatchSettings) -> None:
        """The limits of what is not acknowledged, as the policies say now. Others are those of the next dispatcher."""
        with self.lock:
            if isinstance(self.dispatcher, ManyConsumers) and self.durable and not self.closed:
                now = self.now()
                self.carry_out(self.dispatcher.limit(settings, now), now)

    def more(self) -> None:
        """There may be entries to read, or it is this subscription's turn again."""
        with self.lock:
            if self._reading is not None and (effects := self._reading.take_up()):
                self.carry_out(effects, self.now())

    def tick(self) -> None:
        """A time that the dispatcher has asked for may have come."""
        with self.lock:
            self._timer = None
            # Also without consumers: the dispatcher counts on being called.
            if self.dispatcher is not None and not self.closed:
                now = self.now()
                self.carry_out(self.dispatcher.tick(now), now)

    # -- acknowledgements ---------------------------------------------------------------------------------------------------

    def acknowledge(self, connected: ConnectedConsumer, acked: Iterable[AckedEntry]) -> list[AckedEntry]:
        """Acknowledge entries one by one. Returns those of which it is not known how many messages they have. Raises
        TooManyHoles; then those before have been acknowledged. Raises ConsumerNotFound: nothing has been."""
        unknown: list[AckedEntry] = []
        with self.lock:
            self._check_connected(connected)
            delivered, cursor = self.delivered, self.cursor
            assert delivered is not None
            now = self.now()
            effects: list[Effect] = []
            try:
                for entry, ack_set in acked:
                    messages = delivered.messages(entry)
                    if messages is None:
                        if not cursor.is_acknowledged(entry):
                            unknown.append((entry, ack_set))
                        continue
                    self._acknowledge(connected.consumer, entry, messages, ack_set, now, effects)
            finally:
                self._acknowledged(effects, now)
        return unknown

    def acknowledge_whole(self, connected: ConnectedConsumer, entries: Sequence[int]) -> list[int]:
        """The same for whole entries: those that follow each other are one range for the cursor."""
        with self.lock:
            self._check_connected(connected)
            delivered, cursor, dispatcher = self.delivered, self.cursor, self.dispatcher
            assert delivered is not None
            assert dispatcher is not None
            now = self.now()
            effects: list[Effect] = []
            runs, unknown = delivered.take(entries)
            done = 0
            try:
                for first, end, run in runs:
                    if cursor.acknowledge(first, end - first):
                        effects += dispatcher.acknowledged_whole(run, now)
                    done += 1
            finally:
                if done < len(runs):
                    delivered.put_back(runs[done:])
                self._acknowledged(effects, now)
            return [entry for entry in unknown if not cursor.is_acknowledged(entry)] if unknown else unknown

    def acknowledge_known(
        self, connected: ConnectedConsumer, acked: Iterable[tuple[int, int, Sequence[int] | None]]
    ) -> None:
        """The same for (offset, messages, ack set), now that they are known."""
        with self.lock:
            self._check_connected(connected)
            now = self.now()
            effects: list[Effect] = []
            try:
                for entry, messages, ack_set in acked:
                    self._acknowledge(connected.consumer, entry, messages, ack_set, now, effects)
            finally:
                self._acknowledged(effects, now)

    def _check_connected(self, connected: ConnectedConsumer) -> None:
        """An acknowledgement that came too late must not be answered as if it counted."""
        if connected not in self.connected:
            raise ConsumerNotFound(f"Consumer {connected.id} has been closed")

    def _acknowledge(
        self,
        consumer: Consumer | None,
        entry: int,
        messages: int,
        ack_set: Sequence[int] | None,
        now: Now,
        effects: list[Effect],
    ) -> None:
        cursor = self.cursor
        newly = cursor.acknowledge(entry, messages, ack_set)
        if newly:
            whole = ack_set is None or cursor.is_acknowledged(entry + messages - 1)
            if whole and self.delivered is not None:
                self.delivered.remove(entry)
            assert self.dispatcher is not None
            effects += self.dispatcher.acknowledged(consumer, entry, newly, whole, now)

    def _acknowledged(self, effects: list[Effect], now: Now) -> None:
        self.changed()
        if self._reading is not None:
            effects += self._reading.acknowledged()
        if effects:
            self.carry_out(effects, now)
        if self.topic.terminated:
            self.tell_end_of_topic()

    def end_of(self, entry: int, *, whole: bool) -> int | None:
        """The offset after the entry with this id, or, of a ``whole`` one, with this offset in it. None: it has to be read."""
        with self.lock:
            delivered, before = self.delivered, self.cursor.acknowledged_before
            if entry < before:
                return before
            if delivered is None:
                return None
            messages = delivered.messages(entry)
            if messages is not None:
                return entry + messages
            return entry + 1 if whole and entry + 1 in delivered else None

    def acknowledge_until(
        self, connected: ConnectedConsumer | None, offset: int, last: tuple[int, int, Sequence[int]] | None = None
    ) -> None:
        """Everything before the offset is acknowledged, and of the entry after that (offset, messages, ack set), if it is
        given, what its ack set does not have. ``connected`` None: by the broker."""
        with self.lock:
            if connected is not None:
                self._check_connected(connected)
            self._acknowledge_until(offset, last, connected.consumer if connected else None)

    def _acknowledge_until(
        self, offset: int, last: tuple[int, int, Sequence[int]] | None, consumer: Consumer | None
    ) -> None:
        now = self.now()
        effects: list[Effect] = []
        try:
            if self.cursor.acknowledge_until(offset):
                effects += self._moved(now)
            if last is not None and self.dispatcher is not None:
                self._acknowledge(consumer, *last, now, effects)
        finally:
            self._acknowledged(effects, now)

    def _moved(self, now: Now) -> list[Effect]:
        """``acknowledged_before`` has passed entries that were not acknowledged one by one."""
        before = self.cursor.acknowledged_before
        if self.delivered is not None:
            self.delivered.remove_before(before)
        return self.dispatcher.marked_deleted(before, now) if self.dispatcher is not None else []

    def catch_up_with_start(self, now: Now) -> list[Effect]:
        """What the log has deleted cannot be consumed any more."""
        start = self.first_offset
        if not self.cursor.acknowledge_until(start):
            return []
        self.changed()
        return self._moved(now)

    @property
    def first_offset(self) -> int:
        """Before it there is nothing to read."""
        return self.topic.log.log_start_offset if self.compacted is None else self.compacted.first

    def trim(self) -> None:
        """The log may have deleted old entries."""
        if self.cursor.acknowledged_before < self.first_offset:
            with self.lock:
                now = self.now()
                self.carry_out(self.catch_up_with_start(now), now)

    # -- the state in the catalogue -----------------------------------------------------------------------------------------

    def changed(self) -> None:
        """The cursor has changed: it is written within a second. ``lock`` is held."""
        if self.durable and self.cursor.version != self._saved_version:
            self._around.store.rows.changed(self)

    def save(self, done: Done) -> None:
        """Call ``done`` when what is acknowledged now is durable, or could not be made so; at once if it is."""
        if self.durable:
            with self.lock:
                gone, saved = self.gone, self.cursor.version == self._saved_version
            if gone:
                self.settle(done)
                return
            if not saved:
                self._around.store.rows.save(self, done)
                return
        done(None)

    def settle(self, done: Done) -> None:
        """``gone``: call ``done`` when the last state is durable; at once if there is none, because this is deleted."""
        if self._last is None:
            done(None)
        else:
            self._last.wait(done)

    @property
    def never_saved(self) -> bool:
        """It is new, and the catalogue does not have it yet."""
        return self.durable and self._saved_version < 0

    def state(self) -> tuple[int, bytes] | None:
        with self.lock:
            if self.gone:
                return None
            version, snapshot = self.cursor.version, self.cursor.snapshot()
        return version, snapshot.encode()

    def saved(self, version: int, state: bytes) -> bool:
        with self.lock:
            self._saved_version = version
            return self.gone or self.cursor.version == version

    def loaded(self, saved: bool) -> None:
        """The cursor is as it was stored; ``saved``: the catalogue has it."""
        if saved:
            self._saved_version = self.cursor.version
        else:
            self.changed()

    # -- the end, and starting over -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """The topic is unloaded. Its consumers look it up again."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            self.disconnect_consumers()
            self._forget_timer()
            if self.durable:
                snapshot, is_saved = self.cursor.snapshot(), self.cursor.version == self._saved_version
                self._last = last = LastState()  # before it is gone: whoever saves from now on waits for this
                self.gone = True
        if self.durable:
            self._around.store.leave(self, snapshot, is_saved, last)

    def deleted(self) -> None:
        """The topic is gone, or somebody has unsubscribed: so is this."""
        with self.lock:
            self.closed = self.gone = True
            self.disconnect_consumers()
            self._forget_timer()

    def delete_state(self, done: Done) -> None:
        """After ``deleted``: remove it from the catalogue."""
        if self.durable:
            self._around.store.delete(self, done)
        else:
            done(None)

    def reset(self, offset: int, last: tuple[int, int, Sequence[int]] | None = None) -> None:
        """Seek: go on at this offset, whatever was acknowledged. The consumers have to subscribe again.

        ``last``: of the entry there (offset, messages, ack set) the messages that its ack set does not have are acknowledged."""
        with self.lock:
            self.disconnect_consumers()
            self.cursor.reset(offset)
            if last is not None:
                self.cursor.acknowledge(*last)
            if self._reading is not None:
                self._reading.restart()
            self.changed()
        if not self.durable:
            # The reader comes back in a moment, with this position. If it does not, nobody else would end the subscription.
            clock, timer = self._around.clock, self._around.timer
            timer.at(clock.monotonic() + _COMES_BACK_S, partial(self.line.call, self._drop))

    # -- effects: the lock is held ------------------------------------------------------------------------------------------

    def now(self) -> Now:
        clock = self._around.clock
        return Now(clock.monotonic(), clock.time_ms())

    def carry_out(self, effects: Sequence[Effect], now: Now) -> None:
        if not effects:
            return
        reading = self._reading
        assert reading is not None
        work, turns = deque(effects), _READS_AT_ONCE
        while work:
            effect = work.popleft()
            kind = type(effect)
            if kind is Deliver:
                self._deliver(effect)  # type: ignore[arg-type]
            elif kind is Read:
                if turns:
                    turns -= 1
                    work.extend(reading.read(effect, now))  # type: ignore[arg-type]
                else:
                    reading.put_off(effect)  # type: ignore[arg-type]
                    self.line.call(self.more)
            elif kind is Replay:
                if turns:
                    turns -= 1
                    work.extend(reading.replay(effect, now))  # type: ignore[arg-type]
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
                work.extend(self._discard(effect.entries, now))

    def _deliver(self, effect: Deliver) -> None:
        consumer, deliveries = effect.consumer, effect.deliveries
        delivered = self.delivered
        if delivered is None:
            return  # the last one is just leaving
        delivered.add_all(deliveries)
        consumer.owner.deliver(deliveries)
        if consumer.owner.paused and self._reading is not None and self._reading.all_paused():
            # Perhaps for a long time: nothing is kept for it meanwhile. What is old when it goes on is read from the log.
            self.expect_entries(False)

    def _discard(self, entries: Sequence[Entry], now: Now) -> list[Effect]:
        effects: list[Effect] = []
        for entry in entries:
            try:
                self._acknowledge(None, entry.offset, entry.messages, None, now, effects)
            except TooManyHoles:
                break  # it is discarded again when it is read again
        self.changed()
        return effects

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

    # -- questions ----------------------------------------------------------------------------------------------------------

    @property
    def backlog(self) -> int:
        """Messages that are not acknowledged."""
        with self.lock:
            cursor, reader = self.cursor, self.topic.reader
            return cursor.backlog(max(reader.end, cursor.acknowledged_before))

    @property
    def properties(self) -> Mapping[str, str]:
        return self.cursor.properties


def _ignore(_: StorageError | None) -> None:
    """The store tries again."""
