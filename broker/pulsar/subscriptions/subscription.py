"""A subscription: the adapter between its dispatcher, which decides, and the log, the connections and the catalogue.

Every event (permits, acknowledgements, entries that were read, consumers that come and go) is given to the dispatcher under the
subscription's lock, on the thread on which it happens, and the effects that the dispatcher returns are carried out before the
lock is released. Nothing that is done under it blocks: frames are put into queues, entries come from the cache or are read
later on a reader's thread, states are written by the cursor's writer. What one holder does is bounded: it reads a few batches,
and then goes on by way of the waker's thread.

At the end of the log the read waits in the log's tail (``tail.py``).

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
from broker.pulsar.compaction.reader import CompactedReader
from broker.pulsar.dispatch.dispatcher import (
    Activate,
    CancelRead,
    Consumer,
    Deliver,
    Discard,
    Dispatcher,
    Effect,
    Now,
    Read,
    Replay,
    WakeAt,
)
from broker.pulsar.entries.reader import EntryReader
from broker.pulsar.entry import Entry
from broker.pulsar.refusals import ConsumerNotFound
from broker.pulsar.subscriptions.consumer import ConnectedConsumer
from broker.pulsar.subscriptions.cursor import Cursor
from broker.pulsar.subscriptions.cursor_store import CursorStore, Done, LastState
from broker.pulsar.subscriptions.delivered import Delivered
from broker.pulsar.subscriptions.dispatchers import SubType
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
# Consumers at whose connections a read looks before it begins.
_LOOKED_AT = 4

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
        "_cold_read",
        "_cold_replay",
        "_empty",
        "_held",
        "_is_expecting",
        "_last",
        "_next_replay",
        "_read",
        "_read_waits",
        "_reader_has_read",
        "_reader_has_replay",
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
        self._read: Read | None = (
            None  # it waits: at the end of the log, or for its turn, or for a consumer that takes more
        )
        # What the reader's threads have of this subscription: one read and one replay at most, however often consumers come and
        # go. ``_cold_...`` None: nobody wants its result any more. What is asked for meanwhile waits until it is done.
        self._reader_has_read = self._reader_has_replay = False
        self._cold_read: Read | None = None
        self._cold_replay: Replay | None = None
        self._read_waits = False  # `_read` waits for that
        self._next_replay: Replay | None = None
        self._held = False  # `_read` waits for acknowledgements
        self._is_expecting = False
        self._empty = (-1, -1)  # (offset, end): there was no entry between these
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
        self._forget_reads()
        self._forget_timer()
        self.dispatcher, self.kind, self.policy = dispatcher, kind, policy
        self.cursor.rewind()

    def add(self, connected: ConnectedConsumer) -> None:
        """A new consumer. ``lock`` is held, and is released before the client is told. Raises a Refusal; then nothing has
        changed."""
        assert self.dispatcher is not None
        now = self._now()
        if not self.connected:
            self._catch_up_with_start(now)
        effects = self.dispatcher.add(connected.consumer, now)
        if self.delivered is None:
            self.delivered = Delivered()
        self._expects_entries(True)
        self.connected[connected] = None
        if self._read is not None and not self._held:
            # It may have waited for connections that take nothing.
            read, self._read = self._read, None
            effects = [read, *effects]
        self._carry_out(effects, now)

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
            now = self._now()
            self._carry_out(self.dispatcher.remove(connected.consumer, now), now)
            if not self.connected:
                self._forget_reads()
                self.delivered = None
                self._expects_entries(False)

    def _expects_entries(self, expects: bool) -> None:
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
                now = self._now()
                self._carry_out(self.dispatcher.flow(connected.consumer, permits, now), now)

    def redeliver(self, connected: ConnectedConsumer, entries: Sequence[int] | None, epoch: int | None) -> None:
        """None: all that it has."""
        with self.lock:
            if connected in self.connected:
                assert self.dispatcher is not None
                if epoch is not None:
                    connected.epoch = epoch
                # What a consumer holds, Shared knows; where one is served at a time, it has all that was delivered.
                self._expect_again(entries or connected.consumer.held or self.delivered or ())
                now = self._now()
                self._carry_out(self.dispatcher.redeliver(connected.consumer, entries, now), now)

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
            self._expects_entries(True)
            now = self._now()
            read, self._read = self._read, None
            effects = self.dispatcher.writable(connected.consumer, now)
            if read is not None:
                effects = [read, *effects]
            self._carry_out(effects, now)

    def more(self) -> None:
        """There may be entries to read, or it is this subscription's turn again."""
        with self.lock:
            read, self._read = self._read, None
            effects: list[Effect] = [] if read is None else [read]
            if self._next_replay is not None and not self._reader_has_replay:
                effects.append(self._next_replay)
                self._next_replay = None
            if effects:
                self._carry_out(effects, self._now())

    def tick(self) -> None:
        """A time that the dispatcher has asked for may have come."""
        with self.lock:
            self._timer = None
            # Also without consumers: the dispatcher counts on being called.
            if self.dispatcher is not None and not self.closed:
                now = self._now()
                self._carry_out(self.dispatcher.tick(now), now)

    # -- acknowledgements ---------------------------------------------------------------------------------------------------

    def acknowledge(self, connected: ConnectedConsumer, acked: Iterable[AckedEntry]) -> list[AckedEntry]:
        """Acknowledge entries one by one. Returns those of which it is not known how many messages they have. Raises
        TooManyHoles; then those before have been acknowledged. Raises ConsumerNotFound: nothing has been."""
        unknown: list[AckedEntry] = []
        with self.lock:
            self._check_connected(connected)
            delivered, cursor = self.delivered, self.cursor
            assert delivered is not None
            now = self._now()
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
            now = self._now()
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
            now = self._now()
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
        if self._held and self._read is not None and not self.cursor.crowded:
            self._held = False
            read, self._read = self._read, None
            effects.append(read)
        if effects:
            self._carry_out(effects, now)
        if self.topic.terminated:
            self._tell_end_of_topic()

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
        now = self._now()
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

    def _catch_up_with_start(self, now: Now) -> list[Effect]:
        """What the log has deleted cannot be consumed any more."""
        start = self._first_offset()
        if not self.cursor.acknowledge_until(start):
            return []
        self.changed()
        return self._moved(now)

    def _first_offset(self) -> int:
        return self.topic.log.log_start_offset if self.compacted is None else self.compacted.first

    def trim(self) -> None:
        """The log may have deleted old entries."""
        if self.cursor.acknowledged_before < self._first_offset():
            with self.lock:
                now = self._now()
                self._carry_out(self._catch_up_with_start(now), now)

    # -- the state in the catalogue -----------------------------------------------------------------------------------------

    def changed(self) -> None:
        """The cursor has changed: it is written within a second. ``lock`` is held."""
        if self.durable and self.cursor.version != self._saved_version:
            self._around.store.changed(self)

    def save(self, done: Done) -> None:
        """Call ``done`` when what is acknowledged now is durable, or could not be made so; at once if it is."""
        if self.durable:
            with self.lock:
                gone, saved = self.gone, self.cursor.version == self._saved_version
            if gone:
                self.settle(done)
                return
            if not saved:
                self._around.store.save(self, done)
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

    def saved(self, version: int) -> bool:
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
            self._empty = (-1, -1)
            self.changed()
        if not self.durable:
            # The reader comes back in a moment, with this position. If it does not, nobody else would end the subscription.
            clock, timer = self._around.clock, self._around.timer
            timer.at(clock.monotonic() + _COMES_BACK_S, partial(self.line.call, self._drop))

    # -- effects: the lock is held ------------------------------------------------------------------------------------------

    def _now(self) -> Now:
        clock = self._around.clock
        return Now(clock.monotonic(), clock.time_ms())

    def _carry_out(self, effects: Sequence[Effect], now: Now) -> None:
        if not effects:
            return
        work, turns = deque(effects), _READS_AT_ONCE
        while work:
            effect = work.popleft()
            kind = type(effect)
            if kind is Deliver:
                self._deliver(effect)  # type: ignore[arg-type]
            elif kind is Read:
                if turns:
                    turns -= 1
                    work.extend(self._begin_read(effect, now))  # type: ignore[arg-type]
                else:
                    self._read = effect  # type: ignore[assignment]
                    self.line.call(self.more)
            elif kind is Replay:
                if turns:
                    turns -= 1
                    work.extend(self._begin_replay(effect, now))  # type: ignore[arg-type]
                else:
                    self._next_replay = effect  # type: ignore[assignment]
                    self.line.call(self.more)
            elif kind is CancelRead:
                self._cancel_read()
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
        if consumer.owner.paused and self._are_paused():
            # Perhaps for a long time: nothing is kept for it meanwhile. What is old when it goes on is read from the log.
            self._expects_entries(False)

    def _begin_read(self, read: Read, now: Now) -> Sequence[Effect]:
        topic, cursor = self.topic, self.cursor
        reader = self.compacted or self.reader
        effects: Sequence[Effect] = ()
        start = self._first_offset()
        if cursor.acknowledged_before < start:
            effects = self._catch_up_with_start(now)
        if self._cannot_send():
            self._expects_entries(False)
            self._read = read
            return effects
        if cursor.crowded:
            self._read, self._held = read, True
            return effects
        offset = cursor.next_unacknowledged(max(read.offset, start))
        while True:
            end = reader.end
            if offset < end and self._empty != (offset, end):
                break
            self._read = read
            topic.tail.add(self)
            if reader.end == end:
                if topic.terminated:
                    self._tell_end_of_topic()
                return effects
            topic.tail.discard(self)  # one was appended between the two
            self._read = None
        try:
            entries = reader.read(offset, read.max_entries, read.max_bytes)
        except Exception as error:
            return [*effects, *self._read_failed(read, error, now)]
        if entries is None:
            if self._reader_has_read:
                self._read, self._read_waits = read, True
                return effects
            self._reader_has_read, self._cold_read = True, read
            done = partial(self._read_later_done, read, offset, end)
            reader.read_later(offset, read.max_entries, read.max_bytes, done, partial(self._wants_read, read))
            return effects
        return [*effects, *self._entries_read(read, offset, end, entries, now)]

    def _are_paused(self) -> bool:
        """Whether all of the few consumers are."""
        connected = self.connected
        return len(connected) <= _LOOKED_AT and all(one.paused for one in connected)

    def _cannot_send(self) -> bool:
        """Whether all of the few consumers have connections that take nothing now. Then they are paused."""
        connected = self.connected
        if len(connected) > _LOOKED_AT:
            return False
        for one in connected:
            if not one.paused and one.connection.connection.writable:
                return False
        for one in connected:
            one.pause()
        return True

    def _entries_read(self, read: Read, offset: int, end: int, entries: Sequence[Entry], now: Now) -> Sequence[Effect]:
        """``end``: that of the log before it was read."""
        if not entries:
            # Only what consumers never see, such as the ends of transactions. If the log has not grown meanwhile, the reader
            # knows that by now; if it has, the rest is looked at as well.
            self._empty = (offset, end)
            if self.reader.end <= offset:
                self.cursor.skip(offset, end)
                self.changed()
            return [read]
        expected = offset
        for entry in entries:
            if entry.offset > expected:
                self.cursor.skip(expected, entry.offset)
                self.changed()
            expected = entry.offset + entry.messages
        assert self.dispatcher is not None
        return self.dispatcher.read_done(read, entries, now)

    def _wants_read(self, read: Read) -> bool:
        return self._cold_read is read

    def _read_later_done(self, read: Read, offset: int, end: int, result: Sequence[Entry] | Exception) -> None:
        """On a reader's thread."""
        with self.lock:
            self._reader_has_read = False
            now = self._now()
            effects: Sequence[Effect] = ()
            if self._cold_read is read:
                self._cold_read = None
                if isinstance(result, Exception):
                    effects = self._read_failed(read, result, now)
                else:
                    effects = self._entries_read(read, offset, end, result, now)
            if self._read_waits:
                self._read_waits = False
                waiting, self._read = self._read, None
                if waiting is not None:
                    effects = [*effects, waiting]
            self._carry_out(effects, now)

    def _read_failed(self, read: Read, error: Exception, now: Now) -> Sequence[Effect]:
        self._note_failure(error, now)
        assert self.dispatcher is not None
        return self.dispatcher.read_done(read, (), now, failed=True)

    def _begin_replay(self, replay: Replay, now: Now) -> Sequence[Effect]:
        assert self.dispatcher is not None
        reader = self.compacted or self.reader
        try:
            entries = reader.replay(replay.offsets)
        except Exception as error:
            self._note_failure(error, now)
            return self.dispatcher.replay_done(replay, (), now, failed=True)
        if entries is None:
            if self._reader_has_replay:
                self._next_replay = replay
                return ()
            self._reader_has_replay, self._cold_replay = True, replay
            done = partial(self._replay_later_done, replay)
            reader.replay_later(replay.offsets, done, partial(self._wants_replay, replay))
            return ()
        return self.dispatcher.replay_done(replay, entries, now)

    def _wants_replay(self, replay: Replay) -> bool:
        return self._cold_replay is replay

    def _replay_later_done(self, replay: Replay, result: Sequence[Entry] | Exception) -> None:
        """On a reader's thread."""
        with self.lock:
            self._reader_has_replay = False
            now = self._now()
            effects: Sequence[Effect] = ()
            if self._cold_replay is replay:
                self._cold_replay = None
                assert self.dispatcher is not None
                if isinstance(result, Exception):
                    self._note_failure(result, now)
                    effects = self.dispatcher.replay_done(replay, (), now, failed=True)
                else:
                    effects = self.dispatcher.replay_done(replay, result, now)
            if self._next_replay is not None:
                following, self._next_replay = self._next_replay, None
                effects = [*effects, following]
            self._carry_out(effects, now)

    def _note_failure(self, error: Exception, now: Now) -> None:
        left_out = self._around.failures.take(now.monotonic)
        if left_out is not None:
            log.warning(
                "entries_not_read",
                topic=str(self.topic.name),
                subscription=self.name,
                error=str(error) or type(error).__name__,
                unlogged_before=left_out,
            )

    def _discard(self, entries: Sequence[Entry], now: Now) -> list[Effect]:
        effects: list[Effect] = []
        for entry in entries:
            try:
                self._acknowledge(None, entry.offset, entry.messages, None, now, effects)
            except TooManyHoles:
                break  # it is discarded again when it is read again
        self.changed()
        return effects

    def _cancel_read(self) -> None:
        self._cold_read = None
        self._read_waits = False
        if self._read is not None:
            self._read = None
            self.topic.tail.discard(self)

    def _forget_reads(self) -> None:
        self._cancel_read()
        self._cold_replay = self._next_replay = None
        self._held = False

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

    def _tell_end_of_topic(self) -> None:
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
